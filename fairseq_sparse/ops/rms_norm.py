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
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops import cpu
from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.cpu import norms as kernels
from fairseq_sparse.ops.precision import at_least_fp32, without_autocast

# Value used in the authors' code; bounds the gradient of rows near zero by 1 / sqrt(eps).
EPSILON = 1e-8


def rms_norm(z: Tensor, gain: Tensor, eps: float = EPSILON) -> Tensor:
    """RMSNorm over the last dimension, see the head of this file.

    Args:
        z: ``[..., d]``, any floating dtype; computed in fp32 or better.
        gain: ``g``, ``[d]``.
        eps: added to the mean square.

    Returns:
        A tensor in the shape of ``z``, fp32 or better: half precision is the caller's choice.
    """
    return _apply(z, gain, None, eps)


def gated_rms_norm(z: Tensor, gain: Tensor, gate: Tensor, eps: float = EPSILON) -> Tensor:
    """Gated RMSNorm over the last dimension, see the head of this file and :func:`rms_norm`.

    Args:
        gate: ``w``, ``[d]``.
    """
    return _apply(z, gain, gate, eps)


def _apply(z: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    if is_captured(z, gain, *([] if gate is None else [gate])):
        return _composed(z, gain, gate, eps)
    if not torch.is_grad_enabled():  # for a few rows autograd takes as long as the rest
        return _normed(z, gain, gate, eps)
    return _GatedRMSNorm.apply(z, gain, gate, eps)


def _composed(z: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    """Compute the norm by operators that PyTorch can differentiate and transform by itself."""
    x, g, w = (None if y is None else at_least_fp32(y) for y in (z, gain, gate))
    normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * g
    return normed if w is None else torch.sigmoid(w * x) * normed


def _normed(z: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    x, g, w = (None if y is None else at_least_fp32(y) for y in (z, gain, gate))
    if cpu.usable(x, g, w):
        return kernels.rms_norm(x, g, w, eps)
    if w is None:
        return (x * _inverse_rms(x, eps)).mul_(g)
    return torch.mul(x, w).sigmoid_().mul_(x).mul_(_inverse_rms(x, eps)).mul_(g)


class _GatedRMSNorm(Function):
    """In one function, because autograd would keep and pass over three times as many tensors."""

    @staticmethod
    def forward(ctx, z, gain, gate, eps):
        ctx.eps = eps
        ctx.save_for_backward(z, gain, gate)
        return _normed(z, gain, gate, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        z, gain, gate = ctx.saved_tensors
        x, g, w = (None if y is None else at_least_fp32(y) for y in (z, gain, gate))
        gradients = _gradients
        if cpu.usable(x, grad, g, w):
            gradients = kernels.rms_norm_gradients
        grad_z, grad_gain, grad_gate = gradients(x, grad, g, w, ctx.eps)
        grad_gate = None if gate is None else grad_gate.to(gate.dtype)
        return grad_z.to(z.dtype), grad_gain.to(gain.dtype), grad_gate, None


def _gradients(
    x: Tensor, grad: Tensor, g: Tensor, w: Optional[Tensor], eps: float
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """The gradients of ``y = s * n * g`` with n = x / RMS(x) and s = sigmoid(w * x), or 1 without
    a gate, with respect to x, g and w."""
    inverse = _inverse_rms(x, eps)
    grad_gate = grad_gate_input = None
    if w is not None:
        opened = torch.mul(x, w).sigmoid_()
        grad = grad * opened
    grad_x = grad * x
    with without_autocast(x):
        along = grad_x @ g
    along = along.unsqueeze(-1) * inverse**2 / x.size(-1)  # through RMS(x), [..., 1]
    grad_n = grad_x.mul_(inverse)
    grad_gain = grad_n.reshape(-1, x.size(-1)).sum(0)
    if w is not None:
        # d s = s (1 - s), of which s is in grad_n already
        grad_gate_input = grad_n.mul_(g).mul_(opened.neg_().add_(1))
        grad_gate = torch.mul(grad_gate_input, x, out=opened).reshape(-1, x.size(-1)).sum(0)
    grad_z = (grad * g).addcmul_(x, along, value=-1).mul_(inverse)
    if w is not None:
        grad_z.addcmul_(grad_gate_input, w)
    return grad_z, grad_gain, grad_gate


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / RMS(x), ``[..., 1]``."""
    return (torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / x.size(-1) + eps).rsqrt()
