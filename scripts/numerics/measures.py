"""Errors of the ops against exact values, over a batch of rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import torch
from torch import Tensor

from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    entmax,
    entmax_loss,
    entmax_threshold,
)
from numerics import exact
from numerics.exact import Extended

# How many of the largest logits the partial sort begins with.
TOPK = 8

SMOOTHINGS = (0.0, 0.1)


Record = Callable[[str, np.ndarray], None]


class Worst:
    """The largest error of one kind, and where it was."""

    def __init__(self) -> None:
        self.rows = 0
        self.error = 0.0
        self.where = ""
        self.total = 0.0

    def add(self, errors: np.ndarray, where: str) -> None:
        """Add errors, one per row; NaN counts as infinite."""
        errors = np.where(np.isnan(errors), np.inf, errors)
        self.rows += len(errors)
        self.total += float(errors.sum())
        worst = float(errors.max(initial=0.0))
        if worst > self.error:
            self.error, self.where = worst, where


class Exact:
    """Exact values for the rows of a batch, as arrays ``[rows, size]`` or ``[rows]``."""

    def __init__(self, logits: Tensor, solve: Callable, draw: np.random.Generator, of_alpha: bool):
        z = logits.double().numpy()
        shape = z.shape
        self.size = shape[1]
        self.of_alpha = of_alpha
        # Rows with NaN or +inf must give NaN everywhere, and fully masked rows 0.
        self.bad = np.isnan(z).any(1) | np.isposinf(z).any(1)
        self.empty = np.isneginf(z).all(1)
        self.solved = ~self.bad & ~self.empty
        self.p, self.slope, self.grad_z = (np.zeros(shape, Extended) for _ in range(3))
        self.above = np.full(shape, -np.inf)
        self.grad = draw.integers(-16, 17, shape) / 4.0  # fits into every dtype
        self.label = draw.integers(shape[1], size=shape[0])
        self.tau, self.grad_alpha, self.grad_alpha_scale = (
            np.zeros(shape[0], Extended) for _ in range(3)
        )
        self.losses = {smoothing: np.full(shape[0], np.nan, Extended) for smoothing in SMOOTHINGS}
        self.largest = np.zeros(shape[0])
        for i in np.flatnonzero(self.solved):
            self._solve(i, z[i], solve, of_alpha)

    def _solve(self, i: int, z: np.ndarray, solve: Callable, of_alpha: bool) -> None:
        finite = np.isfinite(z)
        values, inverse, counts = np.unique(-z[finite], return_inverse=True, return_counts=True)
        counts = counts.tolist()
        row = solve((-values).tolist(), counts)
        sums_to_one = solve.sums_to_one
        found = len(row.p)
        place = np.where(inverse < found, inverse, found)

        def spread(numbers: list) -> np.ndarray:
            return np.append(exact.extended(numbers), 0)[place]

        self.p[i, finite] = spread(row.p)
        self.slope[i, finite] = spread(row.slope)
        rate, shift = float(row.alpha - 1), float(row.shift)
        with np.errstate(over="ignore"):
            below = rate * (z[finite] - shift) - float(row.tau)
        above = np.append([float(v) for v in row.above], 0)[place]
        self.above[i, finite] = np.where(place < found, above, np.minimum(below, 0))
        self.tau[i] = exact.extended([row.tau + (row.alpha - 1) * row.shift])[0]
        grads = np.bincount(inverse, self.grad[i, finite], len(values)).tolist()
        mean = exact.weighted_mean(row.slope, counts, grads) if sums_to_one else 0
        mean = exact.extended([mean])[0]
        with np.errstate(invalid="ignore"):
            self.grad_z[i] = self.slope[i] * (self.grad[i].astype(Extended) - mean)
        if of_alpha:
            self.grad_alpha[i], self.grad_alpha_scale[i] = exact.extended(
                exact.alpha_gradient(row, counts, grads)
            )
        gold = float(z[self.label[i]])
        has_mean = finite.all()
        for smoothing in SMOOTHINGS:
            if gold == -np.inf or (smoothing > 0 and not has_mean):
                self.losses[smoothing][i] = np.inf
                continue
            mean_logit = exact.mean_of(z) if smoothing > 0 else None
            loss = exact.loss(row, gold, mean_logit, self.size, smoothing, sums_to_one)
            self.losses[smoothing][i] = exact.extended([loss])[0]
        self.largest[i] = np.abs(z[finite]).max()

    def ordinary(self, dtype: torch.dtype) -> np.ndarray:
        """Return which rows have logits whose sum and differences do not overflow in the dtype of
        the computation."""
        limit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
        return self.largest * self.size < limit / 16

    def some(self, rows: slice) -> Exact:
        """Return the exact values for some of the rows."""
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(part, name, value[rows])
        part.losses = {smoothing: losses[rows] for smoothing, losses in self.losses.items()}
        return part

    def target(self, smoothing: float) -> np.ndarray:
        """Return the smoothed target distribution q."""
        q = np.full(self.p.shape, Extended(smoothing) / self.size)
        q[np.arange(len(q)), self.label] += 1 - Extended(smoothing)
        return q


def numbers(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy().astype(Extended)


class Recorder:
    """The worst errors of all batches, by quantity, dtype and path."""

    def __init__(self) -> None:
        self.worst: dict[tuple, Worst] = {}

    def add(self, key: tuple, errors: np.ndarray, where: str) -> None:
        self.worst.setdefault(key, Worst()).add(np.asarray(errors, float), where)

    def as_lists(self) -> list[list]:
        """Return quantity, dtype, path, rows, worst error, its place, and sum of errors."""
        return [[*key, w.rows, w.error, w.where, w.total] for key, w in self.worst.items()]


def errors(actual: np.ndarray, expected: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return errors in units of ``eps * max(1, |expected|)``; NaN if only one side is finite.

    Results close to the largest number of the dtype may be infinite.
    """
    limits = torch.finfo(dtype)
    size = np.abs(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.abs(actual - expected) / (limits.eps * np.maximum(1, size))
    both = np.isposinf(actual) & (size > limits.max / 16)
    return np.where(both, 0, found)


def spacings(p: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the distance between adjacent numbers of the dtype at ``p``."""
    limits = torch.finfo(dtype)
    with np.errstate(divide="ignore"):
        power = np.exp2(np.floor(np.log2(p.astype(float))))
    return limits.eps * np.maximum(power, float(limits.smallest_normal))


def measure_mapping(p: Tensor, truth: Exact, record: Record, sums_to_one: bool) -> np.ndarray:
    """Measure p, the sums, the support, and spurious or lost NaN; return which rows have the right
    support."""
    dtype, limits = p.dtype, torch.finfo(p.dtype)
    actual, rows = numbers(p), truth.solved
    wrong = np.isnan(actual).any(1) & ~truth.bad
    if sums_to_one:
        wrong |= truth.bad & ~np.isnan(actual).all(1)
        wrong |= truth.empty & (actual != 0).any(1)
    record("nan", wrong)
    rows = rows & truth.ordinary(dtype)
    actual, expected = actual[rows], truth.p[rows]
    record("p", errors(actual, expected, dtype).max(1, initial=0))
    size = np.maximum(1, (expected > 0).sum(1, keepdims=True))
    large = (expected * size >= 1) & (expected < limits.max / 16)
    with np.errstate(invalid="ignore", over="ignore"):
        ulps = np.abs(actual - expected) / spacings(expected, dtype)
    record("ulp", np.where(large, ulps, 0).max(1, initial=0))
    if sums_to_one:
        record("sum", np.abs(actual.sum(1) - 1) / limits.eps)
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    # Below these numbers p may be rounded to 0.
    least = max(float(limits.smallest_normal) * limits.eps, torch.finfo(computed).smallest_normal)
    wrong = ((actual == 0) & (expected > least)) | ((actual > 0) & (expected == 0))
    record("support", wrong.sum(1))
    far = np.where(wrong, np.abs(truth.above[rows]) / torch.finfo(computed).eps, 0)
    record("distance", far.max(1, initial=0))
    agree = np.zeros(len(p), bool)
    agree[rows] = ~wrong.any(1)
    return agree


def measure_gradient(
    gradient: Tensor, truth: Exact, record: Record, name: str, agree: np.ndarray
) -> None:
    """Measure in units of eps times the largest factor and the largest incoming gradient.

    Rows with a wrong support are left out: there the gradient of sparsemax differs, and that of
    entmax above alpha = 2 has no bound.
    """
    limits = torch.finfo(gradient.dtype)
    rows = agree & (truth.p.max(1, initial=0) < limits.max / 16)
    scale = np.maximum(1, truth.slope[rows].max(1, initial=0)) * 4
    difference = np.abs(numbers(gradient)[rows] - truth.grad_z[rows]).max(1, initial=0)
    found = difference / (limits.eps * scale)
    record(name, np.where(scale < limits.max / 64, found, 0))


def gradient_of(function: Callable[[Tensor], Tensor], z: Tensor, grad: Tensor) -> tuple:
    z = z.detach().requires_grad_()
    p = function(z)
    return p.detach(), torch.autograd.grad(p, z, grad)[0]


def measure_losses(loss: Callable, z: Tensor, truth: Exact, record: Record) -> None:
    """Measure values and gradients of a loss ``(z, target, label_smoothing)``, one per row."""
    rows = truth.solved & truth.ordinary(z.dtype)
    target = torch.from_numpy(truth.label)
    for smoothing in SMOOTHINGS:
        logits = z.detach().requires_grad_()
        values = loss(logits, target, label_smoothing=smoothing, reduction="none")
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        name = f"loss {smoothing:g}" if smoothing else "loss"
        expected = truth.losses[smoothing][rows]
        actual = numbers(values)[rows]
        finite = np.isfinite(expected)
        record(name + " infinite", actual[~finite] != expected[~finite])
        # The target's logit and the mean are subtracted from others.
        scale = np.maximum(1, np.maximum(truth.largest[rows], np.abs(expected))[finite])
        unit = torch.finfo(values.dtype)
        found = np.abs(actual[finite] - expected[finite]) / (unit.eps * scale)
        too_large = np.isposinf(actual[finite]) & (expected[finite] > unit.max / 16)
        record(name, np.where(too_large, 0, found))
        exact_gradient = (truth.p - truth.target(smoothing))[rows]
        actual = numbers(gradient)[rows]
        record(name + " gradient", errors(actual, exact_gradient, z.dtype).max(1, initial=0))


class Entmax:
    """alpha-entmax with its losses."""

    sums_to_one = True

    def __init__(self, alpha: float):
        self.alpha = alpha

    def __call__(self, values: list[float], counts: list[int]) -> exact.Row:
        return exact.entmax(values, counts, self.alpha)

    def measure(self, z: Tensor, truth: Exact, record: Record) -> None:
        alpha = self.alpha
        p, gradient = gradient_of(
            lambda z: entmax(z, alpha), z, torch.from_numpy(truth.grad).to(z.dtype)
        )
        agree = measure_mapping(p, truth, record, True)
        measure_gradient(gradient, truth, record, "gradient", agree)
        tau = entmax_threshold(z, alpha)
        rows = truth.solved & truth.ordinary(z.dtype)
        record("tau", errors(numbers(tau)[rows], truth.tau[rows], tau.dtype))
        if truth.of_alpha:
            self._measure_tensor(z, truth, record)
        for algorithm in ("sort", "partial", "bisect") if alpha in (1.5, 2) else ("bisect",):
            p = entmax(z, alpha, algorithm=algorithm, topk=TOPK)
            measure_mapping(p, truth, lambda name, x, a=algorithm: record(f"{a} {name}", x), True)
        measure_losses(
            lambda z, target, **options: entmax_loss(z, target, alpha, **options), z, truth, record
        )

    def _measure_tensor(self, z: Tensor, truth: Exact, record: Record) -> None:
        """Measure with alpha as a parameter, in fp32, or in fp64 for fp64 logits."""
        dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
        alpha = torch.full((len(z), 1), self.alpha, dtype=dtype, requires_grad=True)
        logits = z.detach().requires_grad_()
        p = entmax(logits, alpha)
        grad = torch.from_numpy(truth.grad).to(z.dtype)
        grad_z, grad_alpha = torch.autograd.grad(p, (logits, alpha), grad)
        agree = measure_mapping(p, truth, lambda name, x: record(f"tensor {name}", x), True)
        measure_gradient(grad_z, truth, record, "tensor gradient", agree)
        found = np.abs(numbers(grad_alpha)[agree, 0] - truth.grad_alpha[agree])
        scale = torch.finfo(z.dtype).eps * np.maximum(1, 4 * truth.grad_alpha_scale[agree])
        record("alpha gradient", found / scale)


class AlphaReLU:
    """alpha-ReLU with its losses."""

    sums_to_one = False

    def __init__(self, alpha: float, tau: float):
        self.alpha = alpha
        self.tau = tau

    def __call__(self, values: list[float], counts: list[int]) -> exact.Row:
        return exact.alpha_relu(values, counts, self.tau, self.alpha)

    def measure(self, z: Tensor, truth: Exact, record: Record) -> None:
        alpha, tau = self.alpha, self.tau
        p, gradient = gradient_of(
            lambda z: alpha_relu(z, tau, alpha), z, torch.from_numpy(truth.grad).to(z.dtype)
        )
        agree = measure_mapping(p, truth, record, False)
        measure_gradient(gradient, truth, record, "gradient", agree)
        measure_losses(
            lambda z, target, **options: alpha_relu_loss(z, target, tau, alpha, **options),
            z,
            truth,
            record,
        )
