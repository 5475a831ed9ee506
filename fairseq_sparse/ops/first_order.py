"""Gradients that have no gradient of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the ``backward`` of an autograd function refuse ``create_graph=True``.

    PyTorch's ``once_differentiable`` raises only where the incoming gradient has a graph itself.
    The gradient of a plain sum has none, so that its derivative would silently be 0.

    Raises:
        RuntimeError: at a backward pass with ``create_graph=True``.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # PyTorch enables it only to differentiate the gradient
            name = type(ctx).__name__.strip("_").removesuffix("Backward")
            raise RuntimeError(
                f"{name} has no second derivative, so its gradient cannot be computed with "
                "create_graph=True"
            )
        return backward(ctx, *gradients)

    return checked
