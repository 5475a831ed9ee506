"""Tensors that are computed again for the gradient rather than kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def computed_again(x: Tensor, compute: Callable[[], Tensor]) -> Iterator[Tensor]:
    """A context in which what is done with ``x`` keeps ``compute`` for its gradient, not ``x``.

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
    """What a tensor and another shape of it have in common, and no other tensors have."""
    return x.data_ptr(), x.numel(), x.dtype, x.is_contiguous()
