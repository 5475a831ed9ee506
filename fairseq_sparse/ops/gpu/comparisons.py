"""The small inputs on which the kernels and the reference are compared; see ``verification.py``.

Each function has the name of a kernel. It gives inputs to ``op``, the kernel or its reference, and
returns the results. ``cast`` puts them on the device, in the dtype of the kernel; for the reference
the same rounded numbers are in fp64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.reference.attention import RECTIFIED
from fairseq_sparse.ops.reference.rows import probabilities, solve_entmax

Cast = Callable[[Tensor], Tensor]
_ROWS, _IGNORED = 12, -100
# Normal logits of these scales: from a support of all entries to one of a single entry.
_SCALES = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0)


def entmax(
    op: Callable, cast: Cast, size: int, alpha: float, per_row: bool
) -> tuple[Tensor, Tensor]:
    z = cast(logits(size))
    row_alpha = torch.linspace(2.4, 1.1, _ROWS, dtype=torch.float64, device=z.device).unsqueeze(1)
    return op(z, row_alpha if per_row else None, alpha, "newton", 0, False)


def entmax_backward(op: Callable, cast: Cast, size: int, alpha: float) -> tuple[Tensor]:
    p = cast(solve_entmax(logits(size).double(), alpha)[1])
    return (op(p, cast(_normal(1, _ROWS, size)), alpha),)


def row_loss(
    op: Callable, cast: Cast, size: int, alpha: float, has_tau: bool, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    z, target, tau = _loss_inputs(cast, size, has_tau)
    losses, solution = op(z, target, tau, alpha, label_smoothing, _IGNORED, "newton", 0)
    return losses, probabilities(z.double(), solution, alpha)


def row_loss_backward(
    op: Callable, cast: Cast, size: int, alpha: float, label_smoothing: float
) -> tuple[Tensor]:
    z, target, _ = _loss_inputs(cast, size, False)
    solution, _ = solve_entmax(z.double(), alpha)
    grad = torch.linspace(-2, 3, _ROWS, dtype=torch.float32, device=z.device)
    return (op(grad, z, target, solution, alpha, label_smoothing, _IGNORED),)


def residual_(
    op: Callable, cast: Cast, size: int, alpha: float, has_tau: bool, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    z, target, tau = _loss_inputs(cast, size, has_tau)
    return op(z, target, RowLoss(alpha, tau, label_smoothing, _IGNORED), "newton", 0), z


def attention(op: Callable, cast: Cast, *form: int) -> tuple[Tensor, ...]:
    tensors, options = _heads(cast, *form)
    context, _ = op(*tensors, *options)
    return _relative(context.to(tensors[0].dtype))


def attention_backward(
    op: Callable, cast: Cast, queries: int, keys: int, head_dim: int, *form: bool
) -> tuple[Tensor, ...]:
    tensors, options = _heads(cast, queries, keys, head_dim, *form)
    grad = cast(_normal(2, queries, 2, 2, head_dim))
    grad = grad.float() if grad.dtype == torch.float16 else grad
    solution = torch.empty(0, dtype=torch.float64, device=grad.device)
    return _relative(*op(grad, *tensors, solution, *options))


def _heads(
    cast: Cast, queries: int, keys: int, head_dim: int, has_masked: bool, causal: bool, drops: bool
) -> tuple[list[Optional[Tensor]], tuple]:
    """Return query, key, value, masked, bias and seed, and the other arguments of attention."""
    tensors = [
        cast(_normal(seed, 2, 2, length, head_dim))
        for seed, length in enumerate((queries, keys, keys), 3)
    ]
    masked = _normal(6, 2, keys) > 0.3
    masked[1] = True
    seed = torch.tensor(1 << 61 | 7, device="cpu")
    tensors += [masked.to(tensors[0].device) if has_masked else None, None, seed if drops else None]
    return tensors, (RECTIFIED, head_dim**-0.5, causal, 0.1 * drops)


def _relative(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor in units of its largest entry, and these: the error of a sum is that of
    its terms."""
    largest = [x.abs().amax() for x in tensors]
    return *(x / unit for x, unit in zip(tensors, largest, strict=True)), *largest


def _loss_inputs(cast: Cast, size: int, has_tau: bool) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Return logits, targets, one of them ignored, and the threshold of alpha-ReLU."""
    z = cast(logits(size))
    target = torch.arange(_ROWS, dtype=torch.int64, device=z.device) * 5 % size
    target[3] = _IGNORED
    return z, target, torch.tensor(0.3, dtype=torch.float64, device=z.device) if has_tau else None


def logits(size: int) -> Tensor:
    """Return rows ``[12, size]``: random ones, and those at the edge of what is allowed."""
    z = _normal(0, _ROWS, size)
    z[: len(_SCALES)] *= torch.tensor(_SCALES, dtype=z.dtype, device="cpu").unsqueeze(1)
    z[7] = 2.5
    z[8] = 1e4 * z[8].sign()
    z[9, : size - 1] = -torch.inf
    z[10] = -torch.inf
    z[11, size // 2] = torch.nan
    return z


def _normal(seed: int, *shape: int) -> Tensor:
    """Return normal numbers of a generator of their own."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
