"""alpha-entmax on a GPU: one program for each row, no sort, and most rows read once to solve them.

The problem and its notation are those of ``reference/entmax.py``. A vocabulary does not fit into
registers, and L2 is not so much faster than memory that reading it again were cheap.
So what counts is the number of sweeps over a row:

1. The first sweep keeps the three largest entries of each of BLOCK lanes (entry i is in lane
   i mod BLOCK). The search then runs in registers, over the largest of each lane and then over
   all three. More entries can only raise a threshold, so this one is a lower bound of the row's.
   It is the row's own if no lane's third entry is above it, for then no fourth one is. Of rows
   with a support of 50 entries, 1 in 200 fails this test with 2,048 lanes.
2. For a row that does, Newton steps sweep it from that bound on: one or two for normal logits
   with alpha = 1.5, three with alpha = 1.1 and all of a vocabulary in the support. One more sweep
   takes the sums.

Up to 4,096 entries a row is in registers as a whole.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.reference.entmax import Alpha, EntmaxRows

# As in reference/entmax.py; 64 steps are for fp64.
_MAX_STEPS = tl.constexpr(64)

# What a search runs over: the largest entry of each lane, all three, or the row in memory.
_LARGEST = tl.constexpr(0)
_LANES = tl.constexpr(1)
_ROW = tl.constexpr(2)


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
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    found = torch.zeros(3, rows, dtype=dtype, device=z.device)
    if p.numel() > 0:
        per_row = torch.is_tensor(alpha)
        with torch.cuda.device_of(z):
            _entmax_kernel[(rows,)](
                z,
                alpha.to(dtype).expand(rows, 1).contiguous() if per_row else z,
                p,
                found,
                z.stride(0),
                size,
                rows,
                ALPHA=0.0 if per_row else float(alpha),
                **row_options(size, z.dtype),
            )
    tau, value, maximum = found
    return EntmaxRows(p, tau, value if conjugate else None, maximum)


def contiguous_rows(z: Tensor) -> Tensor:
    """Return ``z`` with neighbouring entries of a row side by side, copied only if need be."""
    return z if z.stride(-1) == 1 or z.size(-1) <= 1 else z.contiguous()


def row_options(size: int, dtype: torch.dtype) -> dict:
    """Return :func:`sweep_options` for a kernel that solves a row: WHOLE if that is one block."""
    options = sweep_options(size, dtype)
    return {**options, "WHOLE": size <= options["BLOCK"]}


def sweep_options(size: int, dtype: torch.dtype) -> dict:
    """Return how a kernel of one program a row goes through ``size`` logits: BLOCK at a time."""
    whole = size <= 4096
    if whole:
        block = max(16, triton.next_power_of_2(size))
    else:
        block = 1024 if size <= 1 << 14 else 2048
    return {
        "BLOCK": block,
        "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
        # Of a long row a thread has 8 lanes, in 64 to 80 registers: 24 to 32 warps fit on an SM,
        # and their loads, of the block at work and of the next, hide the latency of the memory.
        "num_warps": max(1, block // (512 if whole else 256)),
        "enable_fp_fusion": True,  # left out, Triton 3.9 warns that its default will change
    }


@triton.jit
def _entmax_kernel(
    z,
    alpha,  # [rows], read if ALPHA is 0
    p,
    found,  # [3, rows]: tau, conjugate, maximum
    z_stride,
    size,
    rows,
    ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * z_stride
    p += row * size
    found += row
    if ALPHA == 0.0:
        _entmax_row(z, p, found, size, rows, tl.load(alpha + row), True, BLOCK, WHOLE, DTYPE)
    else:
        _entmax_row(z, p, found, size, rows, ALPHA, False, BLOCK, WHOLE, DTYPE)


@triton.jit
def _entmax_row(
    z,
    p,
    found,
    size,
    rows,
    alpha,
    ANY: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    maximum, tau, total, conjugate, _ = solve_row(z, size, alpha, ANY, False, BLOCK, WHOLE, DTYPE)
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        logits = load_block(z, start, size, BLOCK, DTYPE)
        weight, above = power_above((logits - maximum) * (alpha - 1), tau, alpha, ANY)
        tl.store(p + column, (weight * above / total).to(p.dtype.element_ty), mask=column < size)
    tl.store(found, tau + (alpha - 1) * maximum)
    tl.store(found + rows, conjugate)
    tl.store(found + 2 * rows, maximum)


@triton.jit
def solve_row(
    z,
    size,
    alpha,
    ANY: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Solve alpha-entmax for the row at ``z``: ``p = [x - tau]_+ ** beta / total``.

    Args:
        alpha: a number, or a scalar tensor of DTYPE, for which ANY must be set.
        SUM: whether the sum of the logits is wanted.
        WHOLE: whether the row is one block.

    Returns:
        The maximum (0 where every logit is -inf), tau, total, the conjugate (NaN where a logit is
        NaN or +inf, these three), and the sum of the logits.
    """
    first, second, third, logits = _three_largest(z, size, SUM, BLOCK, WHOLE, DTYPE)
    maximum = tl.max(first, 0)
    bad = tl.sum(((first != first) | (first == float("inf"))).to(tl.int32), 0) > 0
    maximum = tl.where(maximum == float("-inf"), 0.0, maximum)
    first = _reachable(first, maximum, alpha)
    tau = tl.full([], -1.0, DTYPE)
    tau = _search(z, size, maximum, first, first, first, tau, alpha, ANY, _LARGEST)
    if WHOLE:
        total, score, rest = _sums(
            z, size, maximum, first, first, first, tau, alpha, ANY, _LARGEST, True
        )
    else:
        second = _reachable(second, maximum, alpha)
        third = _reachable(third, maximum, alpha)
        tau = _search(z, size, maximum, first, second, third, tau, alpha, ANY, _LANES)
        if tl.max(third, 0) > tau:
            tau = _search(z, size, maximum, first, second, third, tau, alpha, ANY, _ROW)
            total, score, rest = _sums(
                z, size, maximum, first, second, third, tau, alpha, ANY, _ROW, True
            )
        else:
            total, score, rest = _sums(
                z, size, maximum, first, second, third, tau, alpha, ANY, _LANES, True
            )
    total = tl.where(total == 0, 1.0, total)
    total = tl.where(bad, float("nan"), total)
    # Here sum(p - p^alpha), from sum(total * p * above) = total - rest.
    entropy = rest + (total - rest) * (1 - positive_power(total, 1 - alpha))
    conjugate = (score + entropy / alpha) / (total * (alpha - 1))
    return maximum + 0 * total, tau + 0 * total, total, conjugate, tl.sum(logits, 0)


@triton.jit
def _three_largest(
    z, size, SUM: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, DTYPE: tl.constexpr
):
    """Return the three largest logits of each lane, and the sum of all in the lane if SUM."""
    first = load_block(z, 0, size, BLOCK, DTYPE)
    second = tl.full([BLOCK], float("-inf"), DTYPE)
    third = tl.full([BLOCK], float("-inf"), DTYPE)
    total = tl.where(tl.arange(0, BLOCK) < size, first, 0.0)
    if not WHOLE:
        coming = _load(z, BLOCK, size, BLOCK)
        for start in range(BLOCK, size, BLOCK):
            x = coming.to(DTYPE)
            coming = _load(z, start + BLOCK, size, BLOCK)
            third = tl.maximum(third, tl.minimum(second, x))
            second = tl.maximum(second, tl.minimum(first, x))
            first = tl.maximum(first, x, propagate_nan=tl.PropagateNan.ALL)
            if SUM:
                total += tl.where(start + tl.arange(0, BLOCK) < size, x, 0.0)
    return first, second, third, total


@triton.jit
def load_block(z, start, size, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """Load the BLOCK logits from ``start`` on, -inf past the end of the row."""
    return _load(z, start, size, BLOCK).to(DTYPE)


@triton.jit
def _load(z, start, size, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    return tl.load(z + column, mask=column < size, other=float("-inf"))


@triton.jit
def _reachable(logits, maximum, alpha):
    """Return ``x``, but -1 for entries below, never in the support: this spares 0 * -inf."""
    return tl.maximum((logits - maximum) * (alpha - 1), -1.0)


@triton.jit
def _search(
    z, size, maximum, first, second, third, tau, alpha, ANY: tl.constexpr, OVER: tl.constexpr
):
    """Find the threshold for the entries in OVER, from a ``tau`` that is not above it."""
    step = 0
    moved = maximum == maximum
    if alpha > 2:  # bisection, at the geometric mean
        high = tl.minimum(-positive_power(tl.full([], size, tau.dtype), 1 - alpha), -1.2e-38)
        while moved & (step < _MAX_STEPS):
            middle = -tl.sqrt(-tau) * tl.sqrt(-high)
            moved = (tau < middle) & (middle < high)
            mass, _, _ = _sums(
                z, size, maximum, first, second, third, middle, alpha, ANY, OVER, False
            )
            tau = tl.where(mass >= 1, middle, tau)
            high = tl.where(mass >= 1, high, middle)
            step += 1
    else:  # Newton; for its form see reference/entmax.py
        while moved & (step < _MAX_STEPS):
            mass, score, slope = _sums(
                z, size, maximum, first, second, third, tau, alpha, ANY, OVER, False
            )
            newton = (score - _norm_power(mass, alpha, ANY)) / slope
            moved = newton > tau
            tau = tl.where(moved, newton, tau)
            step += 1
    return tau


@triton.jit
def _sums(
    z,
    size,
    maximum,
    first,
    second,
    third,
    tau,
    alpha,
    ANY: tl.constexpr,
    OVER: tl.constexpr,
    LAST: tl.constexpr,
):
    """Return the sums of :func:`_terms` over the entries in OVER."""
    if OVER == _ROW:
        a = tl.zeros_like(first)
        b = tl.zeros_like(first)
        c = tl.zeros_like(first)
        lost = tl.zeros_like(first)
        for start in range(0, size, first.shape[0]):
            logits = load_block(z, start, size, first.shape[0], first.dtype)
            x = _reachable(logits, maximum, alpha)
            more_a, more_b, more_c = _terms(x, tau, alpha, ANY, LAST)
            # What p is divided by must be right to more than so many roundings (Kahan).
            more_a -= lost
            longer = a + more_a
            lost = (longer - a) - more_a
            a = longer
            b += more_b
            c += more_c
    else:
        a, b, c = _terms(first, tau, alpha, ANY, LAST)
        if OVER == _LANES:
            second_a, second_b, second_c = _terms(second, tau, alpha, ANY, LAST)
            third_a, third_b, third_c = _terms(third, tau, alpha, ANY, LAST)
            a += second_a + third_a
            b += second_b + third_b
            c += second_c + third_c
    return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0)


@triton.jit
def _terms(x, tau, alpha, ANY: tl.constexpr, LAST: tl.constexpr):
    """What an entry adds to the mass, score and slope of a Newton step; of those that the
    conjugate is made of if LAST. With r = [x - tau]_+ ** beta, near p, the latter are
    r, r x and r - r^alpha: none of their sums cancels."""
    weight, above = power_above(x, tau, alpha, ANY)
    mass = weight * above
    if LAST:
        return mass, mass * x, mass * (1 - above)
    else:
        return mass, weight * x, weight


@triton.jit
def power_above(x, tau, alpha, ANY: tl.constexpr):
    """Return ``above = [x - tau]_+`` and ``above ** (beta - 1)``, 0 where that is 0: factors of p.

    NaN stays NaN in ``above`` and in the product.
    """
    above = tl.where(x < tau, 0.0, x - tau)
    if ANY:
        weight = positive_power(above, 1 / (alpha - 1) - 1)
    elif alpha == 1.5:
        weight = above
    elif alpha == 2:
        weight = (above > 0).to(above.dtype)
    else:
        weight = positive_power(above, 1 / (alpha - 1) - 1)
    return weight, above


@triton.jit
def _norm_power(mass, alpha, ANY: tl.constexpr):
    """Return ``mass ** (2 - alpha)``."""
    if ANY:
        power = positive_power(mass, 2 - alpha)
    elif alpha == 1.5:
        power = tl.sqrt(mass)
    else:
        power = positive_power(mass, 2 - alpha)
    return power


@triton.jit
def positive_power(x, exponent):
    """Return ``x ** exponent`` where ``x > 0``, and ``x`` where it is 0 or NaN."""
    return tl.where(x > 0, tl.exp2(exponent * tl.log2(x)), x)
