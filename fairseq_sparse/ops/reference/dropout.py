"""Dropout whose mask is computed from a seed: it is never in memory, and known for the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_sparse.ops.operators import differentiable, operator

_HALF = (1 << 32) - 1


def keep_factors(places: Tensor, p: float, seed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 with probability ``p``, else ``1 / (1 - p)``.

    Args:
        places: int64, of any shape. Each has a random number of its own, see ``cpu/random.h``.
        seed: ``[]``, int64, on any device.
        dtype: that of the factors.
    """
    seed = seed.to(places.device)
    number = (_random_at(seed, places >> 1) >> 32 * (places & 1)) & _HALF
    is_kept = number >= int(p * (1 << 32))
    return is_kept.to(dtype) * (1 / (1 - p) if p < 1 else 0.0)


def _random_at(seed: Tensor, place: Tensor) -> Tensor:
    """Return 64 random bits by splitmix64 (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom
    Number Generators")."""
    x = seed + (place + 1) * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _signed(x: int) -> int:
    return x - (1 << 64)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return ``x >> bits`` of 64 bits without a sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


@operator(
    "dropout(Tensor x, float p, Tensor seed) -> Tensor",
    lambda x, p, seed: torch.empty_like(x, memory_format=torch.contiguous_format),
)
def _dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """Return ``x`` with each entry set to 0 or divided by ``1 - p``, as the seed says."""
    places = torch.arange(x.numel(), device=x.device).view(x.shape)
    return (x * keep_factors(places, p, seed, x.dtype)).contiguous()


def _save_dropout(ctx, inputs, output):
    _, ctx.p, seed = inputs
    ctx.save_for_backward(seed)


def _dropout_gradient(ctx, grad):
    return dropout(grad, ctx.p, *ctx.saved_tensors), None, None


dropout = differentiable(_dropout, _save_dropout, _dropout_gradient)
