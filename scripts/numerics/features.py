"""Errors of ops that take features rather than logits, against 50-digit arithmetic."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_sparse.ops import (
    gated_rms_norm,
    linear_alpha_relu_loss,
    linear_entmax_loss,
    rms_norm,
)
from fairseq_sparse.ops.norms import EPSILON
from numerics import exact
from numerics.measures import (
    SMOOTHINGS,
    AlphaReLU,
    Entmax,
    Exact,
    Recorder,
    errors,
    numbers,
)
from numerics.patterns import DTYPES

# Enough rows for the logits to be screened by products in bfloat16.
_ROWS = 288
_WIDTH = 8
_TAU = 0.3


def linear_losses(rows: int, seed: int) -> dict:
    """Measure losses of features and output weights, and their gradients.

    Both are multiples of 1/2 (fp32, fp64: 1/64), so that no logit is rounded in any dtype.
    """
    draw = np.random.default_rng([seed, 2])
    recorder, slowest, number = Recorder(), 0.0, 0
    with tqdm(total=rows, desc="linear losses") as progress:
        while progress.n < rows:
            name = list(DTYPES)[number % len(DTYPES)]
            dtype = DTYPES[name]
            size = int(draw.choice([2, 5, 17]))
            steps, unit = (128, 64) if name in ("fp64", "fp32") else (2, 2)
            x = draw.integers(-steps, steps + 1, (_ROWS, _WIDTH)) / unit
            weight = draw.integers(-steps, steps + 1, (size, _WIDTH)) / unit
            z = torch.from_numpy(x @ weight.T)
            alpha = float(draw.choice([1.3, 1.5, 2.0]))
            kind = ("linear_entmax_loss", "linear_alpha_relu_loss")[number // 4 % 2]
            op = Entmax(alpha) if "entmax" in kind else AlphaReLU(alpha, _TAU)
            truth = Exact(z, op, draw, False)
            start = time.perf_counter()
            for smoothing in SMOOTHINGS:
                where = f"alpha {alpha}, {size} classes"

                def record(quantity, found, kind=kind, name=name, where=where):
                    recorder.add((f"{kind} {quantity}", name, "default"), found, where)

                inputs = [torch.from_numpy(v).to(dtype).requires_grad_() for v in (x, weight)]
                _measure_linear(inputs, truth, op, smoothing, record)
            slowest = max(slowest, time.perf_counter() - start)
            progress.update(_ROWS)
            number += 1
    return {"slowest": slowest, "worst": recorder.as_lists()}


def _measure_linear(inputs: list[Tensor], truth: Exact, op, smoothing: float, record) -> None:
    x, weight = inputs
    target = torch.from_numpy(truth.label)
    options = {"label_smoothing": smoothing, "alpha": op.alpha}
    loss = linear_entmax_loss
    if not op.sums_to_one:
        loss = partial(linear_alpha_relu_loss, tau=op.tau)
    losses = loss(x, weight, None, target, reduction="none", **options)
    total = loss(x, weight, None, target, reduction="sum", **options)
    gradients = torch.autograd.grad(total, inputs)
    expected = truth.losses[smoothing]
    unit = torch.finfo(losses.dtype).eps * np.maximum(1, np.maximum(truth.largest, expected))
    name = "loss" if smoothing == 0 else f"loss {smoothing}"
    record(name, np.abs(numbers(losses) - expected) / unit)
    residual = truth.p - truth.target(smoothing)
    factors = (residual @ numbers(weight), np.abs(residual) @ np.abs(numbers(weight)))
    _record_product(gradients[0], *factors, record, f"{name} gradient")
    factors = (residual.T @ numbers(x), np.abs(residual).T @ np.abs(numbers(x)))
    _record_product(gradients[1], *factors, record, f"{name} weight gradient")


def _record_product(actual: Tensor, expected: np.ndarray, size: np.ndarray, record, name) -> None:
    """Record errors in units of eps times the sum of the sizes of the terms."""
    unit = torch.finfo(actual.dtype).eps * np.maximum(1, size)
    record(name, (np.abs(numbers(actual) - expected) / unit).max(1, initial=0))


def norms(rows: int, seed: int) -> dict:
    """Measure RMSNorm and gated RMSNorm."""
    draw = np.random.default_rng([seed, 3])
    recorder, slowest, number = Recorder(), 0.0, 0
    with tqdm(total=rows, desc="RMSNorm") as progress:
        while progress.n < rows:
            name = list(DTYPES)[number % len(DTYPES)]
            dtype = DTYPES[name]
            count, width = 64, int(draw.choice([1, 2, 4, 16]))
            scale = 10 ** draw.uniform(-12, 4, (count, 1))
            z = draw.normal(size=(count, width)) * scale
            z[draw.random(z.shape) < 0.3] = 0
            z[::16] = 0  # null attention
            gain, gate = draw.normal(size=(2, width))
            z, gain, gate = (torch.from_numpy(v).to(dtype) for v in (z, gain, gate))
            start = time.perf_counter()
            plain, gated = rms_norm(z, gain), gated_rms_norm(z, gain, gate)
            slowest = max(slowest, time.perf_counter() - start)
            where = f"{width} wide"
            expected = [_exact_norms(row, gain.tolist(), gate.tolist()) for row in z.tolist()]
            for kind, actual, side in (("rms_norm", plain, 0), ("gated_rms_norm", gated, 1)):
                right = np.stack([exact.extended(row[side]) for row in expected])
                found = errors(numbers(actual), right, actual.dtype).max(1)
                recorder.add((kind, name, "default"), found, where)
            progress.update(count)
            number += 1
    return {"slowest": slowest, "worst": recorder.as_lists()}


def _exact_norms(row: list[float], gain: list[float], gate: list[float]) -> tuple[list, list]:
    """Return the exact plain and gated RMSNorm of a row."""
    normed = exact.rms_norm(row, gain, EPSILON)
    gated = [
        exact.sigmoid(exact.real(w) * v) * n for w, v, n in zip(gate, row, normed, strict=True)
    ]
    return normed, gated
