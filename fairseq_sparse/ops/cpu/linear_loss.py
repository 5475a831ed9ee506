"""The output projection and its loss in one, by the kernels in C, without keeping the logits.

With a sparse p nearly all of ``R = p - q`` is exactly 0: it is kept as a list of its nonzeros, and
the products ``R W`` and ``R^T x`` use these alone. Label smoothing adds to R the same constant
everywhere, a matrix of rank one, whose products are sums of ``W`` and of ``x``. A chunk of rows
with many nonzeros is multiplied as a dense matrix instead, before the next chunk.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops.cpu.rows import SolvedRows, SparseRows, fits_rows, fits_tau
from fairseq_sparse.ops.cpu.screen import (
    PackedRows,
    find_candidates,
    multiplies_bfloat16,
    round_rows,
    starts_of,
)
from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.operators import kernel
from fairseq_sparse.ops.precision import without_autocast
from fairseq_sparse.ops.reference.linear_loss import empty_gradients, row_chunks

# Minimum number of rows for which bf16 screening is worth its set-up.
_SCREENED_ROWS = 256
# Above this share of candidates, computing them one by one is slower than computing all.
_SCREENED_SHARE = 0.05
# Above this share of nonzeros, a dense product with R is faster.
_DENSE_SHARE = 0.25


def _fits(
    x, weight, bias, target, tau, alpha, label_smoothing, ignore_index, algorithm, *_
) -> bool:
    return (
        x.is_cpu
        and x.numel() > 0
        and x.dtype == weight.dtype
        and weight.shape[1:] == x.shape[1:]
        and (bias is None or bias.shape == weight.shape[:1])
        and fits_tau(tau)
        and fits_rows(weight, alpha, algorithm)
    )


@kernel("cpu", "linear_loss", _fits)
def linear_loss(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    tau: Optional[Tensor],
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
    algorithm: str,
    topk: int,
    *needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum of the losses of rows and its gradients, see ``reference/linear_loss.py``.

    Raises:
        IndexError: a target is neither a class nor ignored.
    """
    options = RowLoss(alpha, tau, label_smoothing, ignore_index)
    counts = options.counts(target)
    _check_labels(target[counts], weight.size(0))
    label = target.masked_fill(~counts, 0)
    total = x.new_zeros((), dtype=torch.float64)
    constant = counts.float() * (-label_smoothing / weight.size(0))
    residual = _Residual(constant, x, weight, *needed)
    with without_autocast(x):
        screen = _Screen(x, weight, options) if _should_screen(x, bias) else None
        mean = _mean_logit(x, weight, bias) if label_smoothing > 0 else None
        for rows in row_chunks(x, weight):
            logits, gold = screen.candidates(rows, label[rows]) if screen else (None, None)
            if logits is None:
                logits = _logits(x[rows], weight, bias)
                gold = logits.gather(1, label[rows].unsqueeze(1)).squeeze(1)
            solved = SolvedRows(logits, options)
            found = gold, None if mean is None else mean[rows], solved.conjugate, solved.shift
            total += options.of_logits(target[rows], *found, weight.size(0)).sum()
            if any(needed):
                residual.add(rows, solved, label[rows], counts[rows])
        gradients = residual.gradients()
    return total.float(), *gradients


class _Residual:
    """The products of ``R = p - q``: of a sparse matrix and a constant in each row, at the end, and
    of rows with many nonzeros, at once.

    Args:
        constant: ``[rows]``, the share of label smoothing in each entry of a row.
        x, weight: the factors, ``[rows, d]`` and ``[V, d]``.
        needed: whether the products with ``weight``, with ``x`` and the sums by column are needed.
    """

    def __init__(self, constant: Tensor, x: Tensor, weight: Tensor, *needed: bool):
        self._constant, self._needed = constant, needed
        self._factors = (x.float(), weight.float()) if any(needed) else (x, weight)
        self._sparse: list[SparseRows] = []  # parts, one above the other
        self._whole: list[Tensor] = []  # the products of rows that are empty in the parts

    def add(self, rows: slice, solved: SolvedRows, label: Tensor, counts: Tensor) -> None:
        """Add the next rows, whole if much of them is nonzero."""
        if torch.is_tensor(solved.z) and solved.count.sum() > _DENSE_SHARE * solved.z.numel():
            self._add_whole(rows, solved.residual(label.masked_fill(~counts, -1)))
            self._constant[rows] = 0
            counts = torch.zeros_like(counts)
        self._sparse.append(solved.sparse_residual(label, counts))

    def _add_whole(self, rows: slice, part: Tensor) -> None:
        x, weight = self._factors
        if not self._whole:
            self._whole = [each.zero_() for each in empty_gradients(x, weight, *self._needed)]
        grad_x, grad_weight, grad_bias = self._whole
        if self._needed[0]:
            torch.mm(part, weight, out=grad_x[rows])
        if self._needed[1]:
            grad_weight.addmm_(part.t(), x[rows])
        if self._needed[2]:
            grad_bias.add_(part.sum(0))

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``R W``, ``R^T x`` and the sums of R by column, fp32; empty if not needed."""
        x, weight = self._factors
        found = list(empty_gradients(x, weight, False, False, False))
        sparse = _concatenated(self._sparse) if any(self._needed) else None
        if self._needed[0]:
            found[0] = _product(sparse, weight).addr_(self._constant, weight.sum(0))
        if self._needed[1]:
            found[1] = _product(_transposed(sparse, weight.size(0)), x)
            if self._constant.any():
                found[1].add_(self._constant @ x)
        if self._needed[2]:
            found[2] = self._constant.sum().expand(weight.size(0)).clone()
            found[2].index_add_(0, sparse.columns, sparse.values)
        for gradient, whole in zip(found, self._whole, strict=False):  # none is whole, or all are
            gradient.add_(whole)
        return tuple(found)


def _product(sparse: SparseRows, dense: Tensor) -> Tensor:
    """Return the product of a sparse matrix and a dense one, by the sums of an embedding bag."""
    # Both kinds of indices must be of one dtype; there may be more entries than 32 bits can count.
    index = torch.int32 if sparse.values.numel() < 1 << 31 else torch.int64
    return F.embedding_bag(
        *(sparse.columns.to(index), dense, sparse.start.to(index)),
        mode="sum",
        per_sample_weights=sparse.values,
        include_last_offset=True,
    )


def _transposed(sparse: SparseRows, size: int) -> SparseRows:
    """Return the transpose of a sparse matrix ``[rows, size]``."""
    rows = torch.arange(sparse.start.numel() - 1, dtype=torch.int32)
    rows = rows.repeat_interleave(sparse.start.diff())
    columns, order = sparse.columns.sort(stable=True)
    start = torch.searchsorted(columns, torch.arange(size + 1, dtype=torch.int32))
    return SparseRows(start, rows[order], sparse.values[order])


def _concatenated(parts: list[SparseRows]) -> SparseRows:
    """Return the rows of all parts, one after another."""
    ends = starts_of(torch.cat([part.start.diff() for part in parts]))
    columns = torch.cat([part.columns for part in parts])
    return SparseRows(ends, columns, torch.cat([part.values for part in parts]))


def _check_labels(labels: Tensor, size: int) -> None:
    if labels.numel() > 0 and not 0 <= labels.min() <= labels.max() < size:
        raise IndexError(
            f"target {int(labels.max() if labels.min() >= 0 else labels.min())} is out of range "
            f"for an output of size {size}"
        )


class _Screen:
    """A search for the logits that can be in the support; others are not computed in fp32."""

    def __init__(self, x: Tensor, weight: Tensor, options: RowLoss):
        self._x = round_rows(x.contiguous())
        self._weight = round_rows(weight.contiguous())
        self._alpha = options.alpha
        self._tau = None if options.tau is None else float(options.tau)
        self._helps = True

    def candidates(
        self, rows: slice, label: Tensor
    ) -> tuple[Optional[PackedRows], Optional[Tensor]]:
        """Return the candidates of some rows, and the logits of their labels; None if too many."""
        found = None
        if self._helps:
            x = self._x.rows(rows)
            found = find_candidates(x, self._weight, label, self._alpha, self._tau, _SCREENED_SHARE)
            self._helps = found is not None
        return found or (None, None)


def _should_screen(x: Tensor, bias: Optional[Tensor]) -> bool:
    worth_it = x.dtype == torch.float32 and x.size(0) >= _SCREENED_ROWS and bias is None
    return worth_it and multiplies_bfloat16()


def _logits(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return the logits in fp32, of a product in the dtype of ``x``."""
    logits = x @ weight.t()
    return logits.float() if bias is None else logits.float().add_(bias)


def _mean_logit(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return the mean of each row's logits without computing the logits."""
    mean = x.float() @ weight.float().mean(0)
    return mean if bias is None else mean + bias.float().mean()
