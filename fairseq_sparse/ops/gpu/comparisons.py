"""Samples on which the row kernels and the reference are compared; see ``verification.py``.

Each function takes a kernel, the size and dtype of its rows and its options, and yields the names
of results, what the kernel computed, and what the reference computed in fp64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.gpu.verification import Results
from fairseq_sparse.ops.operators import reference_of
from fairseq_sparse.ops.reference.attention import RECTIFIED
from fairseq_sparse.ops.reference.rows import probabilities

_ROWS, _IGNORED = 12, -100
# Normal logits of these scales: from a support of all entries to one of a single entry.
_SCALES = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0)


def entmax(
    kernel: Callable, size: int, dtype: torch.dtype, device: torch.device, alpha: float,
    per_row: bool,
) -> Results:  # fmt: skip
    z = logits(size, dtype, device)
    row_alpha = torch.linspace(1.1, 2.6, _ROWS, dtype=torch.float64).to(device).unsqueeze(1)
    options = (row_alpha if per_row else None, alpha, "newton", 0, False)
    (found, tau), (expected, expected_tau) = (
        kernel(z, *options), _reference("entmax", z.double(), *options)
    )  # fmt: skip
    yield "tau", tau, expected_tau
    yield "p", found, expected


def entmax_backward(
    kernel: Callable, size: int, dtype: torch.dtype, device: torch.device, alpha: float
) -> Results:
    z = logits(size, torch.float64, device)
    p = _reference("entmax", z, None, alpha, "newton", 0, False)[0].to(dtype)
    grad = _normal(1, _ROWS, size).to(device, dtype)
    expected = _reference("entmax_backward", p.double(), grad.double(), alpha)
    yield "the gradient", kernel(p, grad, alpha), expected


def row_loss(
    kernel: Callable, size: int, dtype: torch.dtype, device: torch.device, alpha: float,
    has_tau: bool, label_smoothing: float,
) -> Results:  # fmt: skip
    z, target = logits(size, dtype, device), targets(size, device)
    options = (_tau(has_tau, device), alpha, label_smoothing, _IGNORED, "newton", 0)
    losses, solution = kernel(z, target, *options)
    expected_losses, expected_solution = _reference("row_loss", z.double(), target, *options)
    yield "the loss", losses, expected_losses
    counts = target != _IGNORED
    found, expected = (
        probabilities(z[counts].double(), x[:, counts], alpha)
        for x in (solution, expected_solution)
    )
    yield "p", found.float(), expected


def row_loss_backward(
    kernel: Callable, size: int, dtype: torch.dtype, device: torch.device, alpha: float,
    label_smoothing: float,
) -> Results:  # fmt: skip
    z, target = logits(size, dtype, device), targets(size, device)
    options = (alpha, label_smoothing, _IGNORED)
    _, solution = _reference("row_loss", z.double(), target, None, *options, "newton", 0)
    grad = torch.linspace(-2, 3, _ROWS).to(device)
    expected = _reference(
        "row_loss_backward", grad.double(), z.double(), target, solution, *options
    )
    yield "the gradient", kernel(grad, z, target, solution, *options), expected


def residual(
    kernel: Callable, size: int, dtype: torch.dtype, device: torch.device, alpha: float,
    has_tau: bool, label_smoothing: float,
) -> Results:  # fmt: skip
    z, target = logits(size, dtype, device), targets(size, device)
    options = RowLoss(alpha, _tau(has_tau, device), label_smoothing, _IGNORED)
    exact = z.double()
    expected, solution = _reference(
        "row_loss", exact, target, options.tau, alpha, label_smoothing, _IGNORED, "newton", 0
    )
    ones = torch.ones_like(expected)
    gradient = _reference(
        "row_loss_backward", ones, exact, target, solution, alpha, label_smoothing, _IGNORED
    )
    yield "the loss", kernel(z, target, options, "newton", 0), expected
    yield "the gradient", z, gradient


def attention(
    kernel: Callable, size: tuple[int, int, int], dtype: torch.dtype, device: torch.device,
    has_masked: bool, causal: bool, drops: bool,
) -> Results:  # fmt: skip
    tensors, options = _heads(size, dtype, device, has_masked, causal, drops)
    found, _ = kernel(*tensors, *options)
    yield from _relative(
        dtype, ("the result",), [found], _reference("attention", *_exact(tensors), *options)
    )


def attention_backward(
    kernel: Callable, size: tuple[int, int, int], dtype: torch.dtype, device: torch.device,
    has_masked: bool, causal: bool, drops: bool,
) -> Results:  # fmt: skip
    tensors, options = _heads(size, dtype, device, has_masked, causal, drops)
    queries, _, head_dim = size
    grad = _normal(2, queries, 2, 2, head_dim).to(device, dtype)
    if dtype == torch.float16:
        grad = grad.float()
    solution = torch.empty(0, dtype=torch.float64, device=device)
    found = kernel(grad, *tensors, solution, *options)
    expected = _reference("attention_backward", grad.double(), *_exact(tensors), solution, *options)
    names = [f"the gradient of {name}" for name in ("query", "key", "value")]
    yield from _relative(dtype, names, found, expected)


def _heads(
    size: tuple[int, int, int], dtype: torch.dtype, device: torch.device,
    has_masked: bool, causal: bool, drops: bool,
) -> tuple[list[Optional[Tensor]], tuple]:  # fmt: skip
    """Return query, key, value, masked, bias and seed, and the other arguments of attention."""
    queries, keys, head_dim = size
    tensors = [
        _normal(seed, 2, 2, length, head_dim).to(device, dtype)
        for seed, length in enumerate((queries, keys, keys), 3)
    ]
    masked = _normal(6, 2, keys) > 0.3
    masked[1] = True
    tensors += [masked.to(device) if has_masked else None, None]
    tensors += [torch.tensor(1 << 61 | 7, device="cpu") if drops else None]
    return tensors, (RECTIFIED, head_dim**-0.5, causal, 0.1 * drops)


def _exact(tensors: list[Optional[Tensor]]) -> list[Optional[Tensor]]:
    return [x.double() if x is not None and x.is_floating_point() else x for x in tensors]


def _relative(
    dtype: torch.dtype, names: Iterable[str], found: Iterable[Tensor], expected: Iterable[Tensor]
) -> Results:
    """Yield sums relative to the largest of each tensor: their error is that of their terms."""
    for name, ours, theirs in zip(names, found, expected, strict=False):
        largest = theirs.abs().amax()
        yield name, (ours / largest).to(dtype), theirs / largest


def _reference(name: str, *args: object) -> object:
    return reference_of(getattr(torch.ops.fairseq_sparse, name).default)(*args)


def logits(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return rows ``[12, size]``: random ones, and those at the edge of what is allowed."""
    z = _normal(0, _ROWS, size)
    z[: len(_SCALES)] *= torch.tensor(_SCALES, dtype=z.dtype).unsqueeze(1)
    z[7] = 2.5
    z[8] = 1e4 * z[8].sign()
    z[9, : size - 1] = -torch.inf
    z[10] = -torch.inf
    z[11, size // 2] = torch.nan
    return z.to(device, dtype)


def targets(size: int, device: torch.device) -> Tensor:
    """Return targets of these rows, one of them ignored."""
    target = torch.arange(_ROWS, dtype=torch.int64, device="cpu") * 5 % size
    target[3] = _IGNORED
    return target.to(device)


def _tau(has_tau: bool, device: torch.device) -> Optional[Tensor]:
    return torch.tensor(0.3, dtype=torch.float64, device=device) if has_tau else None


def _normal(seed: int, *shape: int) -> Tensor:
    """Return normal numbers of a generator of their own."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
