"""The output projection and its loss in one, by the kernels in C, without keeping the logits.

With a sparse p nearly all of ``R = p - q`` is exactly 0: it is kept as a list of its nonzeros, and
the products ``R W`` and ``R^T x`` use these alone. Label smoothing adds to R the same constant
everywhere, a matrix of rank one, whose products are sums of ``W`` and of ``x``.

The logits are computed in chunks of rows, and discarded once the chunk is solved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.cpu.losses import solve
from fairseq_sparse.ops.cpu.products import SparseRows
from fairseq_sparse.ops.cpu.screen import (
    PackedRows,
    find_candidates,
    multiplies_bfloat16,
    round_rows,
)
from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.precision import without_autocast
from fairseq_sparse.ops.reference.residual import residual as residual_of

if TYPE_CHECKING:
    from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss

# Chunk size in logits (32 MiB in fp32).
_CHUNK_ELEMENTS = 1 << 23
# Minimum rows per chunk: smaller matrix products are slow.
_CHUNK_ROWS = 128
# Minimum number of rows for which bf16 screening is worth its set-up.
_SCREENED_ROWS = 256
# Above this share of candidates, computing them one by one is slower than computing all.
_SCREENED_SHARE = 0.05
# Above this share of nonzeros, a dense product with R is faster.
_DENSE_SHARE = 0.25


def linear_losses(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, loss: FenchelYoungLoss
) -> Tensor:
    """Return the loss of each row of ``F.linear(x, weight, bias)``, with its gradient.

    Args:
        x: features ``[rows, d]``, any dtype but fp64; matrices are multiplied in this dtype.
        weight: ``[V, d]``, in that dtype.
        bias: ``[V]``, or None.
        target: class indices ``[rows]``.

    Raises:
        IndexError: a target is neither a class nor ignored.
    """
    counts = loss.counts(target)
    _check_labels(target[counts], weight.size(0))
    return _LinearLosses.apply(x, weight, bias, target.masked_fill(~counts, 0), counts, loss)


def _check_labels(labels: Tensor, size: int) -> None:
    if labels.numel() > 0 and not 0 <= labels.min() <= labels.max() < size:
        raise IndexError(
            f"target {int(labels.max() if labels.min() >= 0 else labels.min())} is out of range "
            f"for an output of size {size}"
        )


class _LinearLosses(Function):
    """The losses of :func:`linear_losses`; the target of a row that does not count must be 0."""

    @staticmethod
    def forward(ctx, x, weight, bias, target, counts, loss):
        screen = _Screen(x, weight, loss) if _should_screen(x, bias) else None
        sums, sparse, dense = [], [], {}
        for rows in _row_chunks(x, weight):
            found = None if screen is None else screen.candidates(rows, target[rows])
            if found is None:
                logits = _logits(x[rows], weight, bias)
                gold = logits.gather(1, target[rows].unsqueeze(1)).squeeze(1)
            else:
                logits, gold = found
            solved, shift = solve(logits, loss)
            sums.append(torch.stack([solved.conjugate, shift, gold.double()]))
            if not any(ctx.needs_input_grad):
                continue
            kept = counts[rows]
            if torch.is_tensor(logits) and solved.count.sum() > _DENSE_SHARE * logits.numel():
                p = solved.probabilities()
                dense[rows.start] = residual_of(p, target[rows], kept, loss.label_smoothing)
                kept = torch.zeros_like(kept)
            sparse.append(solved.residual(target[rows], 1 - loss.label_smoothing, kept))
        if sparse:
            residual = SparseRows.concatenated(sparse)
            ctx.save_for_backward(x, weight, bias, counts, *residual[:-1], *dense.values())
            ctx.dense_starts = tuple(dense)
            ctx.smoothing = loss.label_smoothing / weight.size(0)
        conjugate, shift, gold = torch.cat(sums, dim=1)
        mean = _mean_logit(x, weight, bias) if loss.label_smoothing > 0 else None
        return loss.losses(counts, conjugate, shift, gold, mean, weight.size(0)).float()

    @staticmethod
    @first_order
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
                by_token = residual.transposed(scale)
            if ctx.needs_input_grad[1]:
                x = x.float().contiguous()
                grad_weight = by_token.times(x, _smoothed(ctx, lambda: scale @ x, x))
                for rows, part in dense:
                    grad_weight.addmm_(part.t(), x[rows] * scale[rows].unsqueeze(1))
                grad_weight = grad_weight.to(weight.dtype)
            if ctx.needs_input_grad[2]:
                ones = torch.ones_like(scale).unsqueeze(1)
                grad_bias = by_token.times(ones, _smoothed(ctx, lambda: scale.sum(0, True), ones))
                for rows, part in dense:
                    grad_bias += (scale[rows] @ part).unsqueeze(1)
                grad_bias = grad_bias.squeeze(1).to(bias.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


def _smoothed(ctx, total: Callable[[], Tensor], rows: Tensor) -> Tensor:
    """Return the label-smoothing term of each row of a product, a share of ``total``."""
    return -ctx.smoothing * total() if ctx.smoothing > 0 else rows.new_zeros(rows.size(1))


class _Screen:
    """A search for the logits that can be in the support; others are not computed in fp32."""

    def __init__(self, x: Tensor, weight: Tensor, loss: FenchelYoungLoss):
        self._x = round_rows(x.contiguous())
        self._weight = round_rows(weight.contiguous())
        self._alpha, self._tau = loss.alpha, None if loss.tau is None else float(loss.tau)
        self._helps = True

    def candidates(self, rows: slice, label: Tensor) -> Optional[tuple[PackedRows, Tensor]]:
        """Return the candidates of some rows, and the logits of their labels; None if too many."""
        found = None
        if self._helps:
            x = self._x.rows(rows)
            found = find_candidates(x, self._weight, label, self._alpha, self._tau, _SCREENED_SHARE)
            self._helps = found is not None
        return found


def _should_screen(x: Tensor, bias: Optional[Tensor]) -> bool:
    worth_it = x.dtype == torch.float32 and x.size(0) >= _SCREENED_ROWS and bias is None
    return worth_it and multiplies_bfloat16()


def _row_chunks(x: Tensor, weight: Tensor) -> list[slice]:
    step = max(_CHUNK_ROWS, _CHUNK_ELEMENTS // weight.size(0))
    return [slice(start, start + step) for start in range(0, x.size(0), step)]


def _logits(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return the logits in fp32, of a product in the dtype of ``x``."""
    logits = x @ weight.t()
    return logits.float() if bias is None else logits.float().add_(bias)


def _mean_logit(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return the mean of each row's logits without computing the logits."""
    mean = x.float() @ weight.float().mean(0)
    return mean if bias is None else mean + bias.float().mean()
