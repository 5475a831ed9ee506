"""Fenchel-Young losses of the sparse mappings. Each has the gradient ``p - q``.

alpha-entmax (Peters et al. 2019, Eq. 11), with p = entmax_alpha(z) and target distribution q:

    loss = <p - q, z> + H_alpha(p) - H_alpha(q).

alpha-ReLU (Tezekbayev et al., "Speeding Up Entmax", final version, Eq. 3), with p = alpha_relu(z):

    loss = <p - q, z - tau / (alpha - 1)> + (1 - sum p^alpha) / (alpha (alpha - 1)) - H(q)
         = sum p^alpha / alpha - <q, z - tau / (alpha - 1)> + sum q^alpha / (alpha (alpha - 1)).

Its entropy is ``(1 - sum p^alpha) / (alpha (alpha - 1))``; with Tsallis' ``sum(p - p^alpha)``,
which differs because alpha-ReLU does not sum to 1, the value would not match the gradient.

q is the one-hot target, or with label smoothing ``(1 - eps) e_y + eps / V`` (Peters & Martins
2021). Both losses are >= 0 and 0 only where p = q.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.alpha_relu import Tau, alpha_relu_weights, check_tau
from fairseq_sparse.ops.entmax import check_alpha
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.threshold import entmax_rows, row_chunks


def entmax_loss(
    z: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    topk: int = 0,
) -> Tensor:
    """The alpha-entmax loss, see the head of this file.

    Args:
        z: logits ``[..., V]``, any floating dtype; the loss is computed in fp32 or better.
        target: class indices ``[...]``.
        alpha: a number >= 1. ``alpha=1`` is ``F.cross_entropy``, its label smoothing included
            (that one lacks the constant ``-H(q)``).
        label_smoothing: eps in [0, 1].
        ignore_index: targets of this value have loss 0 and gradient 0.
        reduction: ``none`` (shape ``[...]``), ``sum``, or ``mean`` over the targets that are not
            ignored (0 if there are none).
        topk: if > 0, p is :func:`entmax15`'s k-limited mapping. With label smoothing the loss can
            then be below 0, since q has more than ``topk`` nonzeros.

    Returns:
        The loss in nats, fp32 (fp64 for fp64 logits).

    Raises:
        ValueError: an argument is out of range or the shapes do not fit.
    """
    _check(z, target, label_smoothing, reduction)
    if topk < 0:
        raise ValueError(f"topk must be 0 (exact) or a positive number, got {topk}")
    rows, labels = z.reshape(-1, z.size(-1)), target.reshape(-1)
    if alpha == 1:
        losses = F.cross_entropy(
            at_least_fp32(rows),
            labels,
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        )
    else:
        check_alpha(alpha)
        losses = _EntmaxLoss.apply(rows, labels, alpha, label_smoothing, ignore_index, topk)
    return _reduce(losses, target, ignore_index, reduction)


def alpha_relu_loss(
    z: Tensor,
    target: Tensor,
    tau: Tau,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The alpha-ReLU loss, see the head of this file.

    Args:
        tau: the threshold of ``(alpha - 1) * z``, a finite number or a tensor with one element.
        alpha: a number > 1.

    The other arguments, the result and the errors are those of :func:`entmax_loss`.
    """
    _check(z, target, label_smoothing, reduction)
    check_alpha(alpha)
    check_tau(tau)
    if torch.is_tensor(tau):
        if tau.numel() != 1:
            raise ValueError(f"tau must have one element, got shape {tuple(tau.shape)}")
        tau = tau.reshape(())
    rows, labels = z.reshape(-1, z.size(-1)), target.reshape(-1)
    losses = _AlphaReLULoss.apply(rows, labels, tau, alpha, label_smoothing, ignore_index)
    return _reduce(losses, target, ignore_index, reduction)


def _check(z: Tensor, target: Tensor, label_smoothing: float, reduction: str) -> None:
    if z.dim() == 0 or z.shape[:-1] != target.shape:
        raise ValueError(
            f"logits {tuple(z.shape)} need a target of shape {tuple(z.shape[:-1])}, "
            f"got {tuple(target.shape)}"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing}")
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction must be none, sum or mean, got {reduction!r}")


def _reduce(losses: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    if reduction == "none":
        return losses.view(target.shape)
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (target != ignore_index).sum().clamp(min=1)


class _EntmaxLoss(Function):
    @staticmethod
    def forward(ctx, z, target, alpha, label_smoothing, ignore_index, topk):
        dtype, z = z.dtype, at_least_fp32(z)
        rows = entmax_rows(z, alpha, topk)
        # conjugate = max_p <p, z> + H_alpha(p) takes the place of cross-entropy's logsumexp.
        expected = _expected_logit(z, target, rows.maximum, label_smoothing, ignore_index)
        negative_entropy = (_power_sum(z, alpha, label_smoothing) - 1) / (alpha * (alpha - 1))
        losses = rows.conjugate - expected + negative_entropy
        if topk == 0 or label_smoothing == 0:
            losses = losses.clamp(min=0)  # rounding
        _save_residual(ctx, rows.p, dtype, target, label_smoothing, ignore_index)
        return losses.masked_fill(target == ignore_index, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _residual_gradient(ctx, grad), None, None, None, None, None


class _AlphaReLULoss(Function):
    @staticmethod
    def forward(ctx, z, target, tau, alpha, label_smoothing, ignore_index):
        dtype, z = z.dtype, at_least_fp32(z)
        p = torch.empty_like(z, memory_format=torch.contiguous_format)
        power_sum = z.new_empty(z.size(0))
        for rows in row_chunks(z):
            weights, above = alpha_relu_weights(z[rows], tau, alpha)
            p[rows] = weights
            power_sum[rows] = (weights * above).sum(-1)  # p ** alpha = p * p ** (alpha - 1)
        shift = tau / (alpha - 1)
        expected = _expected_logit(z, target, shift, label_smoothing, ignore_index)
        constant = _power_sum(z, alpha, label_smoothing) / (alpha * (alpha - 1))
        losses = (power_sum / alpha - expected + constant).clamp(min=0)  # rounding
        _save_residual(ctx, p, dtype, target, label_smoothing, ignore_index)
        return losses.masked_fill(target == ignore_index, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _residual_gradient(ctx, grad), None, None, None, None, None


def _expected_logit(
    z: Tensor, target: Tensor, shift: Tau, label_smoothing: float, ignore_index: int
) -> Tensor:
    """``<q, z - shift>`` for each row."""
    if label_smoothing == 1:
        return z.mean(-1) - shift  # 0 * z_y would be NaN where z_y is -inf
    label = target.masked_fill(target == ignore_index, 0).unsqueeze(-1)
    expected = z.gather(-1, label).squeeze(-1) - shift
    if label_smoothing > 0:
        mean = z.mean(-1) - shift
        expected = (1 - label_smoothing) * expected + label_smoothing * mean
    return expected


def _power_sum(z: Tensor, alpha: float, label_smoothing: float) -> float:
    """``sum(q ** alpha)`` of the smoothed target."""
    size = z.size(-1)
    rest = label_smoothing / size
    return (1 - label_smoothing + rest) ** alpha + (size - 1) * rest**alpha


def _save_residual(
    ctx, p: Tensor, dtype: torch.dtype, target: Tensor, label_smoothing: float, ignore_index: int
) -> None:
    """Turn p into ``p - q`` in place, 0 in the rows that are ignored, and keep it as ``dtype``."""
    ignored = (target == ignore_index).unsqueeze(-1)
    if label_smoothing > 0:
        p.sub_(label_smoothing / p.size(-1))
    label = target.unsqueeze(-1).masked_fill(ignored, 0)
    p.scatter_add_(-1, label, torch.full_like(label, label_smoothing - 1, dtype=p.dtype))
    ctx.save_for_backward(p.masked_fill_(ignored, 0.0).to(dtype))


def _residual_gradient(ctx, grad: Tensor) -> Tensor:
    (residual,) = ctx.saved_tensors
    # A scaled loss can have a grad that fp16 cannot hold, though it can hold the product.
    return (residual * grad.unsqueeze(-1)).to(residual.dtype)
