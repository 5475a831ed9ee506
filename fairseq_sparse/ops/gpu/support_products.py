"""The products of the sparse ``R = p - q`` on a GPU, from the lists of its nonzeros.

``R W`` gathers a few rows of ``W`` for each row of features. ``R^T x`` gathers, for each class, the
rows of features whose lists contain it, in order: the lists are sorted by class. Each sum is made
by one program, in a fixed order.
"""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.gpu.arithmetic import compute_dtype
from fairseq_sparse.ops.gpu.support import Support

# Rows that a program gathers at a time, and how much of each. The loops are not pipelined: most
# take one or two rounds, and Triton 3.0 orders the loads of a gather wrongly.
_GATHERED, _FEATURES = 8, 512


def times_weight(support: Support, scale: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    """Return ``scale * (R W + start)``, ``[rows, d]``.

    Args:
        scale: ``[rows]``; where it is 0, so is the result.
        weight: ``[V, d]``, contiguous.
        start: ``[d]``.
    """
    rows, width = scale.size(0), weight.size(1)
    result = torch.empty(rows, width, dtype=compute_dtype(weight), device=weight.device)
    options = _options(support, width)
    with torch.cuda.device_of(weight):
        _features_kernel[(rows, triton.cdiv(width, options["FEATURES"]))](
            support.columns,
            support.values,
            support.counts,
            scale,
            weight,
            start,
            result,
            width,
            **options,
        )
    return result


def transposed_times_features(
    support: Support,
    scale: Tensor,
    x: Tensor,
    classes: int,
    start: Optional[Tensor],
    start_bias: Optional[Tensor],
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Return ``(scale R)^T x + start``, ``[V, d]``, and ``(scale R)^T 1 + start_bias``, ``[V]``.

    Args:
        x: ``[rows, d]``, contiguous.
        start: ``[d]``, None if the first result is not wanted.
        start_bias: ``[]``, None if the second is not wanted.
    """
    width, dtype = x.size(1), compute_dtype(x)
    # Sort the entries by class, then by row; those of no class come last.
    ordered, order = torch.sort(support.columns.view(-1), stable=True)
    every = torch.arange(classes + 1, dtype=ordered.dtype, device=x.device)
    first = torch.searchsorted(ordered, every)
    weight = bias = None
    if start is not None:
        weight = torch.empty(classes, width, dtype=dtype, device=x.device)
    if start_bias is not None:
        bias = torch.empty(classes, dtype=dtype, device=x.device)
    options = _options(support, width)
    blocks = triton.cdiv(width, options["FEATURES"]) if weight is not None else 1
    with torch.cuda.device_of(x):
        _classes_kernel[(classes, blocks)](
            order,
            first,
            support.values,
            scale,
            x,
            x if start is None else start,
            x if start_bias is None else start_bias,
            x if weight is None else weight,
            x if bias is None else bias,
            width,
            WEIGHT=weight is not None,
            BIAS=bias is not None,
            **options,
        )
    return weight, bias


def _options(support: Support, width: int) -> dict:
    return {
        "SLOTS": support.columns.size(1),
        "GATHERED": _GATHERED,
        "FEATURES": min(_FEATURES, triton.next_power_of_2(width)),
        "DTYPE": tl.float64 if support.values.dtype == torch.float64 else tl.float32,
        "enable_fp_fusion": False,
    }


@triton.jit
def _features_kernel(
    columns,
    values,
    counts,
    scale,
    weight,
    start,
    result,
    width,
    SLOTS: tl.constexpr,
    GATHERED: tl.constexpr,
    FEATURES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    here = feature < width
    count = tl.load(counts + row)
    factor = tl.load(scale + row)
    total = tl.load(start + feature, mask=here, other=0.0)
    for first in range(0, count, GATHERED):
        slot = first + tl.arange(0, GATHERED)
        taken = slot < count
        column = tl.load(columns + row * SLOTS + slot, mask=taken, other=0).to(tl.int64)
        value = tl.load(values + row * SLOTS + slot, mask=taken, other=0.0)
        at = column[:, None] * width + feature[None, :]
        gathered = tl.load(weight + at, mask=taken[:, None] & here[None, :], other=0.0)
        total += tl.sum(value[:, None] * gathered.to(DTYPE), 0)
    total = tl.where(factor == 0, 0.0, factor * total)
    tl.store(result + row * width + feature, total, mask=here)


@triton.jit
def _classes_kernel(
    order,
    first,
    values,
    scale,
    x,
    start,
    start_bias,
    weight,
    bias,
    width,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SLOTS: tl.constexpr,
    GATHERED: tl.constexpr,
    FEATURES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    one = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    here = feature < width
    last = tl.load(first + one + 1)
    total = tl.zeros([FEATURES], DTYPE)
    if WEIGHT:
        total += tl.load(start + feature, mask=here, other=0.0)
    total_bias = tl.zeros([GATHERED], DTYPE)
    for at in range(tl.load(first + one), last, GATHERED):
        entry = at + tl.arange(0, GATHERED)
        taken = entry < last
        place = tl.load(order + entry, mask=taken, other=0)
        row = place // SLOTS
        value = tl.load(values + place, mask=taken, other=0.0)
        value *= tl.load(scale + row, mask=taken, other=0.0)
        total_bias += value
        if WEIGHT:
            gathered = tl.load(
                x + (row[:, None] * width + feature[None, :]),
                mask=taken[:, None] & here[None, :],
                other=0.0,
            )
            total += tl.sum(value[:, None] * gathered.to(DTYPE), 0)
    if WEIGHT:
        tl.store(weight + one * width + feature, total, mask=here)
    if BIAS:
        if tl.program_id(1) == 0:
            tl.store(bias + one, tl.load(start_bias) + tl.sum(total_bias, 0))
