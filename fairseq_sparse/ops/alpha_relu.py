"""alpha-ReLU: alpha-entmax with a threshold that is a constant of the model.

Tezekbayev, Nikoulina, Galle, Assylbekov, "Speeding Up Entmax", Eq. 2:

    p = [(alpha - 1) z - tau]_+ ** (1 / (alpha - 1)).

Each coordinate is mapped by itself: there is no maximum, no sort and no normaliser, and the result
is not a distribution, though training with its loss brings the sum near 1 (self-normalisation).
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Union

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.cpu.rows import solve_alpha_relu, solves
from fairseq_sparse.ops.entmax import check_alpha, check_logits
from fairseq_sparse.ops.gpu import usable
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.threshold import positive_power

Tau = Union[float, Tensor]


def alpha_relu(z: Tensor, tau: Tau, alpha: float = 1.5) -> Tensor:
    """alpha-ReLU, see the head of this file.

    Args:
        z: logits of any shape and floating dtype; computed in fp32 or better.
        tau: the threshold of ``(alpha - 1) * z``, a finite number or a tensor that broadcasts.
            No gradient flows to it.
        alpha: a number > 1.

    Returns:
        Non-negative weights in the shape and dtype of ``z``, exactly 0 where
        ``(alpha - 1) z <= tau``. NaN stays NaN.

    Raises:
        ValueError: ``alpha`` <= 1 or not finite, ``tau`` a number that is not finite.
        TypeError: ``z`` is not floating point, ``alpha`` or ``tau`` no number.
    """
    check_logits(z)
    check_alpha(alpha)
    check_tau(tau)
    return _AlphaReLU.apply(z, tau, alpha)


def check_tau(tau: Tau) -> None:
    """Raise an error if ``tau`` is no number, or not finite; tensors are not looked into."""
    if torch.is_tensor(tau):
        return
    if not isinstance(tau, Real):
        raise TypeError(f"tau must be a number or a tensor, got {tau!r}")
    if not math.isfinite(tau):
        raise ValueError(f"tau must be a finite number, got {tau}")


def alpha_relu_weights(z: Tensor, tau: Tau, alpha: float) -> tuple[Tensor, Tensor]:
    """``p`` and ``p ** (alpha - 1) = [(alpha - 1) z - tau]_+``, in fp32 or better, no gradient."""
    logits = at_least_fp32(z)
    above = ((alpha - 1) * logits - tau).clamp(min=0)
    return positive_power(above, 1 / (alpha - 1)), above


class _AlphaReLU(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z, tau, alpha):
        tensors = (z, tau) if torch.is_tensor(tau) else (z,)
        one_tau = not torch.is_tensor(tau) or tau.numel() == 1
        for_kernels = one_tau and not is_captured(*tensors)
        if for_kernels and usable(z):
            from fairseq_sparse.ops.gpu import alpha_relu as kernels

            return kernels.alpha_relu_weights(z, tau, alpha)
        if for_kernels and solves(z, alpha):
            rows = at_least_fp32(z).reshape(-1, z.shape[-1] if z.dim() > 0 else 1).contiguous()
            p = solve_alpha_relu(rows, float(tau), alpha).probabilities()
            return p.view(z.shape).to(z.dtype)
        return alpha_relu_weights(z, tau, alpha)[0].to(z.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.alpha = inputs[2]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (p,) = ctx.saved_tensors
        # Grad mode is on where a second derivative is wanted.
        if usable(p, grad) and not torch.is_grad_enabled():
            from fairseq_sparse.ops.gpu import alpha_relu as kernels

            return kernels.alpha_relu_gradient(p, grad, ctx.alpha), None, None
        # Jacobian diag(p ** (2 - alpha)) on the support.
        slope = positive_power(at_least_fp32(p), 2 - ctx.alpha)
        return (slope * grad.masked_fill(p == 0, 0.0)).to(p.dtype), None, None
