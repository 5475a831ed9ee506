"""The losses of the sparse mappings on a GPU: one program for each row of logits.

Their formulas are those of :mod:`fairseq_sparse.ops.losses`. alpha-ReLU's loss is a sum over
coordinates and takes one sweep over a row; alpha-entmax's takes as many as its threshold, one for
most rows. The gradient ``p - q`` is computed in the backward pass, from the logits and three
numbers per row: nothing else of the size of the logits is written or kept.

``support.py`` also uses the functions for one row, with candidates as the logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.gpu.arithmetic import (
    alpha_arguments,
    divide,
    factors,
    rate_of,
    to_compute_dtype,
)
from fairseq_sparse.ops.gpu.entmax import contiguous_rows, load_block, row_options, solve_row
from fairseq_sparse.ops.gpu.entmax_search import STAGES
from fairseq_sparse.ops.gpu.residual import residual_of_rows


def row_losses(z: Tensor, target: Tensor, loss: FenchelYoungLoss) -> Tensor:
    """Return the loss of each row, with its gradient.

    Args:
        z: logits ``[rows, V]``, any floating dtype.
        target: class indices ``[rows]``. Where one is neither a class nor ignored, the loss is
            NaN: an error would have to wait for the GPU.
        loss: with any ``alpha`` > 1 and ``topk`` = 0; its ``reduction`` is ignored.

    Returns:
        Losses ``[rows]``, fp32 (fp64 for fp64 logits).
    """
    return _Losses.apply(contiguous_rows(z), target.contiguous(), loss)


class _Losses(Function):
    @staticmethod
    def forward(ctx, z, target, loss):
        rows, size = z.shape
        constant = to_compute_dtype(loss.constant(size), z)
        losses, found = constant.repeat(rows), constant.new_empty(3, rows)
        if z.numel() > 0:
            with torch.cuda.device_of(z):
                rates, alpha = alpha_arguments(loss.alpha, z)
                _losses_kernel[(rows,)](
                    z,
                    target,
                    constant if loss.tau is None else to_compute_dtype(loss.tau, z),
                    constant,
                    losses,
                    found,
                    rates,
                    z.stride(0),
                    rows,
                    size,
                    loss.ignore_index,
                    ALPHA=alpha,
                    SMOOTHING=float(loss.label_smoothing),
                    ENTMAX=loss.tau is None,
                    **row_options(size, z.dtype),
                )
        ctx.save_for_backward(z, target, found)
        ctx.loss = loss
        return losses

    @staticmethod
    @first_order
    def backward(ctx, grad):
        z, target, found = ctx.saved_tensors
        return residual_of_rows(z, target, found, grad.contiguous(), ctx.loss), None, None


# Arguments that change per batch; excluded from specialisation to avoid recompiling.
@triton.jit(do_not_specialize=["rows", "ignore_index"])
def _losses_kernel(
    z,
    target,
    tau,  # read unless ENTMAX
    constant,
    losses,
    found,  # [3, rows]: maximum, tau, total
    rates,  # alpha - 1, read if ALPHA is 0
    z_stride,
    rows,
    size,
    ignore_index,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ENTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    label = tl.load(target + row)
    if label == ignore_index:
        tl.store(losses + row, 0.0)
    else:
        is_class = (label >= 0) & (label < size)
        gold = tl.load(z + label, mask=is_class, other=0.0).to(DTYPE)
        rate = rate_of(rates, ALPHA, DTYPE)
        maximum, threshold, total, conjugate, shift, logits = solve_loss(
            z, size, tau, rate, ALPHA, ENTMAX, SMOOTHING > 0, BLOCK, WHOLE, DTYPE
        )
        expected = expected_logit(gold, logits, shift, label, size, SMOOTHING, DTYPE)
        store_loss(losses + row, tl.load(constant) + conjugate - expected)
        store_found(found + row, rows, maximum, threshold, total)


@triton.jit
def solve_loss(
    z,
    size,
    tau,
    rate,
    ALPHA: tl.constexpr,
    ENTMAX: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Solve the row of ``size`` logits at ``z``.

    Returns:
        Maximum, tau and total as in ``residual.py``; the conjugate of the logits less ``shift``;
        ``shift``; and the sum of the logits, if SUM. All are scalars.
    """
    if ENTMAX:
        maximum, threshold, total, conjugate, logits = solve_row(
            z, size, rate, ALPHA, SUM, BLOCK, WHOLE, DTYPE
        )
        shift = maximum
    else:
        maximum = tl.zeros([], DTYPE)
        total = tl.full([], 1.0, DTYPE)
        threshold = tl.load(tau)
        shift = divide(threshold, rate)
        power = tl.zeros([BLOCK], DTYPE)
        logits_of_lanes = tl.zeros([BLOCK], DTYPE)
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            x = load_block(z, start, size, BLOCK, DTYPE)
            weight, above = factors(rate * x, threshold, rate, ALPHA)
            power += weight * above * above  # p ** alpha
            if SUM:
                logits_of_lanes += tl.where(start + tl.arange(0, BLOCK) < size, x, 0.0)
        conjugate = divide(tl.sum(power, 0), 1 + rate)
        logits = tl.sum(logits_of_lanes, 0)
    return maximum, threshold, total, conjugate, shift, logits


@triton.jit
def expected_logit(
    gold, logits, shift, label, classes, SMOOTHING: tl.constexpr, DTYPE: tl.constexpr
):
    """Return ``<q, z - shift>`` of a row; ``logits`` is the sum of all its logits."""
    expected = tl.where((label < 0) | (label >= classes), float("nan"), gold - shift)
    if SMOOTHING > 0:
        mean = divide(logits, tl.full([], classes, DTYPE)) - shift
        mean *= tl.full([], SMOOTHING, DTYPE)
        if SMOOTHING == 1:
            expected = mean  # 0 * expected would be NaN where that is -inf
        else:
            expected = expected * tl.full([], 1 - SMOOTHING, DTYPE) + mean
    return expected


@triton.jit
def store_loss(place, loss):
    tl.store(place, tl.where(loss < 0, 0.0, loss))  # rounding; NaN stays


@triton.jit
def store_found(place, rows, maximum, threshold, total):
    tl.store(place, maximum)
    tl.store(place + rows, threshold)
    tl.store(place + 2 * rows, total)
