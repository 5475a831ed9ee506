"""The ways that the ops can take through the package, each to be measured."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Optional
from unittest import mock

# Looked at when triton is first imported: kernels for GPUs run on the CPU, slowly.
os.environ.setdefault("TRITON_INTERPRET", "1")

from fairseq_sparse.ops import cpu, threshold
from fairseq_sparse.ops.cpu import build

COMPILED = "compiled"
# What the kernels are compiled for elsewhere, where this processor can run it.
TARGETS = {"compiled, AVX2": "x86-64-v3", "compiled, SSE2": "x86-64"}
PYTORCH = "PyTorch"
DENSE = "PyTorch, whole rows"
TRITON = "Triton"
DESCRIPTIONS = {
    COMPILED: "the kernels in C, compiled for the processor at hand",
    "compiled, AVX2": "the same for one with AVX2 and no AVX-512",
    "compiled, SSE2": "the same for any x86-64",
    PYTORCH: "without a compiler, and for fp64: candidates of long rows are searched in fp64",
    DENSE: "as on a GPU without Triton: whole rows are searched in the dtype of the result",
    TRITON: "the kernels for GPUs in Triton's interpreter, a part of the rows of up to 5,000",
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
    from fairseq_sparse.ops.gpu import _has_triton

    return find_spec("triton") is not None and _has_triton()


@contextmanager
def taken(path: str, library: Optional[ctypes.CDLL] = None) -> Iterator[None]:
    """Return a context in which the ops take a path."""
    with ExitStack() as changed:
        if library is not None:
            changed.enter_context(mock.patch.object(build, "library", lambda: library))
        if path in (PYTORCH, DENSE, TRITON):
            changed.enter_context(cpu.turned_off())
        if path == DENSE:
            dense = threshold._solve_dense
            changed.enter_context(mock.patch.object(threshold, "_solve_candidates", dense))
        if path == TRITON:
            for module in ("alpha_relu", "entmax", "losses", "threshold"):
                module = import_module(f"fairseq_sparse.ops.{module}")
                changed.enter_context(mock.patch.object(module, "usable", lambda *x: True))
        yield
