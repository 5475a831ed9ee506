"""Tensors that are computed again for the gradient rather than kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def computed_again(x: Tensor, compute: Callable[[], Tensor]) -> Iterator[Tensor]:
    """Keep ``compute`` rather than ``x`` for the gradients of what is done with it in this context.

    Args:
        x: any tensor.
        compute: gives the values of ``x``, from tensors that are in memory anyway.

    Yields:
        ``x``.
    """

    known = _identity(x)  # and not x itself, which would stay in memory with these functions

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
    """Return what a tensor and its other shapes have in common, and no other tensors have."""
    return x.data_ptr(), x.numel(), x.dtype, x.is_contiguous()
