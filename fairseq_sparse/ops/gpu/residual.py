"""``p - q``, the gradient of a sparse mapping's loss, on a GPU: one program for each row of logits.

With the maximum, tau and total that were found for a row,
``p = [(alpha - 1) (z - maximum) - tau]_+ ** (1 / (alpha - 1)) / total``. For alpha-ReLU the maximum
is 0, tau the constant and the total 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.arithmetic import alpha_arguments, divide, factors, rate_of
from fairseq_sparse.ops.gpu.entmax import load_block, sweep_options
from fairseq_sparse.ops.gpu.entmax_search import STAGES


def residual_of_rows(
    z: Tensor, target: Tensor, found: Tensor, scale: Tensor, loss: FenchelYoungLoss
) -> Tensor:
    """Return ``scale * (p - q)``, 0 in the rows that are ignored.

    Args:
        z: logits ``[rows, V]``, with contiguous rows.
        target: class indices ``[rows]``.
        found: maximum, tau and total of each row, ``[3, rows]``; fp32 (fp64 for fp64 logits).
        scale: ``[rows]``. The product is rounded, not its factors: with a scaled loss, the scale
            can be too large for fp16 although the product is not.

    Returns:
        ``[rows, V]`` in the dtype of ``z``.
    """
    rows, size = z.shape
    residual = torch.empty_like(z, memory_format=torch.contiguous_format)
    if residual.numel() == 0:
        return residual
    with torch.cuda.device_of(z):
        rates, constant = alpha_arguments(loss.alpha, z)
        _residual_kernel[(rows,)](
            z,
            target,
            found,
            scale,
            residual,
            rates,
            z.stride(0),
            rows,
            size,
            loss.ignore_index,
            ALPHA=constant,
            SMOOTHING=float(loss.label_smoothing),
            **sweep_options(size, z.dtype),
        )
    return residual


@triton.jit(do_not_specialize=["rows", "ignore_index"])
def _residual_kernel(
    z,
    target,
    found,  # [3, rows]: maximum, tau, total
    scale,
    residual,
    rates,  # alpha - 1, read if ALPHA is 0
    z_stride,
    rows,
    size,
    ignore_index,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    residual += row * size
    label = tl.load(target + row)
    if label == ignore_index:
        for start in range(0, size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            zeros = tl.zeros([BLOCK], residual.dtype.element_ty)
            tl.store(residual + column, zeros, mask=column < size)
    else:
        rate = rate_of(rates, ALPHA, DTYPE)
        factor = tl.load(scale + row)
        write_residual(
            z, residual, size, label, found + row, rows, factor, rate,
            ALPHA, SMOOTHING, True, BLOCK, DTYPE,
        )  # fmt: skip


@triton.jit
def write_residual(
    z,
    residual,
    size,
    label,
    found,
    rows,
    scale,
    rate,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    UNIFORM: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Write ``scale * (p - q)`` of a row; ``residual`` may be ``z``.

    Args:
        found: the row's place in ``[3, rows]``.
        rate: alpha - 1, a scalar tensor.
    """
    maximum = tl.load(found)
    tau = tl.load(found + rows)
    total = tl.load(found + 2 * rows)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = (load_block(z, start, size, BLOCK, DTYPE) - maximum) * rate
        weight, above = factors(x, tau, rate, ALPHA)
        p = divide(weight * above, total)
        difference = less_target(p, column, label, size, SMOOTHING, UNIFORM)
        difference = (difference * scale).to(residual.dtype.element_ty)
        tl.store(residual + column, difference, mask=column < size)


@triton.jit
def less_target(p, column, label, classes, SMOOTHING: tl.constexpr, UNIFORM: tl.constexpr):
    """Return ``p - q``, without the part ``label_smoothing / classes`` of q unless UNIFORM."""
    difference = p - tl.where(column == label, tl.full([], 1 - SMOOTHING, p.dtype), 0.0)
    if UNIFORM:
        if SMOOTHING > 0:
            share = tl.full([], SMOOTHING, p.dtype)
            difference -= divide(share, tl.full([], classes, p.dtype))
    return difference
