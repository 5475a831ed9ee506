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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
import triton
from torch import Tensor

from fairseq_sparse.files import read_json, write_json
from fairseq_sparse.ops.cpu import build

logger = logging.getLogger(__name__)

# Largest error in fp32, of values up to 1 absolute and of larger ones relative; the rounding of a
# result in half precision is added. A wrong kernel is off by far more.
_BOUND = 5e-5

# What a kernel and the reference computed: pairs of tensors, with names.
Results = Iterator[tuple[str, Tensor, Tensor]]

_verdicts: dict[tuple, bool] = {}
_lock = threading.Lock()


def verified(name: str, device: torch.device, form: tuple, compare: Callable[[], Results]) -> bool:
    """Return whether a kernel may compute on a device; compare it there first if nobody has.

    Args:
        name: the kernel's.
        form: what the kernel is compiled for, such as dtype and block size.
        compare: computes samples by the kernel and by the reference, in no other way than these
            functions themselves, and yields the results.
    """
    key = (name, device, form)
    verdict = _verdicts.get(key)
    if verdict is not None:
        return verdict
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False  # nothing can be read now, so that the reference is captured
    with _lock:
        if key in _verdicts:
            return _verdicts[key]
        # Until there is a verdict: other threads need not wait, and nothing comes back here.
        _verdicts[key] = False
    try:
        _verdicts[key] = _remembered(name, device, form, compare)
    except torch.OutOfMemoryError:  # says nothing about the kernel
        del _verdicts[key]
        return False
    return _verdicts[key]


def rejected() -> list[str]:
    """Return the kernels that are not used in this process, each with its form."""
    return [f"{name} {form}" for (name, _, form), verdict in _verdicts.items() if not verdict]


def _remembered(
    name: str, device: torch.device, form: tuple, compare: Callable[[], Results]
) -> bool:
    """Return the verdict on a kernel: that of the cache folder, or a new one, which is kept."""
    text = f"{name} {form}"
    path = None
    try:
        path = _path(_environment(device), text)
        if path is not None and path.exists() and build._is_ours_alone(path):
            problem = read_json(path)["problem"]
            return _judge(text, device, problem, path)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        logger.debug("verdicts on GPU kernels are not kept: %s", error)
    problem = _problem(device, compare)
    if path is not None:
        try:
            write_json(path, {"kernel": text, "gpu": _environment(device), "problem": problem})
        except OSError as error:
            logger.debug("verdicts on GPU kernels are not kept: %s", error)
            path = None
    return _judge(text, device, problem, path)


def _judge(text: str, device: torch.device, problem: str, path: Path | None) -> bool:
    """Return whether there is no problem; else log a warning."""
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


def _problem(device: torch.device, compare: Callable[[], Results]) -> str:
    """Compare; return what is wrong, or an empty text."""
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False), _may_wait(device):
            for what, found, expected in compare():
                bound = _BOUND + 2 * torch.finfo(found.dtype).eps
                error = _error(found, expected)
                if not error <= bound:
                    return f"is wrong by {error:.1e} in {what}, more than {bound:.1e}"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a compiler, a driver or a GPU
        return f"fails with {type(error).__name__}: {' '.join(str(error).split())}"
    return ""


@contextmanager
def _may_wait(device: torch.device) -> Iterator[None]:
    """Return a context in which PyTorch does not complain that the host waits for the GPU."""
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


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
    return repr(
        (
            torch.cuda.get_device_name(device),
            driver.read_text() if driver.exists() else "",
            torch.__version__,
            triton.__version__,
            hashlib.sha256(sources).hexdigest(),
        )
    )


def _path(environment: str, text: str) -> Path | None:
    """Return the file of a verdict, or None where none is kept: in the interpreter.

    Raises:
        RuntimeError: other users can write to the folder.
        OSError: it cannot be made.
    """
    if not environment:
        return None
    folder = build._cache_folder().resolve()
    build._check_safety(folder)
    return folder / f"gpu-{hashlib.sha256((environment + text).encode()).hexdigest()[:16]}.json"
