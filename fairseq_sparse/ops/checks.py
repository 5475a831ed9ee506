"""Checks of the arguments that mappings and losses share."""

from __future__ import annotations

import math
from numbers import Real
from typing import Union

import torch
from torch import Tensor

Tau = Union[float, Tensor]

ALGORITHMS = ("newton", "sort", "partial", "bisect")


def check_logits(z: Tensor) -> None:
    """Raise TypeError unless ``z`` is floating point."""
    if not z.is_floating_point():
        raise TypeError(f"logits must be floating point, got {z.dtype}: convert them, z.float()")


# Above it, alpha - 1 times a logit can overflow in fp32.
_LARGEST_ALPHA = 1e6
# There, p is exact to 1e-5 in fp32 and a loss to 1e-4; in fp64 any alpha above 1 will do.
_SMALLEST_ALPHA = 1.001
# Nearer to 1, the powers of compiled kernels, with exponent 1 / (alpha - 1), are too inexact.
LEAST_ALPHA_OF_KERNELS = 1.05


def check_alpha(alpha: float, dtype: torch.dtype = torch.float64) -> float:
    """Return ``alpha``, a finite number above 1.

    Args:
        dtype: that of the logits.

    Raises:
        TypeError: it is not a number.
        ValueError: it is out of range, or too near to 1 for the dtype.
    """
    if type(alpha) is not float and not isinstance(alpha, Real):  # the latter takes its time
        raise TypeError(f"alpha must be a number, got {alpha!r}")
    if not 1.0 < alpha < float("inf"):
        raise ValueError(f"alpha must be a finite number above 1, got {alpha}")
    if alpha > _LARGEST_ALPHA:
        raise ValueError(
            f"alpha must be at most {_LARGEST_ALPHA:g}, got {alpha}: above about 1000 only the "
            "largest entry has a nonzero probability anyway"
        )
    if alpha < _SMALLEST_ALPHA and dtype != torch.float64:
        raise ValueError(
            f"alpha = {alpha} is too near to 1 for logits of {dtype}: use 1, which is softmax, at "
            f"least {_SMALLEST_ALPHA}, or logits in fp64"
        )
    return float(alpha)


def check_tau(tau: Tau) -> None:
    """Raise an error if ``tau`` is not a finite number; values of tensors are not checked."""
    if torch.is_tensor(tau):
        return
    if type(tau) is not float and not isinstance(tau, Real):
        raise TypeError(f"tau must be a number or a tensor, got {tau!r}")
    if not math.isfinite(tau):
        raise ValueError(f"tau must be a finite number, got {tau}")


def check_algorithm(algorithm: str, alpha: Union[float, Tensor], topk: int) -> None:
    """Raise ValueError unless alpha-entmax has such an algorithm, and this takes the alpha."""
    if algorithm == "newton":
        return
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if algorithm != "bisect" and (torch.is_tensor(alpha) or alpha not in (1.5, 2)):
        raise ValueError(
            f"{algorithm} takes an alpha of 1.5 or 2, got {alpha}: use newton or bisect"
        )
    if algorithm == "partial" and topk < 1:
        raise ValueError(f"topk must be a positive number, got {topk}")
