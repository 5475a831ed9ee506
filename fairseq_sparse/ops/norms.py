"""RMSNorm and gated RMSNorm, which keep the unbounded outputs of rectified attention in range.

Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units", Eq. 4 and 5, over the last
dimension, of size d:

    RMSNorm(z) = g * z / RMS(z),    RMS(z) = sqrt(sum(z ** 2) / d + eps),
    gated:       sigmoid(w * z) * RMSNorm(z).

A row of zeros (null attention) stays exactly zero, and its gradient is finite. There is no second
derivative.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops import reference
from fairseq_sparse.ops.backends import choose
from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.precision import at_least_fp32

# Value used in the authors' code; bounds the gradient of rows near zero by 1 / sqrt(eps).
EPSILON = 1e-8


def rms_norm(z: Tensor, gain: Tensor, eps: float = EPSILON) -> Tensor:
    """Apply RMSNorm over the last dimension, see the docstring of this module.

    Args:
        z: ``[..., d]``, any floating dtype; computed in fp32 or better.
        gain: ``g``, ``[d]``.
        eps: added to the mean square.

    Returns:
        A tensor in the shape of ``z``, fp32 or better: half precision is the caller's choice.

    Raises:
        ValueError: the gain has another size.
    """
    return _apply(z, gain, None, eps)


def gated_rms_norm(z: Tensor, gain: Tensor, gate: Tensor, eps: float = EPSILON) -> Tensor:
    """Apply gated RMSNorm over the last dimension; see also :func:`rms_norm`.

    Args:
        gate: ``w``, ``[d]``.
    """
    return _apply(z, gain, gate, eps)


def _apply(z: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    for name, x in (("gain", gain), ("gate", gate)):
        if x is not None and x.shape != z.shape[-1:]:
            raise ValueError(f"{name} must be {list(z.shape[-1:])}, got {list(x.shape)}")
    if is_captured(z, gain, *([] if gate is None else [gate])):
        # PyTorch differentiates and transforms the formula by itself.
        return reference.rms_norm(*_widened(z, gain, gate), eps)
    if not torch.is_grad_enabled():  # for a few rows autograd takes as long as the rest
        return _normed(z, gain, gate, eps)
    return _RMSNorm.apply(z, gain, gate, eps)


def _normed(z: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    tensors = _widened(z, gain, gate)
    return choose("rms_norm", tensors).rms_norm(*tensors, eps)


def _widened(z: Tensor, *parameters: Optional[Tensor]) -> list[Optional[Tensor]]:
    """Return all in fp32, or in fp64 where one of them is fp64."""
    wide = [at_least_fp32(z), *(None if x is None else at_least_fp32(x) for x in parameters)]
    if any(x is not None and x.dtype != wide[0].dtype for x in wide):
        return [None if x is None else x.double() for x in wide]
    return wide


class _RMSNorm(Function):
    """Both norms as one function; autograd would save and traverse three times as many tensors."""

    @staticmethod
    def forward(ctx, z, gain, gate, eps):
        ctx.eps = eps
        ctx.save_for_backward(z, gain, gate)
        return _normed(z, gain, gate, eps)

    @staticmethod
    @first_order
    def backward(ctx, grad):
        z, gain, gate = ctx.saved_tensors
        x, g, w = _widened(z, gain, gate)
        backend = choose("rms_norm_gradients", (x, grad, g, w))
        grad_z, grad_gain, grad_gate = backend.rms_norm_gradients(x, grad, g, w, ctx.eps)
        grad_gate = None if gate is None else grad_gate.to(gate.dtype)
        return grad_z.to(z.dtype), grad_gain.to(gain.dtype), grad_gate, None
