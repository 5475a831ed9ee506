"""The search for alpha-entmax's threshold on a GPU: Newton steps, or bisection above alpha = 2.

The numbers of a row are ``[ROWS, 1]``, and its loaded entries are ``[ROWS, BLOCK]``, see
``entmax.py``. A row that has its threshold keeps it while others of its program go on, so its
result does not depend on them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fairseq_sparse.ops.gpu.arithmetic import (
    any_of,
    divide,
    factors,
    positive_power,
    root,
    sums_of_three,
)

# As in reference/entmax.py; 64 steps are for fp64.
_MAX_STEPS = tl.constexpr(64)
# Blocks of a long row that are being loaded at a time.
STAGES = tl.constexpr(3)

# The entries to search: the largest of each lane, the three largest of each lane, or the whole row
# in memory.
LARGEST = tl.constexpr(0)
LANES = tl.constexpr(1)
ROW = tl.constexpr(2)


@triton.jit
def search(
    z,
    there,
    size,
    maximum,
    first,
    second,
    third,
    tau,
    rate,
    ALPHA: tl.constexpr,
    OVER: tl.constexpr,
):
    """Find the thresholds for the entries in OVER, from a ``tau`` that is not above them."""
    if ALPHA == 0.0:
        of_row = rate + tl.zeros_like(maximum)
        newton, concave = of_row <= 1, of_row > 1
        tau = _newton(z, there, size, maximum, first, second, third, tau, newton, rate, ALPHA, OVER)
        tau = _bisect(
            z, there, size, maximum, first, second, third, tau, concave, rate, ALPHA, OVER
        )
    else:
        tau = _newton(z, there, size, maximum, first, second, third, tau, there, rate, ALPHA, OVER)
    return tau


@triton.jit
def _newton(
    z,
    there,
    size,
    maximum,
    first,
    second,
    third,
    tau,
    searched,
    rate,
    ALPHA: tl.constexpr,
    OVER: tl.constexpr,
):
    """Take Newton steps in the rows in ``searched``; for their form see reference/entmax.py."""
    step = 0
    moved = searched & (maximum == maximum)
    while any_of(moved) & (step < _MAX_STEPS):
        mass, score, slope = sums(
            z, there, size, maximum, first, second, third, tau, rate, ALPHA, OVER, False
        )
        newton = divide(score - norm_power(mass, rate, ALPHA), slope)
        moved &= newton > tau
        tau = tl.where(moved, newton, tau)
        step += 1
    return tau


@triton.jit
def _bisect(
    z,
    there,
    size,
    maximum,
    first,
    second,
    third,
    tau,
    searched,
    rate,
    ALPHA: tl.constexpr,
    OVER: tl.constexpr,
):
    """Bisect in the rows in ``searched``, at the geometric mean."""
    step = 0
    moved = searched & (maximum == maximum)
    high = positive_power(tl.zeros_like(maximum) + size, -rate)
    high = tl.minimum(-high, -1.2e-38)
    while any_of(moved) & (step < _MAX_STEPS):
        middle = -root(-tau) * root(-high)
        moved &= (tau < middle) & (middle < high)
        mass, _, _ = sums(
            z, there, size, maximum, first, second, third, middle, rate, ALPHA, OVER, False
        )
        tau = tl.where(moved & (mass >= 1), middle, tau)
        high = tl.where(mass >= 1, high, middle)
        step += 1
    return tau


@triton.jit
def load_rows(z, there, start, size, BLOCK: tl.constexpr):
    """Load ``[ROWS, BLOCK]``, -inf where there is nothing."""
    column = start + tl.arange(0, BLOCK)[None, :]
    return tl.load(z + column, mask=there & (column < size), other=float("-inf"))


@triton.jit
def reachable(logits, maximum, rate):
    """Return ``x``, at least -1: lower entries are not in the support. This avoids 0 * -inf."""
    return tl.maximum((logits - maximum) * rate, -1.0)


@triton.jit
def sums(
    z,
    there,
    size,
    maximum,
    first,
    second,
    third,
    tau,
    rate,
    ALPHA: tl.constexpr,
    OVER: tl.constexpr,
    LAST: tl.constexpr,
):
    """Return the sums of :func:`_terms` over the entries in OVER."""
    if OVER == ROW:
        a = tl.zeros_like(first)
        b = tl.zeros_like(first)
        c = tl.zeros_like(first)
        lost = tl.zeros_like(first)
        for start in tl.range(0, size, first.shape[1], num_stages=STAGES):
            logits = load_rows(z, there, start, size, first.shape[1]).to(first.dtype)
            x = reachable(logits, maximum, rate)
            more_a, more_b, more_c = _terms(x, tau, rate, ALPHA, LAST)
            # Use compensated summation: p is divided by this sum.
            more_a -= lost
            longer = a + more_a
            lost = (longer - a) - more_a
            a = longer
            b += more_b
            c += more_c
    else:
        a, b, c = _terms(first, tau, rate, ALPHA, LAST)
        if OVER == LANES:
            second_a, second_b, second_c = _terms(second, tau, rate, ALPHA, LAST)
            third_a, third_b, third_c = _terms(third, tau, rate, ALPHA, LAST)
            a += second_a + third_a
            b += second_b + third_b
            c += second_c + third_c
    a, b, c = sums_of_three(a, b, c)
    return a, b, c


@triton.jit
def _terms(x, tau, rate, ALPHA: tl.constexpr, LAST: tl.constexpr):
    """Return what an entry adds to the mass, score and slope of a Newton step or, if LAST, to the
    sums for the conjugate: r, r x and r - r^alpha, with r = [x - tau]_+ ** beta, which is near p.
    None of these sums suffers from cancellation."""
    weight, above = factors(x, tau, rate, ALPHA)
    mass = weight * above
    if LAST:
        return mass, mass * x, mass * (1 - above)
    else:
        return mass, weight * x, weight


@triton.jit
def norm_power(mass, rate, ALPHA: tl.constexpr):
    """Return ``mass ** (1 - rate)``."""
    if ALPHA == 0.0:
        power = positive_power(mass, 1 - rate)
    elif ALPHA == 1.5:
        power = root(mass)
    else:
        power = tl.where(mass > 0, 1.0, mass)
    return power
