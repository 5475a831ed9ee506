"""Recomputation of tensors for the gradient instead of keeping them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def computed_again(x: Tensor, compute: Callable[[], Tensor]) -> Iterator[Tensor]:
    """Recompute ``x`` for the gradients of operations in this context, instead of keeping it.

    Args:
        x: any tensor.
        compute: returns the values of ``x``, from tensors that are in memory anyway.

    Yields:
        ``x``.
    """

    known = _identity(x)  # not x itself, which these functions would keep in memory

    def pack(saved: Tensor) -> object:
        return saved.shape if _identity(saved) == known else saved

    def unpack(kept: object) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with torch.no_grad():
            return compute().reshape(kept)

    with saved_tensors_hooks(pack, unpack):
        yield x


def _identity(x: Tensor) -> tuple:
    """Return an identity that a tensor shares with its reshaped views and with no other tensor."""
    return x.data_ptr(), x.numel(), x.dtype, x.is_contiguous()
