"""The choice of the backend that computes an op: the PyTorch reference, or kernels for CPU or GPU.

:func:`choose` alone decides. It returns a module, ``reference``, ``cpu`` or ``gpu``, in which an op
has the same name and arguments. The reference computes the ops that the kernels lack or do not
support for the given tensors and options. It has no ops for losses, log-probabilities and dropout:
their callers combine other ops, or leave them to PyTorch. Nothing here reads a value on a GPU.

    with backends.use("reference"):  # or FAIRSEQ_SPARSE_BACKEND=reference
        entmax15(z)
    backends.last_used()  # {"entmax": "reference"}

``FAIRSEQ_SPARSE_NATIVE=0`` and ``FAIRSEQ_SPARSE_TRITON=0`` turn off the kernels for CPUs and for
GPUs. The first use of a backend for an op is logged at level DEBUG.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_sparse.ops import capture, cpu, operators, reference
from fairseq_sparse.ops.cpu import build

logger = logging.getLogger(__name__)

VARIABLE = "FAIRSEQ_SPARSE_BACKEND"
# The backends that each choice of the user allows besides the reference.
_CHOICES = {"auto": ("cpu", "gpu"), "reference": (), "cpu": ("cpu",), "gpu": ("gpu",)}

# Range of the C kernels: nearer to 1, fp32 is too inexact for powers with exponent 1 / (alpha - 1).
_LEAST_ALPHA, _LARGEST_ALPHA = 1.05, 2.0
# Scores per head on a CPU, below which PyTorch's products are as fast.
_LEAST_SCORES = 20 * 20
# Scores of all heads, below which that is so for rectified weights: all of them fit into the cache.
_LEAST_RECTIFIED = 1 << 20
# All kernels require the width of a head to be a multiple of this.
_HEAD_WIDTHS = 16
# Kernels compiled for vectors of fewer floats are slower than PyTorch's products, which choose the
# vectors of the processor at run time.
_LEAST_LANES = 8
_RELA_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_RELA_LARGEST_HEAD = 128
# Limits of adasplash, which recompiles for each length, so that short inputs are not worth it.
_ADASPLASH_HEADS = (16, 32, 64, 128, 256)
_ADASPLASH_LEAST_LENGTH = 512
_OLDEST_TRITON = (3, 0)
_LEAST_CAPABILITY = (8, 0)  # Ampere: a V100 has 7.0, a T4 has 7.5

Tensors = Sequence[Optional[Tensor]]


def choose(op: str, tensors: Tensors, **options: Any) -> ModuleType:
    """Return the backend that computes an op, as a module.

    Args:
        op: a key of the tables at the end of this file.
        tensors: the inputs, whose device decides; None for one that is not given.
        options: the other arguments that the choice depends on, see the op's rule.

    Returns:
        ``reference``, ``cpu`` or ``gpu``, as its ``NAME`` says. For tensors that PyTorch captures
        (see ``capture.py``) it is ``reference``, or ``operators`` for the search of alpha-entmax.
    """
    seen = [x for x in tensors if x is not None]
    seen += [x for x in options.values() if isinstance(x, Tensor)]
    if capture.is_captured(*seen):
        return operators if op == "entmax" else reference
    backend = reference
    device = _device_of(tensors)
    if device in _allowed:
        rule = _RULES[device].get(op)
        kernels = None if rule is None else _kernels_for(device, tensors)
        if kernels is not None and rule(tensors, **options):
            backend = kernels
    if _last.get(op) is not backend:
        _record_use(op, backend)
    return backend


@contextmanager
def use(choice: str) -> Iterator[None]:
    """Return a context in which the user chooses the backend.

    The choice applies to all threads, because gradients are computed in other threads. If contexts
    overlap, the one entered last counts.

    Args:
        choice: ``reference`` for PyTorch alone, so that every operator can be observed; ``cpu`` or
            ``gpu`` for these kernels where they apply, else the reference; ``auto`` for both.

    Raises:
        ValueError: the choice is none of these.
    """
    entered = _enter(choice)
    try:
        yield
    finally:
        with _lock:
            _choices[:] = [other for other in _choices if other is not entered]
            _apply_last_choice()


def last_used() -> dict[str, str]:
    """Return the name of the backend that each op was last computed by in this process."""
    return {op: backend.NAME for op, backend in _last.items()}


def _enter(choice: str) -> list[str]:
    """Activate a choice; return the backends that it allows, as a list of this entry's own."""
    if choice not in _CHOICES:
        raise ValueError(f"the backend must be one of {', '.join(_CHOICES)}, got {choice!r}")
    entered = list(_CHOICES[choice])
    with _lock:
        _choices.append(entered)
        _apply_last_choice()
    return entered


def _apply_last_choice() -> None:
    global _allowed
    _allowed = _choices[-1]
    capture.kernels_are_off = not _allowed


_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # or a child may wait for a thread that it does not have
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
# The choice of the environment variable, then those of the contexts that are active.
_choices: list[list[str]] = []
_allowed: list[str] = []
_last: dict[str, ModuleType] = {}
_logged: set[tuple[str, str]] = set()


def _record_use(op: str, backend: ModuleType) -> None:
    """Record the backend that an op was last computed by, and log its first use."""
    _last[op] = backend
    key = op, backend.NAME
    if key not in _logged:
        _logged.add(key)
        logger.debug("%s: computed by %s", *key)


def _device_of(tensors: Tensors) -> str:
    """Return whose kernels can read these tensors, ``cpu`` or ``gpu``, or another text if none."""
    devices = {x.device for x in tensors if x is not None}
    found = devices.pop().type if len(devices) == 1 else "several"
    return "gpu" if found == "cuda" else found


def _kernels_for(device: str, tensors: Tensors) -> Optional[ModuleType]:
    """Return the kernels for a device, or None where they cannot be had."""
    if device == "cpu":
        return None if build.library() is None else cpu
    first = next(x for x in tensors if x is not None)
    return _gpu() if runs_kernels(first.device) and has_triton() else None


@cache
def runs_kernels(device: torch.device) -> bool:
    """Return whether the GPU kernels support this GPU. Cached, so that the reason is logged once.

    They have been compiled for NVIDIA GPUs from Ampere on. Triton would also try them on older ones
    and, under ROCm, on AMD's, but the outcome is unknown.
    """
    if torch.version.hip is not None:
        found = "PyTorch is built for ROCm"
    else:
        capability = torch.cuda.get_device_capability(device)
        if capability >= _LEAST_CAPABILITY:
            return True
        found = "{} has compute capability {}.{}".format(device, *capability)
    logger.info(
        "%s, and the Triton kernels need an NVIDIA GPU of %d.%d or more: sparse ops run in plain "
        "PyTorch",
        found,
        *_LEAST_CAPABILITY,
    )
    return False


@cache
def has_triton() -> bool:
    """Return whether a suitable Triton is available. Cached, so that the reason is logged once."""
    if os.environ.get("FAIRSEQ_SPARSE_TRITON") == "0":
        logger.info("FAIRSEQ_SPARSE_TRITON=0: sparse ops run in plain PyTorch on the GPU")
        return False
    needed = ".".join(map(str, _OLDEST_TRITON))
    try:
        import triton
    except ImportError:
        found = "is not installed"
    else:
        if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= _OLDEST_TRITON:
            return True
        found = f"{triton.__version__} is older than {needed}"
    logger.warning(
        "triton %s: sparse ops run in plain PyTorch on the GPU, which is slower; to fix this: "
        "pip install 'triton>=%s'",
        found,
        needed,
    )
    return False


@cache
def _gpu() -> ModuleType:
    """Return the kernels for GPUs; Triton is imported only here, for the first CUDA tensor."""
    from fairseq_sparse.ops import gpu

    return gpu


# --- rules for CPUs: the kernels compute in fp32 -------------------------------------------------


def _in_range(alpha) -> bool:
    """Return whether alpha, or every value of a tensor alpha, is in the range of the C kernels."""
    if torch.is_tensor(alpha):
        inside = (alpha >= _LEAST_ALPHA) & (alpha <= _LARGEST_ALPHA)
        return alpha.is_cpu and bool(inside.all())
    return _LEAST_ALPHA <= alpha <= _LARGEST_ALPHA


def _all_fp32(tensors: Tensors) -> bool:
    for x in tensors:
        if x is not None and x.dtype != torch.float32:
            return False
    return True


def _cpu_entmax(tensors: Tensors, alpha) -> bool:
    z = tensors[0]
    return z.dtype != torch.float64 and z.numel() > 0 and _in_range(alpha)


def _cpu_alpha_relu(tensors: Tensors, alpha: float, tau) -> bool:
    return _has_one_element(tau) and _cpu_entmax(tensors, alpha)


def _has_one_element(tau) -> bool:
    return not torch.is_tensor(tau) or tau.numel() == 1


def _cpu_entmax_gradient(tensors: Tensors, alpha: float) -> bool:
    # Grad mode is on where a second derivative is wanted.
    return _all_fp32(tensors) and _cpu_entmax(tensors, alpha) and not torch.is_grad_enabled()


def _cpu_log_probabilities(tensors: Tensors, alpha: float, tau=0.0, topk: int = 0) -> bool:
    wants_gradient = tensors[0].requires_grad and torch.is_grad_enabled()
    return not wants_gradient and topk == 0 and _cpu_alpha_relu(tensors, alpha, tau)


def _cpu_row_losses(tensors: Tensors, loss, tau) -> bool:
    return loss.topk == 0 and _cpu_entmax(tensors, loss.alpha)


def _cpu_linear_losses(tensors: Tensors, loss, tau) -> bool:
    return _shapes_fit(*tensors) and _cpu_row_losses(tensors, loss, tau)


def _shapes_fit(x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor) -> bool:
    """Return whether the inputs fit each other and are not empty; PyTorch handles all others."""
    return (
        x.numel() > 0
        and weight.numel() > 0
        and (x.dtype, x.device) == (weight.dtype, weight.device)
        and weight.shape[1:] == x.shape[1:]
        and (bias is None or bias.shape == weight.shape[:1])
        and target.dtype == torch.int64
    )


def _cpu_attention(tensors: Tensors, options) -> bool:
    query, key, value, _, bias = tensors
    weights = options.weights
    if options.alpha is not None or not (weights.name == "relu" or weights.has_alpha):
        return False
    queries, keys = query.size(2), key.size(2)
    if queries == 1:  # a step of generation
        plain = bias is None and not options.causal and options.dropout == 0
        if not plain or torch.is_grad_enabled():
            return False
    elif (
        options.need_weights
        or options.dropout >= 1
        or queries * keys < _LEAST_SCORES
        or (weights.name == "relu" and query.shape[:3].numel() * keys < _LEAST_RECTIFIED)
        or not (bias is None or bias.shape == (queries, keys))
    ):
        return False
    return (
        (weights.name == "relu" or _in_range(weights.alpha))
        and query.dtype == key.dtype == value.dtype == torch.float32
        and value.shape == key.shape
        and 0 < query.numel()
        and 0 < key.numel()
        and query.size(3) % _HEAD_WIDTHS == 0
        and _has_wide_vectors()
    )


@cache
def _has_wide_vectors() -> bool:
    return build.library().attention_lanes() >= _LEAST_LANES


def _cpu_dropout(tensors: Tensors, p: float) -> bool:
    return 0 <= p < 1 and _all_fp32(tensors)


# --- rules for GPUs ------------------------------------------------------------------------------


def _gpu_entmax(tensors: Tensors, alpha) -> bool:
    return True


def _gpu_entmax_gradient(tensors: Tensors, alpha: float) -> bool:
    return tensors[0].numel() > 0 and not torch.is_grad_enabled()


def _gpu_alpha_relu(tensors: Tensors, alpha: float, tau) -> bool:
    return _has_one_element(tau)


def _gpu_alpha_relu_gradient(tensors: Tensors) -> bool:
    return not torch.is_grad_enabled()


def _gpu_row_losses(tensors: Tensors, loss, tau) -> bool:
    return loss.topk == 0


def _gpu_linear_losses(tensors: Tensors, loss, tau) -> bool:
    return loss.topk == 0 and loss.alpha != 1 and _shapes_fit(*tensors)


def _gpu_attention(tensors: Tensors, options) -> bool:
    query, key, value, masked, bias = tensors
    if options.need_weights or options.alpha is not None or value.shape != key.shape:
        return False
    # These kernels work on blocks of queries, which does not suit the one query of generation.
    if query.size(2) == 1 or (bias is not None and not options.causal):
        return False
    if options.weights.name == "relu":
        return (
            query.dtype in _RELA_DTYPES
            and query.size(3) % _HEAD_WIDTHS == 0
            and query.size(3) <= _RELA_LARGEST_HEAD
        )
    length, alpha = query.size(2), options.weights.alpha
    return (
        options.weights.has_alpha
        and 1 < alpha <= 2
        and not (options.widen or options.dropout > 0)
        and masked is None
        and query.dtype in _RELA_DTYPES
        and query.shape == key.shape
        and query.size(3) in _ADASPLASH_HEADS
        and length >= _ADASPLASH_LEAST_LENGTH
        and (options.causal or length & (length - 1) == 0)  # else a power of two
        and _gpu().adasplash() is not None
    )


Rule = Callable[..., bool]
_ON_CPU: dict[str, Rule] = {
    "entmax": _cpu_entmax,
    "entmax_gradient": _cpu_entmax_gradient,
    "alpha_relu": _cpu_alpha_relu,
    "log_probabilities": _cpu_log_probabilities,
    "row_losses": _cpu_row_losses,
    "linear_losses": _cpu_linear_losses,
    "attention": _cpu_attention,
    "rms_norm": _all_fp32,
    "rms_norm_gradients": _all_fp32,
    "dropout": _cpu_dropout,
}
_ON_GPU: dict[str, Rule] = {
    "entmax": _gpu_entmax,
    "entmax_gradient": _gpu_entmax_gradient,
    "alpha_relu": _gpu_alpha_relu,
    "alpha_relu_gradient": _gpu_alpha_relu_gradient,
    "row_losses": _gpu_row_losses,
    "linear_losses": _gpu_linear_losses,
    "attention": _gpu_attention,
}
_RULES = {"cpu": _ON_CPU, "gpu": _ON_GPU}

try:
    _enter(os.environ.get(VARIABLE) or "auto")
except ValueError as error:
    raise ValueError(f"{VARIABLE}: {error}") from None
