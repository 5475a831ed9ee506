"""The logits that can be in the support, found while they are computed: no others are written.

One kernel multiplies features and weights tile by tile. A program has a block of rows and a share
of the classes, goes through the classes in order, and keeps for each row a ``cut``; logits below it
have probability 0:

- alpha-ReLU: ``tau / (alpha - 1)``, so that the support is kept and hardly anything else;
- alpha-entmax: the largest logit so far minus ``1 / (alpha - 1)``, because tau is at least the
  scaled maximum minus 1. If the logits seen since the cut last rose have a total probability above
  1 at the cut, a Newton step for these alone raises it further: more logits only raise a threshold,
  and a step from the left never overshoots.

A logit above the current cut is appended to the list of its row and program. A cut that is too low
lets in logits whose probability is 0. Nothing depends on the order in which programs run: the lists
are the same in every run.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.arithmetic import (
    alpha_arguments,
    compute_dtype,
    divide,
    factors,
    rate_of,
    sums_of_two,
    to_compute_dtype,
)
from fairseq_sparse.ops.gpu.entmax_search import norm_power

# Target number of programs: two per multiprocessor of an H100 or H200. It is the same on all GPUs,
# because the lists, and with them the rounding of sums, depend on it.
_PROGRAMS = 264
_MOST_PARTS = 16
# A program's list for a row has this many times the square root of its classes as places. For 64
# rows of normal logits and alpha = 1.5, the longest lists took 3.2 to 3.7 times the square root,
# with 640 to 32,000 classes; the wider the spread of the logits, the shorter the lists.
_PLACES = 4.0
# Rows and classes of a tile, and bytes of its features. Without tensor cores a tile has half of the
# classes: a thread has too few registers for all.
_TILE_ROWS, _TILE_CLASSES = 128, 128
_TILE_BYTES = 128
# Margins that keep the cut below the threshold despite the rounding of sums and large logits.
_LESS = tl.constexpr(0.999)
_ROUNDING = tl.constexpr(2.0**-22)
# Below any logit, but finite: -inf less itself is NaN.
_LOWEST = tl.constexpr(-1e30)


class Candidates(NamedTuple):
    """Lists of logits that can be in the support, ``length`` places for each row and part."""

    columns: Tensor  # [rows, parts * length], int32: the classes
    scores: Tensor  # [rows, parts * length], fp32: the logits, -inf in the places not taken
    counts: Tensor  # [rows, parts], int32; above ``length`` where the list is not complete
    gold: Tensor  # [rows], the logit of the target, 0 if it is no class
    sums: Tensor  # [rows, parts], the sum of the logits; only with label smoothing
    length: int


def find_candidates(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, loss: FenchelYoungLoss
) -> Candidates:
    """Find the candidates of each row of ``F.linear(x, weight, bias)``.

    Args:
        x: ``[rows, d]``, contiguous.
        weight: ``[V, d]``, contiguous, in the same dtype.
        bias: ``[V]`` in :func:`compute_dtype`, or None.
        target: ``[rows]``. Rows that are ignored have no candidates.

    If a row has a NaN or +inf, its list is marked as not complete.
    """
    rows, size = x.size(0), weight.size(0)
    options = tile_options(x, bias)
    blocks = triton.cdiv(rows, options["ROWS"])
    tiles = triton.cdiv(size, options["CLASSES"])
    tiles_each = triton.cdiv(tiles, max(1, min(_MOST_PARTS, _PROGRAMS // blocks)))
    parts = triton.cdiv(tiles, tiles_each)
    # A multiple of 16: Triton compiles a kernel anew for other sizes.
    length = -(-math.ceil(_PLACES * math.sqrt(tiles_each * options["CLASSES"])) // 16) * 16
    dtype = compute_dtype(x)
    found = Candidates(
        torch.empty(rows, parts * length, dtype=torch.int32, device=x.device),
        torch.full((rows, parts * length), -float("inf"), dtype=dtype, device=x.device),
        torch.empty(rows, parts, dtype=torch.int32, device=x.device),
        torch.zeros(rows, dtype=dtype, device=x.device),
        torch.empty(rows, parts, dtype=dtype, device=x.device),
        length,
    )
    with torch.cuda.device_of(x):
        rates, alpha = alpha_arguments(loss.alpha, x)
        _candidates_kernel[(blocks, parts)](
            x,
            weight,
            x if bias is None else bias,
            target,
            rates if loss.tau is None else to_compute_dtype(loss.tau, x),
            rates,
            *found[:5],
            rows,
            size,
            x.size(1),
            tiles_each,
            length,
            loss.ignore_index,
            ALPHA=alpha,
            ENTMAX=loss.tau is None,
            SUMS=loss.label_smoothing > 0,
            **options,
        )
    return found


def is_exact(x: Tensor) -> bool:
    """Return whether products are in full fp32 or fp64, as those of PyTorch would be."""
    if x.dtype != torch.float32:
        return x.dtype == torch.float64
    settings = torch.backends.cuda.matmul
    # PyTorch 2.9 and later refuse to read the older setting once the newer one has been changed.
    if hasattr(settings, "fp32_precision"):
        return settings.fp32_precision != "tf32"
    return not settings.allow_tf32


def tile_options(x: Tensor, bias: Optional[Tensor] = None) -> dict:
    """Return the constants of :func:`logits_of_tile`."""
    exact = is_exact(x)
    return {
        "BIAS": bias is not None,
        "ROWS": _TILE_ROWS,
        "CLASSES": max(16, _TILE_CLASSES // 2) if exact else _TILE_CLASSES,
        "FEATURES": max(16, _TILE_BYTES // x.element_size()),
        "PRECISION": "ieee" if exact else "tf32",
        "DTYPE": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "num_warps": 8,
        "num_stages": 3,
        "enable_fp_fusion": False,
    }


@triton.jit
def logits_of_tile(
    x,
    weight,
    bias,
    row,
    column,
    size,
    width,
    BIAS: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Compute the logits of the rows at ``row`` and the classes at ``column``, -inf past the last.

    ``row`` must be in range.
    """
    known = column < size
    feature = tl.arange(0, FEATURES)
    x += row.to(tl.int64)[:, None] * width + feature[None, :]
    weight += tl.where(known, column, 0).to(tl.int64)[None, :] * width + feature[:, None]
    z = tl.zeros([row.shape[0], column.shape[0]], DTYPE)
    for start in tl.range(0, width, FEATURES):
        here = start + feature < width
        features = tl.load(x + start, mask=here[None, :], other=0.0)
        weights = tl.load(weight + start, mask=here[:, None], other=0.0)
        z = tl.dot(features, weights, z, input_precision=PRECISION, out_dtype=DTYPE)
    if BIAS:
        z += tl.load(bias + column, mask=known, other=0.0)[None, :]
    return tl.where(known[None, :], z, float("-inf"))


# The number of parts, and with it the length of the lists, depends on the number of rows.
@triton.jit(do_not_specialize=["rows", "tiles_each", "length", "ignore_index"])
def _candidates_kernel(
    x,
    weight,
    bias,
    target,
    tau,  # read unless ENTMAX
    rates,  # alpha - 1, read if ALPHA is 0
    columns,
    scores,
    counts,
    gold,
    sums,
    rows,
    size,
    width,
    tiles_each,
    length,
    ignore_index,
    ALPHA: tl.constexpr,
    ENTMAX: tl.constexpr,
    SUMS: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    FEATURES: tl.constexpr,
    PRECISION: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    inside = row < rows
    row = tl.where(inside, row, 0)
    label = tl.load(target + row)
    counted = inside & (label != ignore_index)
    label = tl.where((label >= 0) & (label < size), label, -1).to(tl.int32)
    # Places in the lists of this block of rows, which 32 bits can hold.
    place = (tl.arange(0, ROWS) * parts + part) * length
    block = tl.program_id(0).to(tl.int64) * ROWS * parts * length
    columns += block
    scores += block
    count = tl.zeros([ROWS], tl.int32)
    total = tl.zeros([ROWS], DTYPE)
    mass = tl.zeros([ROWS], DTYPE)
    rate = rate_of(rates, ALPHA, DTYPE)
    if ENTMAX:
        reach = divide(tl.zeros_like(rate) + 1, rate)
        cut = tl.full([ROWS], _LOWEST, DTYPE)
        slope = tl.zeros([ROWS], DTYPE)
    else:
        cut = divide(tl.zeros([ROWS], DTYPE) + tl.load(tau), rate)
        cut -= _ROUNDING * tl.abs(cut)
    for tile in range(part * tiles_each, (part + 1) * tiles_each):
        column = tile * CLASSES + tl.arange(0, CLASSES)
        z = logits_of_tile(
            x, weight, bias, row, column, size, width, BIAS, FEATURES, PRECISION, DTYPE
        )
        if SUMS:
            total += tl.sum(tl.where((column < size)[None, :], z, 0.0), 1)
        has_gold = counted & (label >= tile * CLASSES) & (label < (tile + 1) * CLASSES)
        if tl.max(has_gold.to(tl.int32)) > 0:
            of_label = tl.sum(tl.where(column[None, :] == label[:, None], z, 0.0), 1)
            tl.store(gold + row, of_label, mask=has_gold)
        largest, at = tl.max(z, 1, return_indices=True)
        if ENTMAX:
            cut, mass, slope = _raised(z, largest, cut, mass, slope, rate, reach, ALPHA)
        else:
            mass += tl.sum(tl.where(z < cut[:, None], 0.0, z - cut[:, None]), 1)
        # A few logits of each row are above the cut: they are taken one by one, the largest first.
        more = counted & (largest > cut) & (count <= length)
        while tl.max(more.to(tl.int32)) > 0:
            fits = more & (count < length)
            tl.store(scores + place + count, largest, mask=fits)
            tl.store(columns + place + count, tile * CLASSES + at, mask=fits)
            count += more.to(tl.int32)
            taken = more[:, None] & (tl.arange(0, CLASSES)[None, :] == at[:, None])
            z = tl.where(taken, float("-inf"), z)
            largest, at = tl.max(z, 1, return_indices=True)
            more = counted & (largest > cut) & (count <= length)
    # If a logit was NaN or +inf, mass is not finite, and the list is marked as not complete.
    count = tl.where((mass < float("inf")) | (counted == 0), count, length + 1)
    tl.store(counts + row * parts + part, count, mask=inside)
    if SUMS:
        tl.store(sums + row * parts + part, total, mask=inside)


@triton.jit
def _raised(z, largest, cut, mass, slope, rate, reach, ALPHA: tl.constexpr):
    """Return the cut raised by a tile of logits, and what a Newton step from it needs.

    ``mass`` is the sum of the probabilities at the cut over the logits seen since it rose, and
    ``slope`` the sum of their powers. A NaN or +inf makes ``mass`` NaN or +inf from then on.
    ``reach`` is ``1 / rate``.
    """
    higher = tl.maximum(cut, largest - reach - _ROUNDING * tl.abs(largest))
    rose = (higher > cut) & (mass < float("inf"))
    weight, above = factors(rate * (z - higher[:, None]), 0.0, rate, ALPHA)
    more_mass, more_slope = sums_of_two(weight * above, weight)
    mass = tl.where(rose, 0.0, mass) + tl.reshape(more_mass, mass.shape)
    slope = tl.where(rose, 0.0, slope) + tl.reshape(more_slope, slope.shape)
    # No Newton steps above alpha = 2, where the norm is not convex.
    less = _LESS * mass
    steps = (less > 1) & (less < float("inf")) & (tl.zeros_like(less) + rate <= 1)
    step = divide(less - norm_power(less, rate, ALPHA), tl.where(steps, slope, 1.0) * rate)
    higher = tl.where(steps, higher + step, higher)
    mass = tl.where(steps, 0.0, mass)
    slope = tl.where(steps, 0.0, slope)
    return higher, mass, slope
