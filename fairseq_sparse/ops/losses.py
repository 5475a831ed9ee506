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

The ``linear_`` losses take features and output weights in place of logits. For features ``x`` and
weights ``W``, whose logits are ``z = x W^T``, the gradients are ``(p - q) W`` and ``(p - q)^T x``;
the kernels make use of a sparse p, and do not keep the logits (on a CPU, p - q of the rows is kept
where more than a quarter of it is nonzero). Nothing is approximated.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops import reference
from fairseq_sparse.ops.backends import choose
from fairseq_sparse.ops.checks import Tau, check_logits
from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.mappings import entmax_rows
from fairseq_sparse.ops.operators import batch_first
from fairseq_sparse.ops.precision import as_autocast, at_least_fp32, without_autocast
from fairseq_sparse.ops.reference.alpha_relu import weights_and_base


def entmax_loss(
    z: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    topk: int = 0,
) -> Tensor:
    """Compute the alpha-entmax loss, see the docstring of this module.

    Args:
        z: logits ``[..., V]``, any floating dtype; the loss is computed in fp32 or better.
        target: class indices ``[...]``.
        alpha: a number >= 1. ``alpha=1`` is ``F.cross_entropy`` with its label smoothing, which
            lacks the constant ``-H(q)``.
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
    return _fenchel_young_loss(z, target, loss)


def alpha_relu_loss(
    z: Tensor,
    target: Tensor,
    tau: Tau,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Compute the alpha-ReLU loss, see the docstring of this module.

    Args:
        tau: the threshold of ``(alpha - 1) * z``, a finite number or a tensor with one element.
        alpha: a number > 1.

    The other arguments, the result and the errors are those of :func:`entmax_loss`.
    """
    loss = FenchelYoungLoss(alpha, tau, label_smoothing, ignore_index, reduction)
    return _fenchel_young_loss(z, target, loss)


def linear_entmax_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    bias: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    topk: int = 0,
) -> Tensor:
    """Compute ``entmax_loss(F.linear(features, weight, bias), target, ...)`` in one step.

    Args:
        features: ``[..., d]``, any floating dtype.
        weight: ``[V, d]``.
        target: class indices ``[...]``.
        bias: ``[V]``.

    The other arguments, the result and the errors are those of
    :func:`fairseq_sparse.ops.entmax_loss`.
    """
    loss = FenchelYoungLoss(alpha, None, label_smoothing, ignore_index, reduction, topk)
    return _linear_fenchel_young_loss(features, weight, bias, target, loss)


def linear_alpha_relu_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    tau: Tau,
    alpha: float = 1.5,
    bias: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Compute ``alpha_relu_loss(F.linear(features, weight, bias), target, tau, ...)`` in one step.

    For the arguments see :func:`linear_entmax_loss` and
    :func:`fairseq_sparse.ops.alpha_relu_loss`.
    """
    loss = FenchelYoungLoss(alpha, tau, label_smoothing, ignore_index, reduction)
    return _linear_fenchel_young_loss(features, weight, bias, target, loss)


def _fenchel_young_loss(z: Tensor, target: Tensor, loss: FenchelYoungLoss) -> Tensor:
    """Compute the loss of logits ``[..., V]``, of any mapping and on any device."""
    check_logits(z)
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
        return loss.reduced(losses, target)
    backend = choose("row_losses", (rows, labels), loss=loss, tau=loss.tau)
    if backend.NAME == "reference":
        # PyTorch sees a tensor only if it is an argument of its own.
        options = loss._replace(tau=0.0) if torch.is_tensor(loss.tau) else loss
        losses, _ = _RowLosses.apply(rows, labels, loss.tau, options)
    else:
        losses = backend.row_losses(rows, labels, loss)
    return loss.reduced(losses, target)


def _linear_fenchel_young_loss(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    loss: FenchelYoungLoss,
) -> Tensor:
    """Compute the loss of the logits ``F.linear(features, weight, bias)``, of any mapping."""
    if not torch.is_grad_enabled():
        # Without this, a Function would prepare gradients although grad mode is off.
        features, weight = features.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
    # Convert to the dtype that autocast would multiply in; gradients pass through the conversion.
    x, w = as_autocast(features.reshape(-1, features.size(-1)), weight)
    backend = choose("linear_losses", (x, w, bias, target), loss=loss, tau=loss.tau)
    if backend.NAME == "reference":  # separate product and loss; the loss chooses again
        return _fenchel_young_loss(F.linear(features, weight, bias), target, loss)
    loss = loss.checked((*features.shape[:-1], weight.size(0)), target)
    with without_autocast(x):
        losses = backend.linear_losses(x, w, bias, target.reshape(-1), loss)
    return loss.reduced(losses, target)


class _RowLosses(Function):
    """The losses of rows in PyTorch, except for the search of alpha-entmax. The second result,
    ``p - q``, is kept for the gradient."""

    @staticmethod
    def forward(z, target, tau, loss):
        dtype, z = z.dtype, at_least_fp32(z)
        if tau is None:
            p, _, conjugate, shift = entmax_rows(z, loss.alpha, loss.topk)
        else:
            p, base = weights_and_base(z, tau, loss.alpha)
            conjugate = (p * base).sum(-1) / loss.alpha  # p ** alpha = p * p ** (alpha - 1)
            shift = tau / (loss.alpha - 1)
        counts = loss.counts(target)
        gold, mean = loss.logits_of_target(z, target)
        losses = loss.losses(counts, conjugate, shift, gold, mean, z.size(-1))
        if loss.label_smoothing > 0:
            p = p - loss.label_smoothing / p.size(-1)
        return losses, reference.residual(p, target, counts, loss.label_smoothing).to(dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, grad, of_residual):
        # The residual, of which the gradient is a multiple, is an output so that a derivative of
        # the gradient ends up here, also under torch.func. torch.compile, which refuses second
        # derivatives itself, passes a gradient for every output.
        if of_residual is not None and not torch.compiler.is_compiling():
            raise RuntimeError("the losses of this package have no second derivative")
        if grad is None:
            return None, None, None, None
        (residual,) = ctx.saved_tensors
        # A scaled loss can have a grad that fp16 cannot hold, though it can hold the product.
        return (residual * grad.unsqueeze(-1)).to(residual.dtype), None, None, None

    @staticmethod
    def vmap(info, in_dims, z, target, tau, loss):
        if torch.is_tensor(tau) and in_dims[2] is not None:
            raise NotImplementedError("vmap over tau of the alpha-ReLU loss")
        z = batch_first(z, in_dims[0], info.batch_size)
        target = batch_first(target, in_dims[1], info.batch_size)
        losses, residual = _RowLosses.apply(z.flatten(0, 1), target.flatten(), tau, loss)
        return (losses.view(target.shape), residual.view(z.shape)), (0, 0)
