"""The losses of the sparse mappings on a GPU: one program for each row of logits.

Their formulas are those of :mod:`fairseq_sparse.ops.losses`. alpha-ReLU's loss is a sum over
coordinates and takes one sweep over a row; alpha-entmax's takes those of its threshold, which is
one for most rows. The gradient ``p - q`` is made where it is wanted:

- for :func:`losses_of_rows` in the backward pass, from the logits and three numbers a row: nothing
  of the size of the logits is written or kept but their gradient;
- for :func:`losses_and_residual` in the same kernel as the losses, in place of the logits.
"""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.alpha_relu import scalar_tau
from fairseq_sparse.ops.gpu.arithmetic import alpha_arguments, divide, factors, rate_of
from fairseq_sparse.ops.gpu.entmax import (
    contiguous_rows,
    load_block,
    row_options,
    solve_row,
    sweep_options,
)
from fairseq_sparse.ops.gpu.entmax_search import STAGES
from fairseq_sparse.ops.gpu.residual import (
    less_target,
    residual_of_rows,
    write_residual,
    write_zeros,
)


def losses_of_rows(z: Tensor, target: Tensor, loss: FenchelYoungLoss) -> Tensor:
    """Return the loss of each row, with its gradient.

    Args:
        z: logits ``[rows, V]``, any floating dtype.
        target: class indices ``[rows]``. Where one is neither a class nor ignored, the loss is
            NaN: an error would have to wait for the GPU.
        loss: with any ``alpha`` > 1 and ``topk`` = 0; its ``reduction`` is not looked at.

    Returns:
        Losses ``[rows]``, fp32 (fp64 for fp64 logits).
    """
    return _Losses.apply(contiguous_rows(z), target.contiguous(), loss)


def losses_and_residual(
    z: Tensor, target: Tensor, loss: FenchelYoungLoss, scale: float = 1.0, uniform: bool = True
) -> Tensor:
    """Return the loss of each row; ``z`` becomes ``scale * (p - q)``, 0 in the ignored rows.

    Args:
        z: logits ``[rows, V]``, any floating dtype, neighbours in a row next to each other.
        scale: the residual is multiplied by it before it is rounded to the dtype of ``z``.
        uniform: whether q has its part ``label_smoothing / V`` in the residual; in the loss it
            has.

    For the rest see :func:`losses_of_rows`. No gradient.
    """
    losses = starting_losses(z, loss, z.size(-1))
    if z.numel() == 0:
        return losses
    if loss.tau is None:
        _solve_entmax(z, target, loss, losses, z, scale, uniform)
    else:
        add_alpha_relu_losses(z, target, loss, losses, scale=scale, uniform=uniform, residual=z)
    return losses


def starting_losses(z: Tensor, loss: FenchelYoungLoss, classes: int) -> Tensor:
    """Return the part of the loss that does not depend on the logits, for each row of ``z``."""
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    return torch.full((z.size(0),), loss.constant(classes), dtype=dtype, device=z.device)


def add_alpha_relu_losses(
    z: Tensor,
    target: Tensor,
    loss: FenchelYoungLoss,
    losses: Tensor,
    first: int = 0,
    classes: Optional[int] = None,
    residual: Optional[Tensor] = None,
    scale: float = 1.0,
    uniform: bool = True,
) -> None:
    """Add to ``losses`` what the logits ``z [rows, size]`` of some of the classes contribute.

    Args:
        losses: ``[rows]``. It becomes 0 where the target is ignored. Where ``z`` has all classes,
            what rounding put below 0 becomes 0; else that is left to the caller.
        first: the class of the first column of ``z``.
        classes: how many there are in all; by default as many as columns.
        residual: where ``scale * (p - q)`` goes; may be ``z``.
    """
    rows, size = z.shape
    out = z if residual is None else residual
    with torch.cuda.device_of(z):
        rates, constant = alpha_arguments(loss.alpha, z)
        _alpha_relu_kernel[(rows,)](
            z,
            target,
            scalar_tau(loss.tau, z),
            losses,
            out,
            rates,
            z.stride(0),
            out.stride(0),
            size,
            first,
            size if classes is None else classes,
            loss.ignore_index,
            scale,
            ALPHA=constant,
            SMOOTHING=float(loss.label_smoothing),
            UNIFORM=uniform,
            RESIDUAL=residual is not None,
            ALL_CLASSES=classes is None,
            **sweep_options(size, z.dtype),
        )


def _solve_entmax(
    z: Tensor,
    target: Tensor,
    loss: FenchelYoungLoss,
    losses: Tensor,
    residual: Optional[Tensor] = None,
    scale: float = 1.0,
    uniform: bool = True,
) -> Tensor:
    """Add to ``losses``; return maximum, tau and total of each row, ``[3, rows]``."""
    rows, size = z.shape
    out = z if residual is None else residual
    found = losses.new_empty(3, rows)
    with torch.cuda.device_of(z):
        rates, constant = alpha_arguments(loss.alpha, z)
        _entmax_kernel[(rows,)](
            z,
            target,
            losses,
            found,
            out,
            rates,
            z.stride(0),
            out.stride(0),
            rows,
            size,
            loss.ignore_index,
            scale,
            ALPHA=constant,
            SMOOTHING=float(loss.label_smoothing),
            UNIFORM=uniform,
            RESIDUAL=residual is not None,
            **row_options(size, z.dtype),
        )
    return found


class _Losses(Function):
    @staticmethod
    def forward(ctx, z, target, loss):
        losses = starting_losses(z, loss, z.size(-1))
        if z.numel() == 0:
            found = losses.new_empty(3, z.size(0))
        elif loss.tau is None:
            found = _solve_entmax(z, target, loss, losses)
        else:
            add_alpha_relu_losses(z, target, loss, losses)
            found = scalar_tau(loss.tau, z)
        ctx.save_for_backward(z, target, found)
        ctx.loss = loss
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        z, target, found = ctx.saved_tensors
        return residual_of_rows(z, target, found, grad.contiguous(), ctx.loss), None, None


# Arguments that change per batch; excluded from specialisation to avoid recompiling.
_PER_BATCH = ["rows", "ignore_index"]


@triton.jit(do_not_specialize=_PER_BATCH)
def _entmax_kernel(
    z,
    target,
    losses,
    found,  # [3, rows]: maximum, tau, total
    residual,
    rates,  # alpha - 1, read if ALPHA is 0
    z_stride,
    residual_stride,
    rows,
    size,
    ignore_index,
    scale,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    UNIFORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    residual += row * residual_stride
    label = tl.load(target + row)
    if label == ignore_index:
        tl.store(losses + row, 0.0)
        if RESIDUAL:
            write_zeros(residual, size, BLOCK)
    else:
        gold = _gold_logit(z, label, 0, size, DTYPE)
        rate = rate_of(rates, ALPHA, DTYPE)
        if ALPHA == 0.0:
            maximum, tau, total, conjugate, logits = solve_row(
                z, size, rate, True, SMOOTHING > 0, BLOCK, WHOLE, DTYPE
            )
        else:
            maximum, tau, total, conjugate, logits = solve_row(
                z, size, ALPHA, False, SMOOTHING > 0, BLOCK, WHOLE, DTYPE
            )
        expected = _expected_logit(gold, logits, maximum, label, 0, size, size, SMOOTHING, DTYPE)
        _add_loss(losses + row, conjugate - expected, True)
        tl.store(found + row, maximum)
        tl.store(found + rows + row, tau)
        tl.store(found + 2 * rows + row, total)
        if RESIDUAL:
            write_residual(
                z,
                residual,
                size,
                label,
                maximum,
                tau,
                total,
                scale,
                ALPHA,
                SMOOTHING,
                UNIFORM,
                BLOCK,
                DTYPE,
                rate,
            )


@triton.jit(do_not_specialize=_PER_BATCH[1:])
def _alpha_relu_kernel(
    z,
    target,
    tau,
    losses,
    residual,
    rates,  # alpha - 1, read if ALPHA is 0
    z_stride,
    residual_stride,
    size,
    first,
    classes,
    ignore_index,
    scale,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    UNIFORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ALL_CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    residual += row * residual_stride
    label = tl.load(target + row)
    if label == ignore_index:
        tl.store(losses + row, 0.0)
        if RESIDUAL:
            write_zeros(residual, size, BLOCK)
    else:
        threshold = tl.load(tau)
        rate = rate_of(rates, ALPHA, DTYPE)
        gold = _gold_logit(z, label, first, size, DTYPE)
        if RESIDUAL:
            tl.debug_barrier()  # every thread has the gold logit before one overwrites it
        power = tl.zeros([BLOCK], DTYPE)
        logits = tl.zeros([BLOCK], DTYPE)
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            column = start + tl.arange(0, BLOCK)
            x = load_block(z, start, size, BLOCK, DTYPE)
            weight, above = factors(rate * x, threshold, rate, ALPHA)
            p = weight * above
            power += p * above  # p ** alpha
            if SMOOTHING > 0:
                logits += tl.where(column < size, x, 0.0)
            if RESIDUAL:
                difference = less_target(p, column, label - first, classes, SMOOTHING, UNIFORM)
                difference = (difference * scale).to(residual.dtype.element_ty)
                tl.store(residual + column, difference, mask=column < size)
        expected = _expected_logit(
            gold,
            tl.sum(logits, 0),
            divide(threshold, rate),
            label,
            first,
            size,
            classes,
            SMOOTHING,
            DTYPE,
        )
        _add_loss(losses + row, divide(tl.sum(power, 0), 1 + rate) - expected, ALL_CLASSES)


@triton.jit
def _gold_logit(z, label, first, size, DTYPE: tl.constexpr):
    """Load the logit of the label if it is among the columns, the classes from ``first`` on."""
    here = (label >= first) & (label < first + size)
    return tl.load(z + (label - first), mask=here, other=0.0).to(DTYPE)


@triton.jit
def _expected_logit(
    gold, logits, shift, label, first, size, classes, SMOOTHING: tl.constexpr, DTYPE: tl.constexpr
):
    """Return what the columns add to ``<q, z - shift>``; ``logits`` is the sum of theirs."""
    here = (label >= first) & (label < first + size)
    expected = tl.where(here, gold - shift, 0.0)
    expected = tl.where((label < 0) | (label >= classes), float("nan"), expected)
    if SMOOTHING > 0:
        mean = divide(logits - size * shift, tl.full([], classes, DTYPE))
        mean *= tl.full([], SMOOTHING, DTYPE)
        if SMOOTHING == 1:
            expected = mean  # 0 * expected would be NaN where that is -inf
        else:
            expected = expected * tl.full([], 1 - SMOOTHING, DTYPE) + mean
    return expected


@triton.jit
def _add_loss(losses, more, CLAMP: tl.constexpr):
    loss = tl.load(losses) + more
    if CLAMP:
        loss = tl.where(loss < 0, 0.0, loss)  # rounding; NaN stays
    tl.store(losses, loss)
