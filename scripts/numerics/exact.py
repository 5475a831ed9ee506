"""The sparse mappings and their losses in 50-digit arithmetic, as the reference for the ops.

Everything is computed from its definition, for one row at a time, independently of the ops: the
support of alpha-entmax is found first, from the mass above each logit, and then the threshold for
that support. Every row is checked to sum to 1, which holds for a single threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from math import fsum
from typing import NamedTuple

import numpy as np
from mpmath import MPContext

# Guaranteed digits. More are used, because differences of nearly equal numbers lose digits.
DIGITS = 50
_MP = MPContext()
_MP.dps = DIGITS + 25
_TOLERANCE = _MP.mpf(10) ** -(DIGITS + 5)
_MOST_STEPS = 400

real = _MP.mpf
# 19 digits are enough to measure the error of a number with 16.
Extended = np.longdouble


class Row(NamedTuple):
    """Exact values of a row, one for each of its distinct logits, largest first."""

    alpha: real
    logits: list  # minus ``shift``; only those above the threshold
    above: list  # (alpha - 1) (z - shift) - tau
    slope: list  # p ** (2 - alpha)
    p: list
    tau: real
    shift: real  # the maximum for alpha-entmax, 0 for alpha-ReLU
    conjugate: real  # of the logits minus the shift, see FenchelYoungLoss


def entmax(values: Sequence[float], counts: Sequence[int], alpha: float) -> Row:
    """Compute alpha-entmax of a row.

    Args:
        values: its distinct finite logits, largest first.
        counts: how often each stands in the row.
        alpha: above 1.
    """
    rate = real(alpha) - 1
    beta = 1 / rate
    top = real(values[0])
    # Logits at or below -1 are outside the support: the largest alone has mass 1 above them.
    x = list(takewhile(lambda v: v > -1, (rate * (real(value) - top) for value in values)))
    size = _support(x, counts, beta)
    low = x[size] if size < len(x) else real(-1)
    x = x[:size]
    tau = _threshold(x, counts, beta, low)
    above = [v - tau for v in x]
    slope = [d ** (beta - 1) for d in above]
    p = [s * d for s, d in zip(slope, above, strict=True)]
    total = sum(c * v for c, v in zip(counts, p, strict=False))
    if abs(total - 1) > _TOLERANCE * 1000 or not 0 < above[-1] <= x[-1] - low:
        raise ArithmeticError(f"the probabilities sum to 1 + {_MP.nstr(total - 1, 3)}")
    # p ** alpha = p * above, and (alpha - 1) (z - max) = above + tau
    power = sum(c * v * d for c, v, d in zip(counts, p, above, strict=False))
    conjugate = (power + tau) / rate + (1 - power) / (alpha * rate)
    return Row(real(alpha), [v / rate for v in x], above, slope, p, tau, top, conjugate)


def alpha_relu(values: Sequence[float], counts: Sequence[int], tau: float, alpha: float) -> Row:
    """Compute alpha-ReLU of a row; for the arguments see :func:`entmax`."""
    rate = real(alpha) - 1
    beta = 1 / rate
    above = list(takewhile(lambda v: v > 0, (rate * real(v) - real(tau) for v in values)))
    logits = [real(value) for value in values[: len(above)]]
    slope = [d ** (beta - 1) for d in above]
    p = [s * d for s, d in zip(slope, above, strict=True)]
    power = sum(c * a * b for c, a, b in zip(counts, p, above, strict=False))
    return Row(real(alpha), logits, above, slope, p, real(tau), real(0), power / alpha)


def _mass(x: Sequence, counts: Sequence[int], tau, exponent):
    return sum(c * (v - tau) ** exponent for c, v in zip(counts, x, strict=False) if v > tau)


def _support(x: list, counts: Sequence[int], beta) -> int:
    """Return the number of distinct logits with a mass below 1 above them."""
    floats = [float(v) for v in x]
    low, high = 1, len(x)
    while low < high:
        middle = (low + high) // 2
        mass = _mass(floats[:middle], counts, floats[middle], float(beta))
        if abs(mass - 1) < 1e-6 or x[0] - x[middle] < 1e-9:  # too near for fp64 to tell
            mass = _mass(x[:middle], counts, x[middle], beta)
        low, high = (middle + 1, high) if mass < 1 else (low, middle)
    return low


def _threshold(x: list, counts: Sequence[int], beta, low):
    """Return the root of ``sum((x - tau) ** beta) = 1`` in ``[low, x[-1])``, below all of x."""
    floats = [float(v) for v in x]
    try:
        tau = _newton(floats, counts, float(beta), float(low), floats[-1], 1e-13, 40)
    except ZeroDivisionError:  # no number of fp64 is left between the threshold and x[-1]
        tau = None
    return _newton(x, counts, beta, low, x[-1], _TOLERANCE, _MOST_STEPS, tau)


def _newton(x: list, counts: Sequence[int], beta, low, high, tolerance, steps: int, tau=None):
    """Search by Newton's method on the norm ``mass ** (1 / beta)``, or by bisection if a step would
    leave the bracket."""
    if tau is None or not low <= tau < high:
        tau = (low + high) / 2
    for _ in range(steps):
        weights = [c * (v - tau) ** (beta - 1) for c, v in zip(counts, x, strict=False)]
        mass = sum(w * (v - tau) for w, v in zip(weights, x, strict=True))
        if abs(mass - 1) <= tolerance:
            break
        low, high = (tau, high) if mass > 1 else (low, tau)
        # norm / norm' = mass / sum(weights)
        slope = sum(weights)
        moved = tau + (mass - mass ** (1 - 1 / beta)) / slope if mass > 0 else low
        if moved == tau:
            break
        tau = max(moved, low) if moved < high else (low + high) / 2
    return tau


def loss(row: Row, gold: float, mean: real, size: int, smoothing: float, sums_to_one: bool) -> real:
    """Return the Fenchel-Young loss of a row, ``Omega*(z) + Omega(q) - <q, z>``.

    Args:
        gold: the target's logit.
        mean: the mean of all logits.
        size: the number of logits.
        sums_to_one: true for alpha-entmax, false for alpha-ReLU.
    """
    smoothing = real(smoothing)
    shift = row.shift if sums_to_one else row.tau / (row.alpha - 1)
    expected = (1 - smoothing) * (real(gold) - shift)
    if smoothing > 0:
        expected += smoothing * (mean - shift)
    power = _power_of_target(row.alpha, size, smoothing) - int(sums_to_one)
    return row.conjugate - expected + power / (row.alpha * (row.alpha - 1))


@lru_cache(maxsize=4096)
def _power_of_target(alpha: real, size: int, smoothing: real) -> real:
    """Return ``sum(q ** alpha)``."""
    rest = smoothing / size
    others = (size - 1) * rest**alpha if smoothing > 0 else 0
    return (1 - smoothing + rest) ** alpha + others


def alpha_gradient(row: Row, counts: Sequence[int], grads: Sequence[float]) -> tuple[real, real]:
    """Compute ``<g, d p / d alpha>``, and the sum of ``|d p / d alpha|``.

    They follow from implicit differentiation of ``p = above ** beta, sum(p) = 1``.

    Args:
        grads: for each distinct logit, the sum of g over the entries that have it.
    """
    beta = 1 / (row.alpha - 1)
    # d p = -beta^2 p log(above) + beta slope (z - d tau)
    entries = list(zip(row.p, row.above, row.slope, row.logits, strict=True))
    fixed = [beta * (s * z - beta * p * _MP.log(d)) for p, d, s, z in entries]
    total = sum(c * s for c, s in zip(counts, row.slope, strict=False))
    moved = sum(c * v for c, v in zip(counts, fixed, strict=False)) / total
    terms = [v - s * moved for v, s in zip(fixed, row.slope, strict=True)]
    gradient = sum(g * v for g, v in zip(grads, terms, strict=False))
    return gradient, sum(c * abs(v) for c, v in zip(counts, terms, strict=False))


def weighted_mean(weights: Sequence[real], counts: Sequence[int], grads: Sequence[float]) -> real:
    """Return ``<w, g> / sum(w)``; for ``grads`` see :func:`alpha_gradient`."""
    total = sum(c * w for c, w in zip(counts, weights, strict=False))
    return sum(g * w for g, w in zip(grads, weights, strict=False)) / total


def mean_of(values: np.ndarray) -> real:
    """Return the mean of a row, whose exact sum fits into two rounded numbers."""
    scaled = values / 2**20  # so that no sum overflows
    if not (scaled * 2**20 == values).all():
        scaled = values
    first = fsum(scaled)
    total = real(first) + fsum([*scaled, -first])
    return total * (2**20 if scaled is not values else 1) / len(values)


def extended(numbers: Sequence[real]) -> np.ndarray:
    """Round to 19 digits, to be compared with arrays."""
    high = [float(v) for v in numbers]
    low = [float(v - h) if abs(h) < 1e300 else 0.0 for v, h in zip(numbers, high, strict=True)]
    return np.array(high, Extended) + np.array(low, Extended)


def rms_norm(z: Sequence[float], gain: Sequence[float], eps: float) -> list:
    """Return ``g z / sqrt(mean(z ** 2) + eps)``."""
    z = [real(v) for v in z]
    inverse = 1 / _MP.sqrt(_MP.fsum(v * v for v in z) / len(z) + real(eps))
    return [real(g) * v * inverse for g, v in zip(gain, z, strict=True)]


def sigmoid(x: real) -> real:
    return 1 / (1 + _MP.exp(-x))


def log10(x: real) -> real:
    return _MP.log10(x)
