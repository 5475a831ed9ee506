"""The comparison of each GPU kernel with the reference before it may decide a result.

A kernel is compiled for a GPU, a dtype and a size by compilers that change with every release, so a
test on one machine says little about another. At its first use in each form on a GPU it therefore
computes a few rows of random and of extreme values, and the reference the same in fp64. Where they
disagree, or the kernel fails, one warning has the numbers, and the reference computes from then on.

Verdicts are kept in the folder of the C kernels, a small file each, for the same GPU, driver,
versions and sources. Deleting ``gpu-*.json`` there lets every kernel be compared again. Where the
folder is not safe from other users, or cannot be written, each process compares for itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Optional

import torch
import triton
from torch import Tensor

from fairseq_sparse.files import read_json, write_json
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.gpu import comparisons
from fairseq_sparse.ops.operators import reference_of
from fairseq_sparse.ops.reference.rows import residual_

logger = logging.getLogger(__name__)

# Largest error in fp32, of values up to 1 absolute and of larger ones relative; the rounding of a
# result in half precision is added. A wrong kernel is off by far more.
_BOUND = 5e-5

_verdicts: dict[tuple, bool] = {}
_lock = threading.RLock()


def verified(
    kernel: Callable, device: torch.device, dtype: torch.dtype, form: tuple, arguments: tuple
) -> bool:
    """Return whether a kernel may compute on a device; compare it there first if nobody has.

    Args:
        kernel: a function that has the arguments and results of an operator, and its name.
        form: what is compiled for, besides the dtype, such as the size of a block.
        arguments: those of its function in ``comparisons.py`` after ``op`` and ``cast``.
    """
    key = (kernel.__name__, device, dtype, *form)
    if key not in _verdicts:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # nothing can be read now, so that the reference is captured
        with _lock:
            if key not in _verdicts:
                try:
                    _verdicts[key] = _judge(kernel, device, dtype, form, arguments)
                except torch.OutOfMemoryError:  # says nothing about the kernel
                    return False
    return _verdicts[key]


def rejected() -> list[str]:
    """Return the kernels that are not used in this process, each with its form."""
    return [f"{name} {form}" for (name, _, *form), verdict in _verdicts.items() if not verdict]


def _judge(
    kernel: Callable, device: torch.device, dtype: torch.dtype, form: tuple, arguments: tuple
) -> bool:
    """Return the verdict that was kept, or a new one, and keep it; if it is bad, log a warning."""
    text, gpu = f"{kernel.__name__} {[dtype, *form]}", _environment(device)
    path = _path(gpu + text) if gpu else None
    problem = _kept_problem(path) if path else None
    if problem is None:
        problem = _problem(kernel, device, dtype, arguments)
        try:
            if path:
                write_json(path, {"kernel": text, "gpu": gpu, "problem": problem})
        except OSError as error:
            logger.debug("verdicts on GPU kernels are not kept: %s", error)
            path = None
    if problem:
        logger.warning(
            "the GPU kernel %s is not used on %s, because there it %s; PyTorch computes instead, "
            "which is slower%s",
            text,
            device,
            problem,
            f" (delete {path} to compare it again)" if path else "",
        )
    return not problem


def _problem(kernel: Callable, device: torch.device, dtype: torch.dtype, arguments: tuple) -> str:
    """Compare; return what is wrong, or an empty text."""
    name, is_cuda = kernel.__name__, device.type == "cuda"
    operation = getattr(torch.ops.fairseq_sparse, name, None)
    reference = reference_of(operation.default) if operation else residual_
    compute = getattr(comparisons, name)
    mode = torch.cuda.get_sync_debug_mode() if is_cuda else 0
    try:
        if is_cuda:
            torch.cuda.set_sync_debug_mode("default")  # the host may wait here
        found = compute(kernel, lambda x: x.to(device, dtype), *arguments)
        expected = compute(reference, lambda x: x.to(device, dtype).double(), *arguments)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            bound = _BOUND + 2 * torch.finfo(ours.dtype).eps
            error = _error(ours, theirs)
            if not error <= bound:
                return f"is wrong by {error:.1e} in result {number}, more than {bound:.1e}"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a compiler, a driver or a GPU
        return f"fails with {type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        if is_cuda:
            torch.cuda.set_sync_debug_mode(mode)
    return ""


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the largest error; infinite where only one of two values is NaN or infinite."""
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    error = (found - expected).abs() / expected.abs().clamp(min=1)
    return float(torch.where(same, 0.0, error.nan_to_num(nan=torch.inf)).amax())


@cache
def _environment(device: torch.device) -> str:
    """Return what a verdict depends on besides the kernel; nothing in Triton's interpreter."""
    if device.type != "cuda":
        return ""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    driver = Path("/proc/driver/nvidia/version")
    parts = (
        torch.cuda.get_device_name(device),
        driver.read_text() if driver.exists() else "",
        torch.__version__,
        triton.__version__,
        hashlib.sha256(sources).hexdigest(),
    )
    return repr(parts)


def _path(identity: str) -> Optional[Path]:
    """Return the file of a verdict, or None where none can be kept or others could write to it."""
    try:
        folder = build._cache_folder().resolve()
        build._check_safety(folder)
    except (OSError, RuntimeError) as error:
        logger.debug("verdicts on GPU kernels are not kept: %s", error)
        return None
    return folder / f"gpu-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def _kept_problem(path: Path) -> Optional[str]:
    """Return what a file says; None if it is missing, damaged or not the user's alone."""
    try:
        return read_json(path).get("problem") if build._is_ours_alone(path) else None
    except (OSError, ValueError):
        return None
