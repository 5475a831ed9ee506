"""Powers of numbers that are not negative."""

from __future__ import annotations

from typing import Union

import torch
from torch import Tensor


def positive_power(x: Tensor, exponent: Union[float, Tensor]) -> Tensor:
    """Return ``x ** exponent`` where ``x > 0``, and 0 where ``x = 0``, whatever the exponent.

    NaN stays NaN, although ``pow`` defines NaN ** 0 = 1. The exponents for alpha = 1.5 and 2 do not
    use ``pow``.
    """
    if not torch.is_tensor(exponent):
        if exponent == 0:
            return x.clamp(max=1).ceil()
        if exponent == 1:
            return x
        if exponent == 2:
            return x * x
        if exponent == 0.5:
            return x.sqrt()
        if exponent > 0:
            return x.pow(exponent)
    # The inner choice keeps 0 ** a negative exponent out of the gradient.
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).pow(exponent), x)


def slope(p: Tensor, alpha: Union[float, Tensor]) -> Tensor:
    """Return ``p ** (2 - alpha)``: how fast ``p = [x - tau]_+ ** (1 / (alpha - 1))`` grows with z.

    The Jacobians of alpha-entmax and of alpha-ReLU are made of it; it is 0 off the support.
    """
    return positive_power(p, 2 - alpha)
