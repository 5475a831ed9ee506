"""The paths that the ops can take through the package, each of which is measured."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Optional
from unittest import mock

# Read when triton is first imported: GPU kernels then run on the CPU, slowly.
os.environ.setdefault("TRITON_INTERPRET", "1")

from fairseq_sparse.ops import backends
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.gpu import availability
from numerics.interpreted_gpu import InterpretedGPU

COMPILED = "compiled"
# Targets for which the kernels are compiled on other processors, if this one can run them.
TARGETS = {"compiled, AVX2": "x86-64-v3", "compiled, SSE2": "x86-64"}
PYTORCH = "PyTorch"
TRITON = "Triton"
DESCRIPTIONS = {
    COMPILED: "the kernels in C, compiled for the processor at hand",
    "compiled, AVX2": "the same for a processor with AVX2 but no AVX-512",
    "compiled, SSE2": "the same for any x86-64",
    PYTORCH: "the reference, for fp64 and where there are no kernels",
    TRITON: "the GPU kernels in Triton's interpreter, on a part of the rows of up to 5,000 logits",
}


def libraries(folder: Path) -> dict[str, ctypes.CDLL]:
    """Return the kernels compiled for each of TARGETS that can run here."""
    found = {}
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    for name, target in TARGETS.items():
        if "avx2" in flags:
            file = folder / f"{target}.so"
            sources = [str(Path(build.__file__).parent / source) for source in build.SOURCES]
            command = [*build._compiler(), *build._ARGUMENTS, f"-march={target}", "-fopenmp"]
            subprocess.run([*command, "-o", str(file), *sources, "-lm"], check=True)
            found[name] = ctypes.CDLL(str(file))
    return found


def has_triton() -> bool:
    """Return whether there is a Triton that the package would use on a GPU."""
    return find_spec("triton") is not None and availability.has_triton()


@contextmanager
def taken(path: str, library: Optional[ctypes.CDLL] = None) -> Iterator[None]:
    """Return a context in which the ops take a path."""
    with ExitStack() as changed:
        if library is not None:
            changed.enter_context(mock.patch.object(build, "library", lambda: library))
        if path == PYTORCH:
            changed.enter_context(backends.use("reference"))
        if path == TRITON:
            changed.enter_context(InterpretedGPU())
        yield
