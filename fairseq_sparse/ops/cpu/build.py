"""Compiles the C sources beside this file on the user's machine, once, and loads them.

They are plain C without PyTorch's headers, so compiling takes about a second. The library is kept
in ``FAIRSEQ_SPARSE_CACHE`` (default: ``fairseq_sparse`` in the user's cache folder). Its name has a
hash of the sources, the compiler and its arguments, the C library and the processor, so that an
outdated one is never loaded, and a hash of its contents, because loading a damaged one would end
the process. Loading a library runs its code, so a folder whose contents another user can change,
or replace from a folder above it, is not used. Where the library cannot be kept, it is compiled for
this process alone, in the temporary folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Optional

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = ("rows.c", "screen.c", "attention.c", "attention_step.c", "dropout.c")
_HEADERS = ("power.h", "threshold.h", "entmax_row.h", "threads.h", "tiles.h", "random.h")
# Some compilers, such as icx, do not honour NaN and infinity unless they are told to.
_ARGUMENTS = ("-O3", "-std=gnu11", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math")
_ARGUMENTS += ("-shared", "-fPIC", "-fvisibility=default")
# The first of these sets that the compiler accepts is used. OpenMP's functions resolve to those
# that PyTorch has loaded. Without threads, -fopenmp-simd still lets sums of floats be vectorised.
_OPTIONAL = (
    *(("-march=native", "-fopenmp"), ("-fopenmp",)),
    *(("-march=native", "-fopenmp-simd"), ("-fopenmp-simd",)),
    *(("-march=native",), ()),
)

# Beginning of the names of the folders in which the cache's libraries are compiled.
_UNFINISHED = "compiling-"
_LONGER_THAN_COMPILING = 86_400  # seconds
# If two threads ask at the same time, one compiles and the other waits for its library. So does a
# fork, or the child would wait for a thread that it does not have.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


@cache
def library() -> Optional[ctypes.CDLL]:
    """Return the compiled kernels, or None where they are turned off or cannot be had.

    ``FAIRSEQ_SPARSE_NATIVE=0`` turns them off. If they cannot be compiled or loaded, a warning is
    logged once; everything works without them, but slower.
    """
    with _lock:
        return _library()


@cache
def _library() -> Optional[ctypes.CDLL]:
    if os.environ.get("FAIRSEQ_SPARSE_NATIVE", "1") == "0":
        return None
    temporary, problems = None, []
    try:
        try:
            return _load(_compiled(_cache_folder()))
        except Exception as error:
            problems.append(" ".join(str(error).split()))
        temporary = tempfile.mkdtemp(prefix="fairseq_sparse-")
        found = _load(_compiled(Path(temporary)))
        logger.warning(
            "the kernels for this CPU are compiled by each process, because they cannot be kept: "
            "%s (FAIRSEQ_SPARSE_CACHE names another folder)",
            problems[0],
        )
        return found
    except Exception as error:  # whatever it is, the reference needs no kernels
        problems.append(" ".join(str(error).split()))
        logger.warning(
            "the kernels for this CPU could not be compiled, so sparse outputs and attention run "
            "in slower PyTorch code: %s (to fix this: install a C compiler, or name one in CC, or "
            "in FAIRSEQ_SPARSE_CACHE a folder of your own from which libraries can be loaded; "
            "FAIRSEQ_SPARSE_NATIVE=0 silences this warning)",
            "; ".join(dict.fromkeys(problems)),
        )
        return None
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def _load(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    if not hasattr(found, "attention_lanes"):
        raise RuntimeError(f"{_compiler()} makes a library that hides its functions")
    return found


def _compiled(folder: Path) -> Path:
    """Return the library's file in a folder, compiled if it is not there or damaged.

    Raises:
        RuntimeError: other users could change the file, or it cannot be compiled.
    """
    folder = folder.resolve()  # a link may be changed, and dlopen searches for a relative path
    _check_safety(folder)
    compiler = _compiler()
    parts = [compiler, _identity(compiler), _ARGUMENTS, _OPTIONAL, platform.libc_ver()]
    parts += [_processor(), *((FOLDER / name).read_bytes() for name in SOURCES + _HEADERS)]
    name = f"kernels-{_digest(repr(parts).encode())}"
    for path in folder.glob(f"{name}-*.so"):
        if _is_intact(path):
            return path
    _remove_unfinished(folder)
    # Two processes may compile at once, so each compiles in its own folder and moves the result
    # into place. A damaged file is replaced but never removed: it may have been replaced already.
    with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as scratch:
        output = Path(scratch) / "kernels.so"
        _compile(compiler, output)
        path = folder / f"{name}-{_digest(output.read_bytes())}.so"
        output.chmod(0o700)
        os.replace(output, path)
        return path


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed while they compiled have left in a folder."""
    for scratch in folder.glob(f"{_UNFINISHED}*"):
        try:
            if time.time() - scratch.stat().st_mtime > _LONGER_THAN_COMPILING:
                shutil.rmtree(scratch)
        except OSError:  # another process removes it
            pass


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
    """Return the folder in which the user's kernels are kept, making it if it is not there."""
    named = os.environ.get("FAIRSEQ_SPARSE_CACHE")
    if not named:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        named = Path(caches) / "fairseq_sparse"
    folder = Path(named)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _check_safety(folder: Path) -> None:
    """Raise RuntimeError if another user can write to a folder, or replace one that it is in."""
    if not hasattr(os, "getuid"):  # Windows
        return
    # In a container, the administrator may appear under another number.
    trusted = (os.getuid(), 0, Path("/").stat().st_uid)
    unsafe = [] if _is_ours_alone(folder) else [folder]
    for place in folder.parents:
        status = place.stat()
        # In a sticky folder, users cannot replace what belongs to others.
        is_open = _others_can_write(status) and not status.st_mode & stat.S_ISVTX
        if is_open or status.st_uid not in trusted:
            unsafe.append(place)
    if not unsafe:
        return
    if _others_can_write(unsafe[0].stat()):
        raise RuntimeError(f"other users can write to {unsafe[0]} (to forbid it: chmod go-w)")
    raise RuntimeError(f"{unsafe[0]} belongs to another user")


def _is_ours_alone(path: Path) -> bool:
    """Return whether a file or folder is the user's, and no other user can change it."""
    if not hasattr(os, "getuid"):
        return True
    status = path.stat()
    return status.st_uid == os.getuid() and not _others_can_write(status)


def _others_can_write(status: os.stat_result) -> bool:
    group_can = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    return bool(group_can or status.st_mode & stat.S_IWOTH)


def _is_own_group(number: int) -> bool:
    """Return whether the user is alone in a group; many systems make such a group per user."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.getuid())
    except KeyError:  # a number without a name
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _processor() -> str:
    """Return a text that identifies the processor, because machines may share the cache."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return platform.machine() + line
    except OSError:
        pass
    return platform.machine() + platform.processor()
