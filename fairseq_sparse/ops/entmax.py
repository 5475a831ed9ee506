"""Mappings from logits to sparse probabilities: softmax, sparsemax, 1.5-entmax, alpha-entmax.

alpha-entmax (Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models", Eq. 8-10):

    entmax_alpha(z) = argmax_{p in simplex} <p, z> + H_alpha(p)
                    = [(alpha - 1) z - tau(z)]_+ ** (1 / (alpha - 1)),

where ``H_alpha(p) = sum(p - p ** alpha) / (alpha (alpha - 1))`` is Tsallis' entropy and tau(z) the
one threshold for which the result sums to 1. alpha -> 1 is softmax, alpha = 2 is sparsemax.

All functions here keep the dtype of the logits, compute in fp32 or better, give exact zeros
outside the support, give a row of zeros where every logit is -inf, and a row of NaN where a logit
is NaN or +inf.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops import cpu
from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.cpu.rows import can_solve, entmax_gradient
from fairseq_sparse.ops.gpu import usable
from fairseq_sparse.ops.operators import batch_first
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.threshold import (
    Alpha,
    entmax_probabilities,
    entmax_rows,
    positive_power,
)


def softmax(z: Tensor, dim: int = -1) -> Tensor:
    """Softmax, ``argmax_p <p, z> + H_1(p)``, with a row of zeros where every logit is -inf.

    Args:
        z: logits of any shape and floating dtype.
        dim: the dimension that is normalised.

    Returns:
        Probabilities in the shape and dtype of ``z``.
    """
    logits = at_least_fp32(z)
    masked = torch.isneginf(logits).all(dim, keepdim=True)
    # Both fills matter: the first keeps NaN out of the gradient, the second gives zeros.
    p = torch.softmax(logits.masked_fill(masked, 0.0), dim).masked_fill(masked, 0.0)
    return p.to(z.dtype)


def sparsemax(z: Tensor, dim: int = -1, topk: int = 0) -> Tensor:
    """Sparsemax (Martins & Astudillo 2016): the Euclidean projection of ``z`` onto the simplex.

    This is ``entmax(z, alpha=2)``. For the arguments see :func:`entmax15`.
    """
    return entmax_topk(z, 2.0, topk, dim)


def entmax15(z: Tensor, dim: int = -1, topk: int = 0) -> Tensor:
    """1.5-entmax, ``p = [z / 2 - tau]_+ ** 2``.

    Args:
        z: logits of any shape and floating dtype.
        dim: the dimension that is normalised.
        topk: if > 0, only the ``topk`` largest logits can be in the support, all others get
            probability 0. Equal to the exact mapping where that has at most ``topk`` nonzeros.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        ValueError: ``topk`` is negative.
    """
    return entmax_topk(z, 1.5, topk, dim)


def entmax(z: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
    """alpha-entmax for any alpha > 1, see the head of this file.

    Args:
        z: logits of any shape and floating dtype.
        alpha: a number, or a tensor that broadcasts over ``z`` with size 1 in ``dim`` (one alpha
            a row). A tensor gets its gradient (Correia, Niculae, Martins 2019, "Adaptively Sparse
            Transformers", Prop. 2). A row whose alpha is 1 or less is NaN where checking the
            tensor would stall a GPU. The number 1 is softmax.
        dim: the dimension that is normalised.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        ValueError: ``alpha`` is below 1, on a CPU also in a tensor (there 1 itself, too), not
            finite, or a tensor of a wrong shape.
        TypeError: ``z`` is not floating point, or ``alpha`` neither a number nor a tensor.
    """
    if not torch.is_tensor(alpha) and alpha == 1:
        return softmax(z, dim)
    return entmax_topk(z, alpha, topk=0, dim=dim)


def entmax_threshold(z: Tensor, alpha: float = 1.5, dim: int = -1) -> Tensor:
    """The threshold tau(z) of alpha-entmax: with it the probabilities sum to 1.

    Returns:
        A tensor of the shape of ``z`` without ``dim``, fp32 (fp64 for fp64 logits). It has
        no gradient.
    """
    check_alpha(alpha)
    check_logits(z)
    rows = z.detach().movedim(dim, -1)
    return entmax_rows(_flatten(rows), alpha, conjugate=False).tau.view(rows.shape[:-1])


def check_logits(z: Tensor) -> None:
    """Raise TypeError unless ``z`` is floating point."""
    if not z.is_floating_point():
        raise TypeError(f"logits must be floating point, got {z.dtype}: convert them, z.float()")


def check_alpha(alpha: float) -> None:
    """Raise an error unless ``alpha`` is a finite number above 1.

    Raises:
        TypeError: it is no number.
        ValueError: it is out of range.
    """
    if not isinstance(alpha, Real):
        raise TypeError(f"alpha must be a number, got {alpha!r}")
    if not 1.0 < alpha < float("inf"):
        raise ValueError(f"alpha must be a finite number above 1, got {alpha}")


def entmax_topk(z: Tensor, alpha: Alpha, topk: int, dim: int = -1) -> Tensor:
    """:func:`entmax` over the ``topk`` largest logits (0: all of them), see :func:`entmax15`."""
    if topk < 0:
        raise ValueError(f"topk must be 0 (exact) or a positive number, got {topk}")
    check_logits(z)
    if not torch.is_tensor(alpha):
        check_alpha(alpha)
    else:
        alpha = _checked_alphas(alpha)
    if torch.is_tensor(alpha) and alpha.dim() > 0:
        shape = list(z.shape)
        shape[dim] = 1
        try:
            alpha = alpha.expand(shape)
        except RuntimeError as error:
            raise ValueError(
                f"alpha of shape {tuple(alpha.shape)} does not broadcast to {tuple(shape)}, "
                f"one value for each row of z {tuple(z.shape)} along dimension {dim}"
            ) from error
    if not torch.is_grad_enabled():  # for a short row autograd takes as long as the rest
        return _probabilities(z, alpha, dim, topk)
    return _Entmax.apply(z, alpha, dim, topk)


def _checked_alphas(alpha: Tensor) -> Tensor:
    """Refuse a tensor with values of 1 or less, or make them NaN where that cannot be seen."""
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must be floating point, got {alpha.dtype}")
    if alpha.is_cpu and not is_captured(alpha):
        if (alpha <= 1).any():
            raise ValueError(f"alpha must exceed 1, its least value is {float(alpha.min())}")
        return alpha
    return alpha.masked_fill(alpha <= 1, float("nan"))


def _flatten(rows: Tensor) -> Tensor:
    """``[..., size]`` to ``[rows, size]``, also where size is 0."""
    return rows.reshape(rows.shape[:-1].numel(), rows.size(-1))


def _probabilities(z: Tensor, alpha: Alpha, dim: int, topk: int) -> Tensor:
    rows = z.movedim(dim, -1)
    row_alpha = alpha
    if torch.is_tensor(alpha):
        if alpha.dtype != torch.float64:
            row_alpha = alpha.float()  # 1 / (alpha - 1) in half precision is far off
        row_alpha = row_alpha.movedim(dim, -1) if alpha.dim() > 0 else row_alpha
        row_alpha = _flatten(row_alpha.expand([*rows.shape[:-1], 1]))
    p = entmax_probabilities(_flatten(rows), row_alpha, topk)
    return p.view(rows.shape).movedim(-1, dim)


class _Entmax(Function):
    @staticmethod
    def forward(z, alpha, dim, topk):
        return _probabilities(z, alpha, dim, topk)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, alpha, ctx.dim, _ = inputs
        ctx.alpha = None if torch.is_tensor(alpha) else alpha
        ctx.save_for_backward(output, *([alpha] if ctx.alpha is None else []))

    @staticmethod
    def vmap(info, in_dims, z, alpha, dim, topk):
        z = batch_first(z, in_dims[0], info.batch_size)
        if torch.is_tensor(alpha):
            alpha = batch_first(alpha, in_dims[1], info.batch_size)
            if alpha.dim() == 1:  # one for each problem of the batch
                alpha = alpha.view(-1, *[1] * (z.dim() - 1))
        return _Entmax.apply(z, alpha, dim if dim < 0 else dim + 1, topk), 0

    @staticmethod
    def backward(ctx, grad):
        p, *saved = ctx.saved_tensors
        kernel = _gradient_kernel(ctx, p, grad)
        if kernel is not None:
            rows = p.movedim(ctx.dim, -1)
            found = kernel(_flatten(rows), _flatten(grad.movedim(ctx.dim, -1)), ctx.alpha)
            return found.view(rows.shape).movedim(-1, ctx.dim), None, None, None
        dtype = p.dtype
        if dtype != torch.float64:
            p, grad = p.float(), grad.float()
        alpha = saved[0].to(p.dtype) if ctx.alpha is None else ctx.alpha
        support = p > 0
        grad = grad.masked_fill(~support, 0.0)
        # Jacobian diag(s) - s s^T / sum(s), s = p ** (2 - alpha) on the support (S2S, Prop. 1).
        s = positive_power(p, 2 - alpha)
        total = s.sum(ctx.dim, keepdim=True)
        share = s / total.masked_fill(total == 0, 1.0)
        centred = grad - (share * grad).sum(ctx.dim, keepdim=True)
        grad_z = (s * centred).to(dtype) if ctx.needs_input_grad[0] else None
        grad_alpha = None
        if ctx.needs_input_grad[1]:
            # d p / d alpha = (p - share) / (alpha - 1)^2 + (h - share sum(h)) / (alpha - 1),
            # h = -p log p. <grad, v - share sum(v)> = <centred, v> and <centred, s> = 0, so with
            # y = -(alpha - 1) log p, s = p exp(y), both terms are <centred, p (1 + y - exp(y))>
            # over (alpha - 1)^2, which is exact also where alpha is near 1.
            y = (1 - alpha) * torch.where(support, p, torch.ones_like(p)).log()
            rate = (centred * p * (y - torch.expm1(y))).sum(ctx.dim, keepdim=True)
            rate = rate / (alpha - 1) ** 2
            grad_alpha = rate.sum_to_size(alpha.shape).to(saved[0].dtype)
        return grad_z, grad_alpha, None, None


def _gradient_kernel(ctx, p: Tensor, grad: Tensor) -> Optional[Callable[..., Tensor]]:
    """What computes the gradient of rows, for one number alpha; None: PyTorch does."""
    # Grad mode is on where a second derivative is wanted.
    if ctx.alpha is None or p.numel() == 0 or torch.is_grad_enabled():
        return None
    if usable(p, grad):
        from fairseq_sparse.ops.gpu import entmax_gradient as kernels

        return kernels.entmax_gradient
    if cpu.usable(p, grad) and can_solve(ctx.alpha):
        return entmax_gradient
    return None
