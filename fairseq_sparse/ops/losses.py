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

from fairseq_sparse.ops.alpha_relu import Tau, alpha_relu_weights
from fairseq_sparse.ops.cpu.products import SparseRows
from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu import usable
from fairseq_sparse.ops.operators import batch_first
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
    loss = FenchelYoungLoss(alpha, None, label_smoothing, ignore_index, reduction, topk)
    return loss_of_logits(z, target, loss)


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
    loss = FenchelYoungLoss(alpha, tau, label_smoothing, ignore_index, reduction)
    return loss_of_logits(z, target, loss)


def loss_of_logits(z: Tensor, target: Tensor, loss: FenchelYoungLoss) -> Tensor:
    """The loss of logits ``[..., V]``, of any mapping and on any device."""
    loss = loss.checked(tuple(z.shape), target)
    rows, labels = z.reshape(-1, z.size(-1)), target.reshape(-1)
    if loss.alpha == 1:
        losses = F.cross_entropy(
            at_least_fp32(rows),
            labels,
            ignore_index=loss.ignore_index,
            reduction="none",
            label_smoothing=loss.label_smoothing,
        )
    elif loss.has_compiled_kernels(rows, labels):
        losses = _CompiledLoss.apply(rows, labels, loss)
    elif loss.topk == 0 and usable(rows, labels):
        from fairseq_sparse.ops.gpu.losses import losses_of_rows

        losses = losses_of_rows(rows, labels, loss)
    else:
        # A tensor must be an argument of its own for PyTorch to see it.
        options = loss._replace(tau=0.0) if torch.is_tensor(loss.tau) else loss
        losses, _ = _Loss.apply(rows, labels, loss.tau, options)
    return loss.reduced(losses, target)


class _Loss(Function):
    """In PyTorch alone. The second result, ``p - q``, is kept for the gradient."""

    @staticmethod
    def forward(z, target, tau, loss):
        dtype, z = z.dtype, at_least_fp32(z)
        if tau is None:
            p, _, conjugate, shift = entmax_rows(z, loss.alpha, loss.topk)
        else:
            parts = []
            for rows in row_chunks(z):
                weights, above = alpha_relu_weights(z[rows], tau, loss.alpha)
                # p ** alpha = p * p ** (alpha - 1)
                parts.append((weights, (weights * above).sum(-1) / loss.alpha))
            p, conjugate = map(torch.cat, zip(*parts, strict=True)) if parts else (z, z.sum(-1))
            shift = tau / (loss.alpha - 1)
        gold, mean = loss.logits_of_target(z, target)
        losses = loss.losses(conjugate, shift, gold, mean, z.size(-1))
        counts = loss.counts(target)
        if loss.label_smoothing > 0:
            p = p - loss.label_smoothing / p.size(-1)
        residual = less_target(p, target, counts, loss.label_smoothing).to(dtype)
        return losses.masked_fill(~counts, 0.0), residual

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _):
        (residual,) = ctx.saved_tensors
        # A scaled loss can have a grad that fp16 cannot hold, though it can hold the product.
        return (residual * grad.unsqueeze(-1)).to(residual.dtype), None, None, None

    @staticmethod
    def vmap(info, in_dims, z, target, tau, loss):
        if torch.is_tensor(tau) and in_dims[2] is not None:
            raise NotImplementedError("vmap over tau of the alpha-ReLU loss")
        z = batch_first(z, in_dims[0], info.batch_size)
        target = batch_first(target, in_dims[1], info.batch_size)
        losses, residual = _Loss.apply(z.flatten(0, 1), target.flatten(), tau, loss)
        return (losses.view(target.shape), residual.view(z.shape)), (0, 0)


def less_target(p: Tensor, target: Tensor, counts: Tensor, label_smoothing: float) -> Tensor:
    """``p - (1 - label_smoothing) e_target`` in place, 0 in the rows that do not count."""
    ignored = ~counts.unsqueeze(-1)
    label = target.unsqueeze(-1).masked_fill(ignored, 0)
    p.scatter_add_(-1, label, p.new_full(label.shape, label_smoothing - 1))
    return p.masked_fill_(ignored, 0.0)


class _CompiledLoss(Function):
    """By the compiled kernels. Only the nonzeros of ``p - e_y`` are kept for the gradient."""

    @staticmethod
    def forward(ctx, z, target, loss):
        counts = loss.counts(target)
        logits = z.float().contiguous()
        solved, shift = loss.solve(logits)
        gold, mean = loss.logits_of_target(logits, target)
        losses = loss.losses(solved.conjugate, shift, gold, mean, z.size(-1))
        if ctx.needs_input_grad[0]:
            residual = solved.residual(target, 1 - loss.label_smoothing, counts)
            ctx.save_for_backward(counts, *residual[:-1])
            ctx.dtype, ctx.size = z.dtype, residual.size
            ctx.smoothing = loss.label_smoothing / residual.size
        return losses.float().masked_fill(~counts, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        counts, *entries = ctx.saved_tensors
        scale = grad.float().masked_fill(~counts, 0.0)
        residual = SparseRows(*entries, ctx.size)
        return residual.dense(scale, -ctx.smoothing).to(ctx.dtype), None, None
