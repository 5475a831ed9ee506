"""``p - q``, the gradient of a sparse mapping's loss, on a GPU: one program for each row of logits.

With what is found of a row, its maximum, tau and total,
``p = [(alpha - 1) (z - maximum) - tau]_+ ** (1 / (alpha - 1)) / total``: for alpha-ReLU maximum is
0, tau the constant and total 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.arithmetic import alpha_arguments, divide, factors, rate_of
from fairseq_sparse.ops.gpu.entmax import load_block, sweep_options


def residual_of_rows(
    z: Tensor, target: Tensor, found: Tensor, scale: Tensor, loss: FenchelYoungLoss
) -> Tensor:
    """Return ``scale * (p - q)``, 0 in the rows that are ignored.

    Args:
        z: logits ``[rows, V]``, neighbours in a row next to each other.
        target: class indices ``[rows]``.
        found: for alpha-entmax maximum, tau and total of each row, ``[3, rows]``; for alpha-ReLU
            tau, ``[]``. fp32 (fp64 for fp64 logits).
        scale: ``[rows]``. The product is rounded, not its factors: with a scaled loss this can be
            too large for fp16 though the product is not.

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
            ENTMAX=loss.tau is None,
            **sweep_options(size, z.dtype),
        )
    return residual


@triton.jit(do_not_specialize=["rows", "ignore_index"])
def _residual_kernel(
    z,
    target,
    found,  # [3, rows] for alpha-entmax: maximum, tau, total; [] for alpha-ReLU: tau
    scale,
    residual,
    rates,  # alpha - 1, read if ALPHA is 0
    z_stride,
    rows,
    size,
    ignore_index,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    ENTMAX: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    residual += row * size
    label = tl.load(target + row)
    if label == ignore_index:
        write_zeros(residual, size, BLOCK)
    else:
        if ENTMAX:
            maximum = tl.load(found + row)
            tau = tl.load(found + rows + row)
            total = tl.load(found + 2 * rows + row)
        else:
            maximum = tl.full([], 0.0, DTYPE)
            tau = tl.load(found)
            total = tl.full([], 1.0, DTYPE)
        write_residual(
            z,
            residual,
            size,
            label,
            maximum,
            tau,
            total,
            tl.load(scale + row),
            ALPHA,
            SMOOTHING,
            True,
            BLOCK,
            DTYPE,
            rate_of(rates, ALPHA, DTYPE),
        )


@triton.jit
def write_residual(
    z,
    residual,
    size,
    label,
    maximum,
    tau,
    total,
    scale,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    UNIFORM: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    rate=None,
):
    """Write ``scale * (p - q)`` of a row; ``residual`` may be ``z``.

    ``rate`` is alpha - 1, a scalar tensor; it is needed where the constant ALPHA is 0.
    """
    if ALPHA == 0.0:
        by = rate
    else:
        by = tl.full([], ALPHA - 1, DTYPE)
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = (load_block(z, start, size, BLOCK, DTYPE) - maximum) * by
        weight, above = factors(x, tau, by, ALPHA)
        p = divide(weight * above, total)
        difference = less_target(p, column, label, size, SMOOTHING, UNIFORM)
        difference = (difference * scale).to(residual.dtype.element_ty)
        tl.store(residual + column, difference, mask=column < size)


@triton.jit
def write_zeros(residual, size, BLOCK: tl.constexpr):
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        zeros = tl.zeros([BLOCK], residual.dtype.element_ty)
        tl.store(residual + column, zeros, mask=column < size)


@triton.jit
def less_target(p, column, label, classes, SMOOTHING: tl.constexpr, UNIFORM: tl.constexpr):
    """Return ``p - q``, without the part ``label_smoothing / classes`` of q unless UNIFORM."""
    difference = p - tl.where(column == label, tl.full([], 1 - SMOOTHING, p.dtype), 0.0)
    if UNIFORM:
        if SMOOTHING > 0:
            share = tl.full([], SMOOTHING, p.dtype)
            difference -= divide(share, tl.full([], classes, p.dtype))
    return difference
