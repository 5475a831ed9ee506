"""Compiles the C sources beside this file on the user's machine, once, and loads them.

They are plain C without PyTorch's headers, so compiling takes about a second. The library is kept
in ``FAIRSEQ_SPARSE_CACHE`` (default: ``fairseq_sparse`` in the user's cache folder). Its name has a
hash of the sources, the compiler and its arguments, the C library and the processor, so that an
outdated one is never loaded, and a hash of its contents, because loading a damaged one would end
the process. Loading a library runs its code, so one that another user could have put there is
compiled anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Optional

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = (
    *("rows.c", "screen.c", "products.c"),
    *("attention.c", "attention_step.c", "norms.c", "dropout.c"),
)
_HEADERS = ("power.h", "threshold.h", "entmax_row.h", "threads.h", "tiles.h", "random.h")
# Some compilers, such as icx, do not honour NaN and infinity unless they are told to.
_ARGUMENTS = ("-O3", "-std=gnu11", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math")
_ARGUMENTS += ("-shared", "-fPIC")
# The first of these sets that the compiler accepts is used. OpenMP's functions resolve to those
# that PyTorch has loaded. Without threads, -fopenmp-simd still lets sums of floats be vectorised.
_OPTIONAL = (
    *(("-march=native", "-fopenmp"), ("-fopenmp",)),
    *(("-march=native", "-fopenmp-simd"), ("-fopenmp-simd",)),
    *(("-march=native",), ()),
)

# Folders for this process alone: they go when the library is loaded.
_temporary: list[str] = []
# If two threads ask at the same time, one compiles and the other waits for its library.
_lock = threading.Lock()


@cache
def library() -> Optional[ctypes.CDLL]:
    """Return the compiled kernels, or None where they are turned off or cannot be compiled.

    ``FAIRSEQ_SPARSE_NATIVE=0`` turns them off. If they cannot be compiled, a warning is logged
    once; everything works without them, but slower.
    """
    with _lock:
        return _library()


@cache
def _library() -> Optional[ctypes.CDLL]:
    if os.environ.get("FAIRSEQ_SPARSE_NATIVE", "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning(
            "the kernels for this CPU could not be compiled, so sparse outputs and attention run "
            "in slower PyTorch code: %s (to fix this: install a C compiler, or name one in CC; "
            "FAIRSEQ_SPARSE_NATIVE=0 silences this warning)",
            " ".join(str(error).split()),
        )
        return None
    finally:
        while _temporary:
            shutil.rmtree(_temporary.pop(), ignore_errors=True)


def _compiled() -> Path:
    """Return the library's file, compiled if it is not there or damaged."""
    compiler = _compiler()
    parts = [compiler, _identity(compiler), _ARGUMENTS, _OPTIONAL, platform.libc_ver()]
    parts += [_processor(), *((FOLDER / name).read_bytes() for name in SOURCES + _HEADERS)]
    name = f"kernels-{_digest(repr(parts).encode())}"
    folder = _cache_folder()
    for path in folder.glob(f"{name}-*.so"):
        if _is_intact(path):
            return path
    # Two processes may compile at once, so each compiles in its own folder and moves the result
    # into place. A damaged file is replaced but never removed: it may have been replaced already.
    with tempfile.TemporaryDirectory(dir=folder, prefix="compiling-") as scratch:
        output = Path(scratch) / "kernels.so"
        _compile(compiler, output)
        path = folder / f"{name}-{_digest(output.read_bytes())}.so"
        output.chmod(0o700)
        os.replace(output, path)
        return path


def _compile(compiler: list[str], output: Path) -> None:
    """Compile the sources with as many of the optional arguments as the compiler takes."""
    for optional in _OPTIONAL:
        command = [*compiler, *_ARGUMENTS, *optional, "-o", str(output)]
        command += [*(str(FOLDER / name) for name in SOURCES), "-lm"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        if done.returncode == 0:
            return
    error = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
    raise RuntimeError(f"{shlex.join(compiler)}: {error}")


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def _is_intact(path: Path) -> bool:
    """Return whether a cached file is what the compiler wrote, and nobody else can change it."""
    try:
        return _is_ours_alone(path) and path.stem.endswith(_digest(path.read_bytes()))
    except OSError:  # removed just now, or a folder
        return False


def _compiler() -> list[str]:
    name = os.environ.get("CC", "").strip() or "cc"
    try:
        return shlex.split(name)
    except ValueError as error:  # half a quote
        raise RuntimeError(f"CC is {name!r}: {error}") from None


def _identity(compiler: list[str]) -> list[tuple[str, int, int]]:
    """Return the files that a compiler's command names, with their sizes and dates. They tell its
    versions apart, also behind a launcher such as ccache, and faster than starting it would."""
    files = [Path(file).resolve() for file in map(shutil.which, compiler) if file]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _cache_folder() -> Path:
    """Return a folder that nobody else can write to: the user's, or one for this process."""
    try:
        named = os.environ.get("FAIRSEQ_SPARSE_CACHE")
        if not named:
            caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            named = Path(caches) / "fairseq_sparse"
        folder = Path(named)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours_alone(folder):
            logger.warning(
                "other users can write to %s: the kernels for this CPU are not kept there, and "
                "each process compiles them (to keep them: chmod go-w, or another folder in "
                "FAIRSEQ_SPARSE_CACHE)",
                folder,
            )
        elif os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        pass
    _temporary.append(tempfile.mkdtemp(prefix="fairseq_sparse-"))
    return Path(_temporary[-1])


def _is_ours_alone(path: Path) -> bool:
    """Return whether no other user, except the administrator, can change the file or folder."""
    if not hasattr(os, "getuid"):  # Windows
        return True
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _processor() -> str:
    """Return a text that identifies the processor, because machines may share the cache."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return platform.machine() + line
    except OSError:
        pass
    return platform.machine() + platform.processor()
