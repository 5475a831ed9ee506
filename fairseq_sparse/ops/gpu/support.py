"""The losses of rows and their supports, from lists of candidates or from whole rows of logits.

One program solves one row. From a list of candidates it writes a short list of the support and the
target, with ``p - q`` there but without the part of label smoothing that all classes share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.arithmetic import (
    alpha_arguments,
    divide,
    factors,
    rate_of,
    to_compute_dtype,
)
from fairseq_sparse.ops.gpu.candidates import Candidates
from fairseq_sparse.ops.gpu.entmax import load_block, row_options
from fairseq_sparse.ops.gpu.entmax_search import STAGES
from fairseq_sparse.ops.gpu.losses import expected_logit, solve_loss, store_found, store_loss

# Places for the support of a row, including the target. With more than 128 of 32,000 classes, dense
# products, which read the weights once for many rows, read no more than a gather of rows.
SLOTS = 128


class Support(NamedTuple):
    """The nonzeros of ``p - q``, ``slots`` places a row; all of a row, or none if it is dense."""

    columns: Tensor  # [rows, slots], int32: the target first; V in the places not taken
    values: Tensor  # [rows, slots], fp32
    counts: Tensor  # [rows], int32
    dense: Tensor  # [rows], int32: 1 where a list overflows and the row takes the dense path


class Rows(NamedTuple):
    """The inputs for solving each row, and the results."""

    target: Tensor  # [rows]
    gold: Tensor  # [rows], the logit of the target
    sums: Tensor  # [rows, parts], sums of logits; only with label smoothing
    classes: int
    constant: Tensor  # [], the part of each loss that does not depend on the logits
    losses: Tensor  # [rows]
    found: Tensor  # [3, rows]: maximum, tau and total, as in residual.py


def solve_lists(found: Candidates, rows: Rows, loss: FenchelYoungLoss, wanted: bool) -> Support:
    """Write losses and thresholds into ``rows``, except for dense rows; return the supports.

    Args:
        wanted: whether the columns and values of the supports are wanted.
    """
    count, size = found.scores.shape
    slots = SLOTS if wanted else 0
    device = found.scores.device
    support = Support(
        torch.full((count, slots), rows.classes, dtype=torch.int32, device=device),
        found.scores.new_zeros(count, slots),
        torch.empty(count, dtype=torch.int32, device=device),
        torch.empty(count, dtype=torch.int32, device=device),
    )
    with torch.cuda.device_of(found.scores):
        _lists_kernel[(count,)](
            found.scores,
            found.columns,
            found.counts,
            *support,
            *_arguments(rows, loss),
            size,
            found.length,
            SLOTS=slots,
            **_constants(rows, loss, size),
        )
    return support


def solve_dense(
    logits: Tensor,
    order: Tensor,
    dense_count: Tensor,
    first: int,
    rows: Rows,
    loss: FenchelYoungLoss,
) -> None:
    """Write the losses and thresholds of dense rows into ``rows``.

    Args:
        logits: ``[chunk, V]`` of the rows ``order[first:]``.
        order: the numbers of all rows, dense ones first.
        dense_count: the number of dense rows, ``[]``.
    """
    with torch.cuda.device_of(logits):
        _dense_kernel[(logits.size(0),)](
            logits,
            order,
            dense_count,
            first,
            *_arguments(rows, loss),
            rows.classes,
            **_constants(rows, loss, rows.classes),
        )


def _arguments(rows: Rows, loss: FenchelYoungLoss) -> tuple:
    target, gold, sums, classes, constant, losses, found = rows
    tau = gold if loss.tau is None else to_compute_dtype(loss.tau, gold)
    rates, _ = alpha_arguments(loss.alpha, gold)
    numbers = found.size(1), sums.size(1), classes, loss.ignore_index
    return target, gold, sums, constant, losses, found, tau, rates, *numbers


def _constants(rows: Rows, loss: FenchelYoungLoss, size: int) -> dict:
    return {
        "PARTS": triton.next_power_of_2(rows.sums.size(1)),
        "ALPHA": alpha_arguments(loss.alpha, rows.gold)[1],
        "SMOOTHING": float(loss.label_smoothing),
        "ENTMAX": loss.tau is None,
        **row_options(size, rows.gold.dtype),
    }


_CHANGING = ["rows", "first", "ignore_index", "parts", "length"]


@triton.jit(do_not_specialize=_CHANGING)
def _lists_kernel(
    scores,
    columns,
    counts,
    support_columns,
    support_values,
    support_counts,
    dense,
    target,
    gold,
    sums,
    constant,
    losses,
    found,
    tau,  # read unless ENTMAX
    rates,  # alpha - 1, read if ALPHA is 0
    rows,
    parts,
    classes,
    ignore_index,
    size,
    length,
    SLOTS: tl.constexpr,
    PARTS: tl.constexpr,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ENTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    most = tl.max(tl.load(counts + row * parts + part, mask=part < parts, other=0), 0)
    label = tl.load(target + row)
    known = tl.zeros([], tl.int32)
    is_dense = most > length
    if label == ignore_index:
        tl.store(losses + row, 0.0)
    elif not is_dense:
        rate = rate_of(rates, ALPHA, DTYPE)
        scores += row * size
        columns += row * size
        maximum, threshold, total = _solve(
            scores, row, label, gold, sums, constant, losses, found, tau, rate, rows, parts,
            classes, size, PARTS, ALPHA, SMOOTHING, ENTMAX, BLOCK, WHOLE, DTYPE,
        )  # fmt: skip
        if SLOTS > 0:
            known = _write_support(
                scores,
                columns,
                support_columns + row * SLOTS,
                support_values + row * SLOTS,
                label,
                tl.load(gold + row),
                maximum,
                threshold,
                total,
                rate,
                size,
                classes,
                SLOTS,
                ALPHA,
                SMOOTHING,
                BLOCK,
                DTYPE,
            )
            is_dense = known > SLOTS
    known = tl.where(is_dense, 0, known)
    tl.store(support_counts + row, known)
    tl.store(dense + row, (is_dense & (label != ignore_index)).to(tl.int32))


@triton.jit
def _write_support(
    scores,
    columns,
    to_columns,
    to_values,
    label,
    gold,
    maximum,
    tau,
    total,
    rate,
    size,
    classes,
    SLOTS: tl.constexpr,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Write the nonzeros of ``p - q`` of a row; return how many there are.

    If there are more than SLOTS, none is kept.
    """
    # The target comes first. One that is no class makes the loss NaN, and has no place.
    is_class = (label >= 0) & (label < classes)
    weight, above = factors((gold - maximum) * rate, tau, rate, ALPHA)
    difference = divide(weight * above, total) - tl.full([], 1 - SMOOTHING, DTYPE)
    tl.store(to_columns, label.to(tl.int32), mask=is_class)
    tl.store(to_values, difference, mask=is_class)
    known = is_class.to(tl.int32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK)
        # In a place without a candidate, the logit is -inf, and no class has been written.
        column = tl.load(columns + place, mask=place < size, other=0)
        x = (load_block(scores, start, size, BLOCK, DTYPE) - maximum) * rate
        weights, aboves = factors(x, tau, rate, ALPHA)
        p = divide(weights * aboves, total)
        keep = (p != 0) & (column != label)
        to = known + tl.cumsum(keep.to(tl.int32), 0) - 1
        fits = keep & (to < SLOTS)
        tl.store(to_columns + to, column, mask=fits)
        tl.store(to_values + to, p, mask=fits)
        known += tl.sum(keep.to(tl.int32), 0)
    if known > SLOTS:
        tl.debug_barrier()  # every thread has stored what this overwrites
        slot = tl.arange(0, SLOTS)
        tl.store(to_columns + slot, 0 * slot + classes)
    return known


@triton.jit(do_not_specialize=_CHANGING)
def _dense_kernel(
    logits,
    order,
    dense_count,
    first,
    target,
    gold,
    sums,
    constant,
    losses,
    found,
    tau,  # read unless ENTMAX
    rates,  # alpha - 1, read if ALPHA is 0
    rows,
    parts,
    classes,
    ignore_index,
    size,
    PARTS: tl.constexpr,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ENTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    if first + place < tl.load(dense_count):
        row = tl.load(order + first + place)
        _solve(
            logits + place * size, row, tl.load(target + row), gold, sums, constant, losses,
            found, tau, rate_of(rates, ALPHA, DTYPE), rows, parts, classes, size,
            PARTS, ALPHA, SMOOTHING, ENTMAX, BLOCK, WHOLE, DTYPE,
        )  # fmt: skip


@triton.jit
def _solve(
    z,
    row,
    label,
    gold,
    sums,
    constant,
    losses,
    found,
    tau,
    rate,
    rows,
    parts,
    classes,
    size,
    PARTS: tl.constexpr,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ENTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Store the loss of the row with its (candidate) logits at ``z``; return how it was solved."""
    maximum, threshold, total, conjugate, shift, _ = solve_loss(
        z, size, tau, rate, ALPHA, ENTMAX, False, BLOCK, WHOLE, DTYPE
    )
    logits = tl.zeros([], DTYPE)
    if SMOOTHING > 0:
        part = tl.arange(0, PARTS)
        logits += tl.sum(tl.load(sums + row * parts + part, mask=part < parts, other=0.0), 0)
    gold_logit = tl.load(gold + row)
    expected = expected_logit(gold_logit, logits, shift, label, classes, SMOOTHING, DTYPE)
    store_loss(losses + row, tl.load(constant) + conjugate - expected)
    store_found(found + row, rows, maximum, threshold, total)
    return maximum, threshold, total
