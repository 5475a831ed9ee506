"""The dense path for rows with a large support: their logits, in chunks of bounded size.

Only the GPU knows how many such rows there are, and nothing waits for it. So the kernels are
started for as many chunks as all rows would need, and those of a chunk without rows end at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.arithmetic import alpha_arguments, compute_dtype, rate_of
from fairseq_sparse.ops.gpu.candidates import is_exact, logits_of_tile, tile_options
from fairseq_sparse.ops.gpu.entmax import sweep_options
from fairseq_sparse.ops.gpu.residual import write_residual

# Chunk size in bytes of logits.
_CHUNK_BYTES = 256 << 20
# Rows of a chunk are a multiple of this.
_TILE = 128
# R is multiplied by this before it is rounded to fp16: small probabilities keep their digits, and
# those of alpha-ReLU overflow only above 255.
_FP16_SCALE = 256.0
# Options that the products share with the logits.
_SHARED = ("PRECISION", "DTYPE", "num_warps", "enable_fp_fusion")
# Columns of a gradient that a program makes, for _TILE rows or classes.
_FEATURES = 128


def rows_per_chunk(rows: int, classes: int, dtype: torch.dtype) -> int:
    """Return how many rows have their logits in memory at a time."""
    fit = _CHUNK_BYTES // (classes * dtype.itemsize)
    return min(-(-rows // _TILE), max(1, fit // _TILE)) * _TILE


def order_of(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Return all row numbers, dense rows first, and the number of dense rows, ``[]``."""
    return torch.argsort(dense, descending=True, stable=True), dense.sum()


def product_options(x: Tensor) -> dict:
    """Return the constants of the kernels for ``R W`` and ``R^T x``."""
    tile, exact = tile_options(x), is_exact(x)
    return {
        **{name: tile[name] for name in _SHARED},
        "TILE": _TILE,
        "DEPTH": 16 if exact else tile["FEATURES"],
        "FEATURES": max(16, _FEATURES // 2) if exact else _FEATURES,
        "SCALE": _FP16_SCALE if x.dtype == torch.float16 else 1.0,
    }


class DenseRows:
    """The rows of ``F.linear(x, weight, bias)`` that are dense, chunk by chunk."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Optional[Tensor], dense: Tensor):
        self.x, self.weight, self.bias = x, weight, bias
        self.order, self.dense_count = order_of(dense)

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """Compute the logits ``[chunk, V]`` of a chunk of rows, in the same memory each time.

        Yields:
            The place of its first row in ``order``, and the logits.
        """
        rows, classes = self.x.size(0), self.weight.size(0)
        dtype = compute_dtype(self.x)
        chunk = rows_per_chunk(rows, classes, dtype)
        logits = torch.empty(chunk, classes, dtype=dtype, device=self.x.device)
        options = tile_options(self.x, self.bias)
        grid = triton.cdiv(chunk, options["ROWS"]), triton.cdiv(classes, options["CLASSES"])
        for first in range(0, rows, chunk):
            with torch.cuda.device_of(self.x):
                _logits_kernel[grid](
                    self.x,
                    self.weight,
                    self.x if self.bias is None else self.bias,
                    self.order,
                    self.dense_count,
                    logits,
                    first,
                    chunk,
                    classes,
                    self.x.size(1),
                    **options,
                )
            yield first, logits

    def add_gradients(
        self,
        gradients: list[Optional[Tensor]],
        target: Tensor,
        found: Tensor,
        scale: Tensor,
        loss: FenchelYoungLoss,
    ) -> None:
        """Add the gradients of features, weight and bias, without the part of label smoothing.

        Args:
            gradients: the three to add to, in :func:`compute_dtype`; None for one not wanted.
            target: ``[rows]``.
            found: maximum, tau and total of each row, ``[3, rows]``.
            scale: the gradient of each row's loss, ``[rows]``, 0 where the target is ignored.
        """
        features, weight, bias = gradients
        # R is rounded to the dtype of x, where the scale could overflow.
        largest = scale.abs().max()
        largest = torch.where(largest == 0, 1.0, largest)
        relative = scale / largest
        rows, classes, width = self.x.size(0), self.weight.size(0), self.x.size(1)
        options = product_options(self.x)
        blocks = triton.cdiv(width, options["FEATURES"])
        rates, alpha = alpha_arguments(loss.alpha, relative)
        for first, residual in self.chunks():
            chunk = residual.size(0)
            places = self.order, self.dense_count, first
            with torch.cuda.device_of(self.x):
                _residual_kernel[(chunk,)](
                    residual,
                    target,
                    found,
                    relative,
                    rates,
                    *places,
                    rows,
                    classes,
                    ALPHA=alpha,
                    SMOOTHING=float(loss.label_smoothing),
                    **sweep_options(classes, residual.dtype),
                )
                if features is not None:
                    _features_kernel[(triton.cdiv(chunk, _TILE), blocks)](
                        residual,
                        self.weight,
                        features,
                        largest,
                        *places,
                        chunk,
                        classes,
                        width,
                        **options,
                    )
                if weight is not None or bias is not None:
                    _weight_kernel[(triton.cdiv(classes, _TILE), blocks)](
                        residual,
                        self.x,
                        self.x if weight is None else weight,
                        self.x if bias is None else bias,
                        largest,
                        *places,
                        chunk,
                        classes,
                        width,
                        WEIGHT=weight is not None,
                        BIAS=bias is not None,
                        **options,
                    )


_CHANGING = ["first", "chunk", "rows"]


@triton.jit(do_not_specialize=_CHANGING)
def _logits_kernel(
    x,
    weight,
    bias,
    order,
    dense_count,
    logits,
    first,
    chunk,
    size,
    width,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    DTYPE: tl.constexpr,
):
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    last = tl.minimum(tl.load(dense_count) - first, chunk)
    if tl.program_id(0) * ROWS < last:
        row = tl.load(order + first + place, mask=place < last, other=0)
        column = tl.program_id(1) * CLASSES + tl.arange(0, CLASSES)
        z = logits_of_tile(
            x, weight, bias, row, column, size, width, BIAS, FEATURES, PRECISION, DTYPE
        )
        at = place.to(tl.int64)[:, None] * size + column[None, :]
        tl.store(logits + at, z, mask=(place < last)[:, None] & (column < size)[None, :])


@triton.jit(do_not_specialize=_CHANGING)
def _residual_kernel(
    z,
    target,
    found,  # [3, rows]: maximum, tau, total
    scale,
    rates,  # alpha - 1, read if ALPHA is 0
    order,
    dense_count,
    first,
    rows,
    size,
    ALPHA: tl.constexpr,
    SMOOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    if first + place < tl.load(dense_count):
        row = tl.load(order + first + place)
        z += place * size
        factor = tl.load(scale + row)
        rate = rate_of(rates, ALPHA, DTYPE)
        write_residual(
            z, z, size, tl.load(target + row), found + row, rows, factor, rate,
            ALPHA, SMOOTHING, False, BLOCK, DTYPE,
        )  # fmt: skip


@triton.jit(do_not_specialize=_CHANGING)
def _features_kernel(
    residual,
    weight,
    gradient,
    factor,
    order,
    dense_count,
    first,
    chunk,
    size,
    width,
    SCALE: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Add ``R W`` to the rows of the gradient. A tile of R that is all 0 is skipped."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    last = tl.minimum(tl.load(dense_count) - first, chunk)
    if tl.program_id(0) * TILE < last:
        inside = place < last
        total = tl.zeros([TILE, FEATURES], DTYPE)
        for start in range(0, size, DEPTH):
            column = (start + tl.arange(0, DEPTH)).to(tl.int64)
            at = place.to(tl.int64)[:, None] * size + column[None, :]
            r = tl.load(residual + at, mask=inside[:, None] & (column < size)[None, :], other=0.0)
            if tl.max((r != 0).to(tl.int32)) > 0:
                w = tl.load(
                    weight + (column[:, None] * width + feature[None, :]),
                    mask=(column < size)[:, None] & (feature < width)[None, :],
                    other=0.0,
                )
                rounded = (r * SCALE).to(w.dtype)
                total = tl.dot(rounded, w, total, input_precision=PRECISION, out_dtype=DTYPE)
        row = tl.load(order + first + place, mask=inside, other=0)
        to = gradient + (row.to(tl.int64)[:, None] * width + feature[None, :])
        here = inside[:, None] & (feature < width)[None, :]
        total = tl.load(to, mask=here, other=0.0) + total * (tl.load(factor) * (1 / SCALE))
        tl.store(to, total, mask=here)


@triton.jit(do_not_specialize=_CHANGING)
def _weight_kernel(
    residual,
    x,
    gradient,
    bias,
    factor,
    order,
    dense_count,
    first,
    chunk,
    size,
    width,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Add ``R^T x`` to the gradient of the weight, and the column sums of R to that of the bias."""
    column = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    last = tl.minimum(tl.load(dense_count) - first, chunk)
    if last > 0:
        total = tl.zeros([TILE, FEATURES], DTYPE)
        total_bias = tl.zeros([TILE], DTYPE)
        for start in range(0, last, DEPTH):
            place = start + tl.arange(0, DEPTH)
            inside = place < last
            at = place.to(tl.int64)[None, :] * size + column[:, None]
            r = tl.load(residual + at, mask=inside[None, :] & (column < size)[:, None], other=0.0)
            if tl.max((r != 0).to(tl.int32)) > 0:
                total_bias += tl.sum(r, 1)
                if WEIGHT:
                    row = tl.load(order + first + place, mask=inside, other=0)
                    features = tl.load(
                        x + (row.to(tl.int64)[:, None] * width + feature[None, :]),
                        mask=inside[:, None] & (feature < width)[None, :],
                        other=0.0,
                    )
                    rounded = (r * SCALE).to(features.dtype)
                    total = tl.dot(
                        rounded, features, total, input_precision=PRECISION, out_dtype=DTYPE
                    )
        if WEIGHT:
            to = gradient + (column[:, None] * width + feature[None, :])
            here = (column < size)[:, None] & (feature < width)[None, :]
            total = tl.load(to, mask=here, other=0.0) + total * (tl.load(factor) * (1 / SCALE))
            tl.store(to, total, mask=here)
        if BIAS:
            if tl.program_id(1) == 0:
                total_bias = tl.load(bias + column, mask=column < size, other=0.0) + (
                    total_bias * tl.load(factor)
                )
                tl.store(bias + column, total_bias, mask=column < size)
