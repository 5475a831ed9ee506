"""RMSNorm and gated RMSNorm over the last dimension, and their gradients."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.precision import without_autocast


def rms_norm(x: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    """Return ``gain * x / RMS(x)``, times ``sigmoid(gate * x)`` if there is a gate."""
    normed = x * _inverse_rms(x, eps) * gain
    return normed if gate is None else torch.sigmoid(gate * x) * normed


def rms_norm_gradients(
    x: Tensor, grad: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Return the gradients of ``y = s * n * gain`` with n = x / RMS(x) and s = sigmoid(gate * x),
    or 1 without a gate, with respect to x, gain and gate."""
    inverse = _inverse_rms(x, eps)
    grad_gate = grad_gate_input = None
    if gate is not None:
        opened = torch.mul(x, gate).sigmoid_()
        grad = grad * opened
    grad_x = grad * x
    with without_autocast(x):
        along = grad_x @ gain
    along = along.unsqueeze(-1) * inverse**2 / x.size(-1)  # through RMS(x), [..., 1]
    grad_n = grad_x.mul_(inverse)
    grad_gain = grad_n.reshape(-1, x.size(-1)).sum(0)
    if gate is not None:
        # d s = s (1 - s), of which s is in grad_n already
        grad_gate_input = grad_n.mul_(gain).mul_(opened.neg_().add_(1))
        grad_gate = torch.mul(grad_gate_input, x, out=opened).reshape(-1, x.size(-1)).sum(0)
    grad_z = (grad * gain).addcmul_(x, along, value=-1).mul_(inverse)
    if gate is not None:
        grad_z.addcmul_(grad_gate_input, gate)
    return grad_z, grad_gain, grad_gate


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return ``1 / RMS(x)``, ``[..., 1]``."""
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()
