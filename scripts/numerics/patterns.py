"""Patterns of rows of logits that are hard for a threshold search, by name.

Each pattern returns fp64 rows ``[rows, size]`` for a NumPy generator and an alpha; they are rounded
to the measured dtype, so that the input of an op is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
LARGEST_ROW = 262144
# Largest number of distinct logits in a row, to limit the time of 50-digit arithmetic.
MOST_DISTINCT = 1500

Shape = tuple[int, int]


class Batch(NamedTuple):
    pattern: str
    dtype: str
    logits: torch.Tensor  # [rows, size]


def normal(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    return draw.normal(size=shape) * 10 ** draw.uniform(-4, 1.5, (shape[0], 1))


def constant(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    return np.broadcast_to(draw.choice([0, -1e4, 1e4, 1e-3, draw.normal()], (shape[0], 1)), shape)


def two_values(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return two values, with a gap about as large as possible for both to be in the support."""
    gap = draw.choice([0.5, 0.99, 1, 1.01, 1e-6], (shape[0], 1)) / (alpha - 1)
    return np.where(draw.random(shape) < draw.random((shape[0], 1)), 0, -gap) + draw.normal()


def ties(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    return np.round(draw.normal(size=shape) * 2) / draw.choice([1, 2, 8], (shape[0], 1))


def large(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return logits around +-10,000, of one sign in a row or of both."""
    near = draw.choice([-1e4, 1e4], (shape[0], 1)) + draw.normal(size=shape) * 4
    return np.where(draw.random((shape[0], 1)) < 0.5, near, draw.choice([-1e4, 1e4], shape))


def denormal(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return some multiples of the smallest numbers of each dtype."""
    least = draw.choice([5e-324, 1.4e-45, 6e-8, 9.2e-41, 1e-300, 1e-38], (shape[0], 1))
    return draw.integers(-50, 51, shape) * least


def minus_infinity(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    z = normal(draw, shape, alpha)
    z[draw.random(shape) < draw.choice([0.2, 0.9, 1], (shape[0], 1))] = -np.inf
    z[np.arange(shape[0]), draw.integers(shape[1], size=shape[0])] = draw.normal(size=shape[0])
    return z


def near_threshold(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return a few large logits, and others within a few roundings of their threshold."""
    few = min(shape[1], int(draw.integers(1, 5)))
    z = np.empty(shape)
    z[:, :few] = draw.normal(size=(shape[0], few)) * draw.choice([0.1, 1, 5], (shape[0], 1))
    cut = _threshold(z[:, :few], alpha)
    steps = draw.integers(-3, 4, (shape[0], shape[1] - few))
    precision = draw.choice([2.0**-52, 2.0**-23, 2.0**-10, 2.0**-7, 1e-3], (shape[0], 1))
    z[:, few:] = cut * (1 + steps * precision)
    return z


def dominant(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return one largest logit, with the others barely inside or outside the support."""
    gap = draw.choice([1 - 2.0**-9, 1, 1 + 2.0**-9, 0.9, 100], shape) / (alpha - 1)
    z = -gap + draw.choice([0, 2.0**-20, -(2.0**-20)], shape)
    z[np.arange(shape[0]), draw.integers(shape[1], size=shape[0])] = 0
    return z


def decay(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return logits whose distances from the largest span many orders of magnitude."""
    return -(10 ** draw.uniform(-12, 3, shape)) + draw.choice([0, 1, 100], (shape[0], 1))


def extreme(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return numbers close to the largest of each dtype."""
    return draw.choice([-1, 1, 0.5, 0, 1 - 2.0**-8], shape) * draw.choice(
        [65504, 3.3e38, 1.7e308], (shape[0], 1)
    )


def no_answer(draw: np.random.Generator, shape: Shape, alpha: float) -> np.ndarray:
    """Return rows of only -inf, which give zeros, and rows with a NaN or +inf, which give NaN."""
    z = normal(draw, shape, alpha)
    z[np.arange(shape[0]), draw.integers(shape[1], size=shape[0])] = draw.choice(
        [np.nan, np.inf], shape[0]
    )
    z[draw.random(shape[0]) < 0.5] = -np.inf
    return z


PATTERNS: dict[str, Callable[[np.random.Generator, Shape, float], np.ndarray]] = {
    f.__name__: f
    for f in (
        normal, constant, two_values, ties, large, denormal, minus_infinity, near_threshold,
        dominant, decay, extreme, no_answer,
    )
}  # fmt: skip


def _threshold(z: np.ndarray, alpha: float) -> np.ndarray:
    """Return the limit above which a logit is in the support, by bisection, ``[rows, 1]``."""
    top = z.max(1, keepdims=True)
    x = (alpha - 1) * (z - top)
    low, high = np.full_like(top, -1), np.zeros_like(top)
    for _ in range(60):
        middle = (low + high) / 2
        above = np.where(x > middle, x - middle, 0) ** (1 / (alpha - 1))
        enough = above.sum(1, keepdims=True) >= 1
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return top + low / (alpha - 1)


def batches(rows: int, alpha: float, seed: int) -> Iterator[Batch]:
    """Yield ``rows`` rows in batches of every pattern and dtype, mostly short, a few very long."""
    draw = np.random.default_rng([seed, int(alpha * 1e6)])
    made, number = 0, 0
    names = list(PATTERNS)
    while made < rows:
        pattern = names[number % len(names)]
        dtype = list(DTYPES)[number // len(names) % len(DTYPES)]
        size, count = _shape(draw, number)
        count = min(count, rows - made)
        z = PATTERNS[pattern](draw, (count, size), alpha)
        if size > MOST_DISTINCT:
            z = z[:, draw.integers(MOST_DISTINCT, size=size)]
        with np.errstate(over="ignore"):
            yield Batch(pattern, dtype, torch.from_numpy(z.copy()).to(DTYPES[dtype]))
        made += count
        number += 1


def _shape(draw: np.random.Generator, number: int) -> tuple[int, int]:
    """Return size and count of the rows of a batch."""
    if number % 37 == 5:
        return int(draw.choice([65536, 65537, 100003, LARGEST_ROW - 1, LARGEST_ROW])), 1
    if number % 17 == 3:
        return int(draw.integers(300, 3000)), 1
    if number % 7 == 1:
        return int(2 ** draw.uniform(5, 9)), 12
    return int(draw.choice([1, 2, 3, 4, 5, 7, 8, 15, 16, 17])), 384
