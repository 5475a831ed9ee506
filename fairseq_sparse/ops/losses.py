"""Fenchel-Young losses of the sparse mappings. Each has the gradient ``p - q``.

alpha-entmax (Peters et al. 2019, Eq. 11), with p = entmax_alpha(z) and target distribution q:

    loss = <p - q, z> + H_alpha(p) - H_alpha(q).

alpha-ReLU (Tezekbayev et al., "Speeding Up Entmax", final version, Eq. 3), with p = alpha_relu(z):

    loss = <p - q, z - tau / (alpha - 1)> + (1 - sum p^alpha) / (alpha (alpha - 1)) - H(q)
         = sum p^alpha / alpha - <q, z - tau / (alpha - 1)> + sum q^alpha / (alpha (alpha - 1)).

Its entropy is ``(1 - sum p^alpha) / (alpha (alpha - 1))``; with Tsallis' ``sum(p - p^alpha)``,
which differs because alpha-ReLU does not sum to 1, the value would not match the gradient.

q is the one-hot target, or with label smoothing ``(1 - eps) e_y + eps u`` (Peters & Martins 2021),
where the prior u is uniform or given. Both losses are >= 0 and 0 only where p = q.

The ``linear_`` losses take features and output weights in place of logits. For features ``x`` and
weights ``W``, whose logits are ``z = x W^T``, the gradients are ``(p - q) W`` and ``(p - q)^T x``.
They are computed along with the loss, in chunks of rows, so that the logits are never kept; the
kernels make use of a sparse p. Nothing is approximated.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops.checks import Tau, check_algorithm, check_alpha, check_logits, check_tau
from fairseq_sparse.ops.mappings import TOPK, as_rows
from fairseq_sparse.ops.precision import as_autocast, at_least_fp32, without_autocast
from fairseq_sparse.ops.reference import rows
from fairseq_sparse.ops.reference.linear_loss import linear_loss


def entmax_loss(
    z: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    algorithm: str = "newton",
    topk: int = TOPK,
    prior: Optional[Tensor] = None,
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
        algorithm, topk: how the threshold is found, see :func:`fairseq_sparse.ops.entmax`.
        prior: the distribution ``[V]`` that label smoothing mixes in, uniform by default. The
            logits must then be finite.

    Returns:
        The loss in nats, fp32 (fp64 for fp64 logits).

    Raises:
        ValueError: an argument is out of range or the shapes do not fit.
        TypeError: the logits (or features) are not floating point, or alpha or tau is no number.
        IndexError, RuntimeError: on a CPU, a target is neither a class nor ``ignore_index``.
    """
    loss = _Loss(alpha, None, label_smoothing, ignore_index, reduction, prior, algorithm, topk)
    return _loss_of_logits(z, target, loss)


def alpha_relu_loss(
    z: Tensor,
    target: Tensor,
    tau: Tau,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    prior: Optional[Tensor] = None,
) -> Tensor:
    """Compute the alpha-ReLU loss, see the docstring of this module.

    Args:
        tau: the threshold of ``(alpha - 1) * z``, a finite number or a tensor with one element.
        alpha: a number > 1.

    The other arguments, the result and the errors are those of :func:`entmax_loss`.
    """
    loss = _Loss(alpha, tau, label_smoothing, ignore_index, reduction, prior)
    return _loss_of_logits(z, target, loss)


def linear_entmax_loss(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    algorithm: str = "newton",
    topk: int = TOPK,
    prior: Optional[Tensor] = None,
) -> Tensor:
    """Compute ``entmax_loss(F.linear(features, weight, bias), target, ...)`` in one step.

    With ``reduction="none"`` the logits are kept, because the gradient of each row is then scaled
    by a number of its own.

    Args:
        features: ``[..., d]``, any floating dtype.
        weight: ``[V, d]``.
        bias: ``[V]``, or None.
        target: class indices ``[...]``.

    The other arguments, the result and the errors are those of
    :func:`fairseq_sparse.ops.entmax_loss`.
    """
    loss = _Loss(alpha, None, label_smoothing, ignore_index, reduction, prior, algorithm, topk)
    return _loss_of_features(features, weight, bias, target, loss)


def linear_alpha_relu_loss(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    tau: Tau,
    alpha: float = 1.5,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    prior: Optional[Tensor] = None,
) -> Tensor:
    """Compute ``alpha_relu_loss(F.linear(features, weight, bias), target, tau, ...)`` in one step.

    For the arguments see :func:`linear_entmax_loss` and
    :func:`fairseq_sparse.ops.alpha_relu_loss`.
    """
    loss = _Loss(alpha, tau, label_smoothing, ignore_index, reduction, prior)
    return _loss_of_features(features, weight, bias, target, loss)


class _Loss(NamedTuple):
    """The options of a loss, for which see :func:`entmax_loss` and :func:`alpha_relu_loss`."""

    alpha: float
    tau: Optional[Tau]  # None: alpha-entmax
    label_smoothing: float
    ignore_index: int
    reduction: str
    prior: Optional[Tensor]  # None: uniform
    algorithm: str = "newton"
    topk: int = TOPK

    def checked(self, shape: tuple[int, ...], z: Tensor, target: Tensor) -> tuple:
        """Return the arguments of the operators from tau on, for tensors on the device of ``z``.

        Raises:
            ValueError: an option is out of range, or the target does not fit logits of this shape.
        """
        if len(shape) == 0 or shape[:-1] != tuple(target.shape):
            raise ValueError(
                f"logits {shape} need a target of shape {shape[:-1]}, got {tuple(target.shape)}"
            )
        if target.dtype != torch.int64:
            raise ValueError(f"target must be int64, got {target.dtype}")
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1], got {self.label_smoothing}")
        if self.prior is not None and self.prior.shape != shape[-1:]:
            raise ValueError(
                f"logits {shape} need a prior of {shape[-1]}, got {tuple(self.prior.shape)}"
            )
        if self.reduction not in ("none", "sum", "mean"):
            raise ValueError(f"reduction must be none, sum or mean, got {self.reduction!r}")
        is_softmax = self.tau is None and self.alpha == 1
        alpha = 1.0 if is_softmax else check_alpha(self.alpha, z.dtype)
        check_algorithm(self.algorithm, alpha, self.topk)
        options = (self.label_smoothing, self.ignore_index, self.algorithm, self.topk)
        return self._checked_tau(z), alpha, *options

    def _checked_tau(self, z: Tensor) -> Optional[Tensor]:
        if self.tau is None:
            return None
        check_tau(self.tau)
        if not torch.is_tensor(self.tau):
            return torch.full((), self.tau, dtype=torch.float64, device=z.device)
        if self.tau.numel() != 1:
            raise ValueError(f"tau must have one element, got shape {tuple(self.tau.shape)}")
        return at_least_fp32(self.tau.reshape(()))  # tau / (alpha - 1) would lose digits

    def without_prior(self, reduction: str) -> _Loss:
        """Return the options of the part of the loss that :meth:`of_prior` completes."""
        return self._replace(label_smoothing=0.0, prior=None, reduction=reduction)

    def of_prior(self, target: Tensor, gold: Tensor, expected: Tensor) -> Tensor:
        """Return what label smoothing with a prior u adds to the loss of each row.

        The loss of q = (1 - eps) e_y + eps u differs from that of e_y by ``eps (z_y - <u, z>)``
        and by a constant, ``Omega(q) - Omega(e_y)``; softmax has none, as in PyTorch.

        Args:
            target: ``[rows]``.
            gold, expected: ``z_y`` and ``<u, z>``, ``[rows]``, fp32 or better.
        """
        counts = target != self.ignore_index
        epsilon, alpha = self.label_smoothing, self.alpha
        added = epsilon * (gold - expected)
        if alpha > 1:
            u = self.prior.to(gold)
            of_gold = u[target.masked_fill(~counts, 0)]
            power_sum = (1 - epsilon + epsilon * of_gold) ** alpha - 1
            power_sum += epsilon**alpha * ((u**alpha).sum() - of_gold**alpha)
            added = added + power_sum / (alpha * (alpha - 1))
        return added.masked_fill(~counts, 0.0)

    def reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        """Reduce the losses ``[rows]``, or their sum, as ``reduction`` says."""
        if self.reduction == "none":
            return losses.view(target.shape)
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / (target != self.ignore_index).sum().clamp(min=1)


def _loss_of_logits(z: Tensor, target: Tensor, loss: _Loss) -> Tensor:
    """Compute the loss of logits ``[..., V]``."""
    check_logits(z)
    arguments = loss.checked(tuple(z.shape), z, target)
    logits, labels = as_rows(z), target.reshape(-1)
    if loss.prior is not None:
        losses = _loss_of_logits(logits, labels, loss.without_prior("none"))
        logits = at_least_fp32(logits)
        index = labels.masked_fill(labels == loss.ignore_index, 0).unsqueeze(-1)
        with without_autocast(logits):
            expected = logits @ loss.prior.to(logits)
        losses = losses + loss.of_prior(labels, logits.gather(-1, index).squeeze(-1), expected)
    elif loss.alpha == 1:
        losses = F.cross_entropy(
            at_least_fp32(logits),
            labels,
            ignore_index=loss.ignore_index,
            reduction="none",
            label_smoothing=loss.label_smoothing,
        )
    else:
        losses, _ = rows.row_loss(logits, labels, *arguments)
    return loss.reduced(losses, target)


def _loss_of_features(
    features: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, loss: _Loss
) -> Tensor:
    """Compute the loss of the logits ``F.linear(features, weight, bias)``."""
    check_logits(features)
    fits = weight.dim() == 2 and features.shape[-1:] == weight.shape[1:]
    if not fits or not (bias is None or bias.shape == weight.shape[:1]):
        shapes = [list(x.shape) for x in (features, weight, bias) if x is not None]
        raise ValueError(f"features [..., d], weight [V, d] and bias [V] do not fit: {shapes}")
    if loss.alpha == 1 or loss.reduction == "none":
        return _loss_of_logits(F.linear(features, weight, bias), target, loss)
    arguments = loss.checked((*features.shape[:-1], weight.size(0)), features, target)
    if loss.prior is not None:
        total = _loss_of_features(features, weight, bias, target, loss.without_prior("sum"))
        added = _prior_of_features(features, weight, bias, target, loss)
        return loss.reduced(total + added, target)
    # Convert to the dtype that autocast would multiply in; gradients pass through the conversion.
    x, w = as_autocast(as_rows(features), weight)
    needed = [torch.is_grad_enabled() and y is not None and y.requires_grad for y in (x, w, bias)]
    total, *_ = linear_loss(x, w, bias, target.reshape(-1), *arguments, *needed)
    return loss.reduced(total, target)


def _prior_of_features(
    features: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, loss: _Loss
) -> Tensor:
    """Return the sum of :meth:`_Loss.of_prior`, from two logits a row rather than all."""
    labels = target.reshape(-1)
    index = labels.masked_fill(labels == loss.ignore_index, 0)
    x, w = as_autocast(as_rows(features), weight)
    with without_autocast(x):
        x, gold_weight, w = at_least_fp32(x), at_least_fp32(w[index]), at_least_fp32(w)
        prior = loss.prior.to(x)
        gold = (x * gold_weight).sum(-1)
        expected = x @ (prior @ w)
        if bias is not None:
            gold = gold + bias[index]
            expected = expected + prior @ bias.to(x)
    return loss.of_prior(labels, gold, expected).sum()
