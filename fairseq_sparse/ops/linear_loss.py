"""The output projection and its loss in one, without keeping the logits.

For features ``x`` and output weights ``W`` the logits are ``z = x W^T``, and the gradient of a
Fenchel-Young loss with respect to them is ``R = p - q``. So the gradients of features and weights
are ``R W`` and ``R^T x``, two products each as long as the one that gave the logits. But with a
sparse p nearly all of R is exactly 0: it is kept as the list of its nonzeros, and the products go
over these alone. Label smoothing adds to R the same constant everywhere, a matrix of rank one,
whose products are sums of ``W`` and of ``x``. Nothing is approximated.

The logits are computed for some rows at a time, and are dropped as soon as these are solved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.alpha_relu import Tau
from fairseq_sparse.ops.cpu.products import SparseRows
from fairseq_sparse.ops.cpu.screen import PackedRows, RoundedRows, candidates, is_fast
from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu import usable
from fairseq_sparse.ops.losses import less_target, loss_of_logits
from fairseq_sparse.ops.precision import as_autocast, without_autocast

# So many logits at a time: 32 MiB in fp32. A product with fewer rows than these is slow.
_CHUNK_ELEMENTS = 1 << 23
_CHUNK_ROWS = 128
# From so many rows on, rounding the weights pays.
_SCREENED_ROWS = 256
# Above this share of candidates, computing them one by one is slower than computing all.
_SCREENED_SHARE = 0.05
# Above this share of nonzeros a product over all of R is the faster.
_DENSE_SHARE = 0.25


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
    """``entmax_loss(F.linear(features, weight, bias), target, ...)`` in less time and memory.

    Args:
        features: ``[..., d]``, any floating dtype.
        weight: ``[V, d]``.
        target: class indices ``[...]``.
        bias: ``[V]``.

    The other arguments, the result and the errors are those of
    :func:`fairseq_sparse.ops.entmax_loss`.
    """
    loss = FenchelYoungLoss(alpha, None, label_smoothing, ignore_index, reduction, topk)
    return loss_of_features(features, weight, bias, target, loss)


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
    """``alpha_relu_loss(F.linear(features, weight, bias), target, tau, ...)`` in one.

    For the arguments see :func:`linear_entmax_loss` and
    :func:`fairseq_sparse.ops.alpha_relu_loss`.
    """
    loss = FenchelYoungLoss(alpha, tau, label_smoothing, ignore_index, reduction)
    return loss_of_features(features, weight, bias, target, loss)


def loss_of_features(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    loss: FenchelYoungLoss,
) -> Tensor:
    """The loss of the logits ``F.linear(features, weight, bias)``, of any mapping."""
    if not torch.is_grad_enabled():
        # A Function is told what requires a gradient, also where none can be taken.
        features, weight = features.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
    # What autocast would multiply in; the gradients go back through this conversion.
    x, w = as_autocast(features.reshape(-1, features.size(-1)), weight)
    tensors = x, w, bias, target
    on_gpu = loss.topk == 0 and loss.alpha != 1 and loss.reduction != "none" and usable(*tensors)
    if not (_fits(*tensors) and (on_gpu or loss.has_compiled_kernels(*tensors))):
        return loss_of_logits(F.linear(features, weight, bias), target, loss)
    loss = loss.checked((*features.shape[:-1], weight.size(0)), target)
    labels = target.reshape(-1)
    if on_gpu:
        from fairseq_sparse.ops.gpu.linear_loss import summed_linear_loss

        with without_autocast(x):
            return loss.reduced(summed_linear_loss(x, w, bias, labels, loss), target)
    counts = loss.counts(labels)
    _check_labels(labels[counts], weight.size(0))
    with without_autocast(x):
        losses = _LinearLoss.apply(x, w, bias, labels.masked_fill(~counts, 0), counts, loss)
    return loss.reduced(losses, target)


def _fits(x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor) -> bool:
    """Whether there is something to compute; what does not fit is for PyTorch to refuse."""
    return (
        x.numel() > 0
        and weight.numel() > 0
        and (x.dtype, x.device) == (weight.dtype, weight.device)
        and weight.shape[1:] == x.shape[1:]
        and (bias is None or bias.shape == weight.shape[:1])
        and target.dtype == torch.int64
    )


def _check_labels(labels: Tensor, size: int) -> None:
    if labels.numel() > 0 and not 0 <= labels.min() <= labels.max() < size:
        raise IndexError(
            f"target {int(labels.max() if labels.min() >= 0 else labels.min())} is out of range "
            f"for an output of size {size}"
        )


class _LinearLoss(Function):
    """By the compiled kernels. The target of a row that does not count is 0."""

    @staticmethod
    def forward(ctx, x, weight, bias, target, counts, loss):
        screen = _Screen(x, weight, loss) if _screens(x, bias) else None
        sums, sparse, dense = [], [], {}
        for rows in _row_chunks(x, weight):
            found = None if screen is None else screen.candidates(rows, target[rows])
            if found is None:
                logits = _logits(x[rows], weight, bias)
                gold = logits.gather(1, target[rows].unsqueeze(1)).squeeze(1)
            else:
                logits, gold = found
            solved, shift = loss.solve(logits)
            sums.append(torch.stack([solved.conjugate, shift, gold.double()]))
            if not any(ctx.needs_input_grad):
                continue
            kept = counts[rows]
            if torch.is_tensor(logits) and solved.count.sum() > _DENSE_SHARE * logits.numel():
                p = solved.probabilities()
                dense[rows.start] = less_target(p, target[rows], kept, loss.label_smoothing)
                kept = torch.zeros_like(kept)
            sparse.append(solved.residual(target[rows], 1 - loss.label_smoothing, kept))
        if sparse:
            residual = SparseRows.concatenated(sparse)
            ctx.save_for_backward(x, weight, bias, counts, *residual[:-1], *dense.values())
            ctx.dense_starts = tuple(dense)
            ctx.smoothing = loss.label_smoothing / weight.size(0)
        conjugate, shift, gold = torch.cat(sums, dim=1)
        mean = _mean_logit(x, weight, bias) if loss.label_smoothing > 0 else None
        losses = loss.losses(conjugate, shift, gold, mean, weight.size(0))
        return losses.float().masked_fill(~counts, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, bias, counts, *entries = ctx.saved_tensors
        residual, parts = SparseRows(*entries[:3], weight.size(0)), entries[3:]
        dense = [
            (slice(start, start + part.size(0)), part)
            for start, part in zip(ctx.dense_starts, parts, strict=True)
        ]
        scale = grad.float().masked_fill(~counts, 0.0)  # of each row
        grad_x = grad_weight = grad_bias = None
        with without_autocast(x):
            if ctx.needs_input_grad[0]:
                w = weight.float().contiguous()
                grad_x = residual.times(w, _smoothed(ctx, lambda: w.sum(0), w))
                for rows, part in dense:
                    grad_x[rows].addmm_(part, w)
                grad_x = grad_x.mul_(scale.unsqueeze(1)).to(x.dtype)
            if any(ctx.needs_input_grad[1:3]):
                by_word = residual.transposed(scale)
            if ctx.needs_input_grad[1]:
                x = x.float().contiguous()
                grad_weight = by_word.times(x, _smoothed(ctx, lambda: scale @ x, x))
                for rows, part in dense:
                    grad_weight.addmm_(part.t(), x[rows] * scale[rows].unsqueeze(1))
                grad_weight = grad_weight.to(weight.dtype)
            if ctx.needs_input_grad[2]:
                ones = torch.ones_like(scale).unsqueeze(1)
                grad_bias = by_word.times(ones, _smoothed(ctx, lambda: scale.sum(0, True), ones))
                for rows, part in dense:
                    grad_bias += (scale[rows] @ part).unsqueeze(1)
                grad_bias = grad_bias.squeeze(1).to(bias.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


def _smoothed(ctx, total: Callable[[], Tensor], rows: Tensor) -> Tensor:
    """What label smoothing adds to each row of a product: a share of the ``total`` of ``rows``."""
    return -ctx.smoothing * total() if ctx.smoothing > 0 else rows.new_zeros(rows.size(1))


class _Screen:
    """Finds the logits that can be in the support without computing the others in fp32."""

    def __init__(self, x: Tensor, weight: Tensor, loss: FenchelYoungLoss):
        self._x = RoundedRows.of(x.contiguous())
        self._weight = RoundedRows.of(weight.contiguous())
        self._alpha, self._tau = loss.alpha, None if loss.tau is None else float(loss.tau)
        self._helps = True

    def candidates(self, rows: slice, label: Tensor) -> Optional[tuple[PackedRows, Tensor]]:
        """The candidates of some rows, and the logits of their labels; None where too many are."""
        found = None
        if self._helps:
            x = self._x.some(rows)
            found = candidates(x, self._weight, label, self._alpha, self._tau, _SCREENED_SHARE)
            self._helps = found is not None
        return found


def _screens(x: Tensor, bias: Optional[Tensor]) -> bool:
    worth_it = x.dtype == torch.float32 and x.size(0) >= _SCREENED_ROWS and bias is None
    return worth_it and is_fast()


def _row_chunks(x: Tensor, weight: Tensor) -> list[slice]:
    step = max(_CHUNK_ROWS, _CHUNK_ELEMENTS // weight.size(0))
    return [slice(start, start + step) for start in range(0, x.size(0), step)]


def _logits(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """In fp32, of a product in the dtype of ``x``."""
    logits = x @ weight.t()
    return logits.float() if bias is None else logits.float().add_(bias)


def _mean_logit(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """The mean of each row's logits, without these."""
    mean = x.float() @ weight.float().mean(0)
    return mean if bias is None else mean + bias.float().mean()
