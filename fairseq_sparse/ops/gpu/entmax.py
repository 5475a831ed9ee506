"""alpha-entmax on a GPU: one program for each row, no sort, and most rows read once to solve them.

The problem and its notation are those of ``reference/entmax.py``. A vocabulary does not fit into
registers, and reading it again is not cheap even from the L2 cache. So what counts is the number of
sweeps over a row:

1. The first sweep keeps the three largest entries of each of BLOCK lanes (entry i is in lane
   i mod BLOCK). The search then runs in registers, over the largest of each lane and then over
   all three. More entries can only raise a threshold, so this one is a lower bound of the row's.
   It is the row's own if no lane's third entry is above it, because then no fourth one is either.
   Of rows with a support of 50 entries, 1 in 200 fails this test with 2,048 lanes.
2. A row that fails is swept by Newton steps from that bound on: one or two for normal logits with
   alpha = 1.5, three with alpha = 1.1 and a whole vocabulary in the support. One more sweep
   computes the sums.

A row of up to 4,096 entries is in registers as a whole. Rows of up to 128 entries, as in attention,
share a program, so that each has no more than one warp. In the code below, the numbers of a row are
``[ROWS, 1]``, and its loaded entries are ``[ROWS, BLOCK]``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.gpu.arithmetic import (
    alpha_arguments,
    any_of,
    compute_dtype,
    divide,
    factors,
    positive_power,
)
from fairseq_sparse.ops.gpu.entmax_search import (
    LANES,
    LARGEST,
    ROW,
    STAGES,
    load_rows,
    reachable,
    search,
    sums,
)
from fairseq_sparse.ops.reference.entmax import Alpha, EntmaxRows

# Rows of up to this many entries share a program, which has this many entries for each warp.
_SHORT = 128
_WARPS_OF_SHORT = 4


def entmax_probabilities(z: Tensor, alpha: Alpha) -> Tensor:
    """Return the probabilities of :func:`entmax_rows`."""
    return entmax_rows(z, alpha, conjugate=False).p


def entmax_rows(z: Tensor, alpha: Alpha, conjugate: bool = True) -> EntmaxRows:
    """Solve alpha-entmax for each row of ``z``.

    Args:
        z: logits, ``[rows, size]``, any floating dtype.
        alpha: a float > 1, or a tensor with one value a row.
        conjugate: whether the conjugate is wanted.
    """
    z = contiguous_rows(z)
    rows, size = z.shape
    p = torch.empty_like(z, memory_format=torch.contiguous_format)
    found = torch.zeros(3, rows, dtype=compute_dtype(z), device=z.device)
    if p.numel() > 0:
        options = row_options(size, z.dtype)
        at_a_time = 1
        if options["BLOCK"] <= _SHORT:
            at_a_time = _SHORT // options["BLOCK"] * _WARPS_OF_SHORT
            options["num_warps"] = _WARPS_OF_SHORT
        with torch.cuda.device_of(z):
            rates, constant = alpha_arguments(alpha, z)
            rates = rates.expand(rows, 1)
            _entmax_kernel[(triton.cdiv(rows, at_a_time),)](
                z,
                rates,
                p,
                found,
                z.stride(0),
                rates.stride(0),
                size,
                rows,
                ALPHA=constant,
                ROWS=at_a_time,
                **options,
            )
    tau, value, maximum = found
    return EntmaxRows(p, tau, value if conjugate else None, maximum)


def contiguous_rows(z: Tensor) -> Tensor:
    """Return ``z`` with contiguous rows, copied only if necessary."""
    return z if z.stride(-1) == 1 or z.size(-1) <= 1 else z.contiguous()


def row_options(size: int, dtype: torch.dtype) -> dict:
    """Return :func:`sweep_options` for a kernel that solves rows; WHOLE if a row is one block."""
    options = sweep_options(size, dtype)
    return {**options, "WHOLE": size <= options["BLOCK"]}


def sweep_options(size: int, dtype: torch.dtype) -> dict:
    """Return the options of a kernel with one program per row that takes BLOCK logits at a time."""
    whole = size <= 4096
    if whole:
        block = max(16, triton.next_power_of_2(size))
    else:
        block = 1024 if size <= 1 << 14 else 2048
    return {
        "BLOCK": block,
        "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
        # For a long row a thread has 8 lanes, in 64 to 80 registers: 24 to 32 warps fit on an SM,
        # and their loads of the current and the next block hide the latency of the memory.
        "num_warps": max(1, block // (512 if whole else 256)),
        "enable_fp_fusion": False,  # every operation rounds, as in the interpreter
    }


@triton.jit(do_not_specialize=["rates_stride", "rows"])
def _entmax_kernel(
    z,
    rates,  # alpha - 1, one a row or one in all; read if ALPHA is 0
    p,
    found,  # [3, rows]: tau, conjugate, maximum
    z_stride,
    rates_stride,
    size,
    rows,
    ALPHA: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    there = row < rows
    z += row * z_stride
    p += row * size
    found += row
    if ALPHA == 0.0:
        rate = tl.load(rates + row * rates_stride, mask=there, other=1.0)
    else:
        rate = tl.full([], ALPHA - 1, DTYPE)
    maximum, tau, total, conjugate, _, x = solve_rows(
        z, there, size, rate, ALPHA, False, BLOCK, WHOLE, DTYPE
    )
    if WHOLE:
        _store_p(p, there, 0, size, x, tau, total, rate, ALPHA, BLOCK)
    else:
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            x = (load_rows(z, there, start, size, BLOCK).to(DTYPE) - maximum) * rate
            _store_p(p, there, start, size, x, tau, total, rate, ALPHA, BLOCK)
    tl.store(found, tau + rate * maximum, mask=there)
    tl.store(found + rows, conjugate, mask=there)
    tl.store(found + 2 * rows, maximum, mask=there)


@triton.jit
def _store_p(p, there, start, size, x, tau, total, rate, ALPHA: tl.constexpr, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)[None, :]
    weight, above = factors(x, tau, rate, ALPHA)
    probability = divide(weight * above, total).to(p.dtype.element_ty)
    tl.store(p + column, probability, mask=there & (column < size))


@triton.jit
def solve_rows(
    z,
    there,
    size,
    rate,
    ALPHA: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Solve alpha-entmax for the rows that begin at ``z [ROWS, 1]``, of ``size`` logits each:
    ``p = [x - tau]_+ ** beta / total``.

    Args:
        there: which of the rows exist, ``[ROWS, 1]``.
        rate: alpha - 1, a tensor of DTYPE, a scalar or ``[ROWS, 1]``.
        ALPHA: alpha if it is a constant, else 0.
        SUM: whether the sum of the logits is wanted.
        WHOLE: whether a row is one block.

    Returns:
        For each row the maximum (0 where every logit is -inf), tau, total and the conjugate (all
        four NaN where a logit is NaN or +inf), and the sum of the logits, all ``[ROWS, 1]``; if
        WHOLE also ``x``, ``[ROWS, BLOCK]``, at least -1, below which no entry is in the support.
    """
    first, second, third, logits = _three_largest(z, there, size, SUM, BLOCK, WHOLE, DTYPE)
    maximum = tl.max(first, 1, keep_dims=True)
    bad = (first != first) | (first == float("inf"))
    bad = tl.max(bad.to(tl.int32), 1, keep_dims=True) > 0
    maximum = tl.where(maximum == float("-inf"), 0.0, maximum)
    first = reachable(first, maximum, rate)
    tau = tl.zeros_like(maximum) - 1.0
    tau = search(z, there, size, maximum, first, first, first, tau, rate, ALPHA, LARGEST)
    if WHOLE:
        total, score, rest = sums(
            z, there, size, maximum, first, first, first, tau, rate, ALPHA, LARGEST, True
        )
    else:
        second = reachable(second, maximum, rate)
        third = reachable(third, maximum, rate)
        tau = search(z, there, size, maximum, first, second, third, tau, rate, ALPHA, LANES)
        if any_of(third > tau):
            tau = search(z, there, size, maximum, first, second, third, tau, rate, ALPHA, ROW)
            total, score, rest = sums(
                z, there, size, maximum, first, second, third, tau, rate, ALPHA, ROW, True
            )
        else:
            total, score, rest = sums(
                z, there, size, maximum, first, second, third, tau, rate, ALPHA, LANES, True
            )
    total = tl.where(total == 0, 1.0, total)
    total = tl.where(bad, float("nan"), total)
    # Here sum(p - p^alpha), from sum(total * p * above) = total - rest.
    entropy = rest + (total - rest) * (1 - positive_power(total, -rate))
    conjugate = divide(score + divide(entropy, 1 + rate), total * rate)
    logits = tl.sum(logits, 1, keep_dims=True)
    return maximum + 0 * total, tau + 0 * total, total, conjugate, logits, first


@triton.jit
def solve_row(
    z,
    size,
    rate,
    ALPHA: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Solve the row at ``z``; return the results of :func:`solve_rows` except ``x``, as scalars."""
    there = tl.zeros([1, 1], tl.int32) == 0
    maximum, tau, total, conjugate, logits, _ = solve_rows(
        z, there, size, rate, ALPHA, SUM, BLOCK, WHOLE, DTYPE
    )
    return _scalar(maximum), _scalar(tau), _scalar(total), _scalar(conjugate), _scalar(logits)


@triton.jit
def _scalar(x):
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def _three_largest(
    z,
    there,
    size,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Return the three largest logits of each lane, and the sum of all in the lane if SUM."""
    first = load_rows(z, there, 0, size, BLOCK).to(DTYPE)
    second = tl.full(first.shape, float("-inf"), DTYPE)
    third = tl.full(first.shape, float("-inf"), DTYPE)
    total = tl.where(tl.arange(0, BLOCK)[None, :] < size, first, 0.0)
    if not WHOLE:
        for start in tl.range(BLOCK, size, BLOCK, num_stages=STAGES):
            x = load_rows(z, there, start, size, BLOCK).to(DTYPE)
            third = tl.maximum(third, tl.minimum(second, x))
            second = tl.maximum(second, tl.minimum(first, x))
            first = tl.maximum(first, x, propagate_nan=tl.PropagateNan.ALL)
            if SUM:
                total += tl.where(start + tl.arange(0, BLOCK)[None, :] < size, x, 0.0)
    return first, second, third, total


@triton.jit
def load_block(z, start, size, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """Load the BLOCK logits of one row from ``start`` on, -inf past its end."""
    column = start + tl.arange(0, BLOCK)
    return tl.load(z + column, mask=column < size, other=float("-inf")).to(DTYPE)
