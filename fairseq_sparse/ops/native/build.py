"""Compiles the C sources beside this file on the user's machine, once, and loads them.

Plain C without PyTorch's headers: compiling takes about a second. The library is kept in
``FAIRSEQ_SPARSE_CACHE`` (default: ``fairseq_sparse`` in the user's cache folder) under a name made
of the sources, the compiler's arguments and the processor, so that an old one is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Optional

logger = logging.getLogger(__name__)

_SOURCES = ("rows.c", "screen.c", "products.c")
_HEADERS = ("power.h", "threshold.h")
_ARGUMENTS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
# Not every compiler knows both. OpenMP's functions resolve to those that PyTorch has loaded.
_OPTIONAL = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())


@cache
def library() -> Optional[ctypes.CDLL]:
    """The compiled kernels, or None where they are turned off or cannot be compiled.

    ``FAIRSEQ_SPARSE_NATIVE=0`` turns them off. That they cannot be compiled is said once in the
    log; everything works without them, but slower.
    """
    if os.environ.get("FAIRSEQ_SPARSE_NATIVE", "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning(
            "the kernels for this CPU could not be compiled, so that sparse outputs and attention "
            "are computed by slower ones: %s (to have them: install a C compiler, or name one in "
            "CC; FAIRSEQ_SPARSE_NATIVE=0 silences this)",
            " ".join(str(error).split()),
        )
        return None


def _compiled() -> Path:
    """The library's file, compiled if it is not there."""
    folder = Path(__file__).parent
    compiler = _compiler()
    parts = [compiler, _ARGUMENTS, _OPTIONAL, _processor()]
    parts += [(folder / name).read_bytes() for name in _SOURCES + _HEADERS]
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    cache = _cache_folder()
    path = cache / f"kernels-{name}.so"
    if path.exists():
        return path
    # Two processes may compile at once: each into a folder of its own, then moved into place.
    with tempfile.TemporaryDirectory(dir=cache, prefix="compiling-") as scratch:
        output = Path(scratch) / path.name
        errors = []
        for optional in _OPTIONAL:
            command = [*compiler, *_ARGUMENTS, *optional, "-o", str(output)]
            command += [*(str(folder / name) for name in _SOURCES), "-lm"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300
            )
            if done.returncode == 0:
                os.replace(output, path)
                return path
            errors.append(
                done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
            )
    raise RuntimeError(f"{shlex.join(compiler)}: {errors[-1]}")


def _compiler() -> list[str]:
    name = os.environ.get("CC", "").strip() or "cc"
    try:
        return shlex.split(name)
    except ValueError as error:  # half a quote
        raise RuntimeError(f"CC is {name!r}: {error}") from None


def _cache_folder() -> Path:
    """A folder to write to: the user's, or one for this process where there is none."""
    try:
        folder = os.environ.get("FAIRSEQ_SPARSE_CACHE")
        if not folder:
            caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            folder = Path(caches) / "fairseq_sparse"
        Path(folder).mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return Path(folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        pass
    return Path(tempfile.mkdtemp(prefix="fairseq_sparse-"))


def _processor() -> str:
    """What the code is compiled for: the cache may be shared by machines."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return platform.machine() + line
    except OSError:
        pass
    return platform.machine() + platform.processor()
