"""Recomputation of tensors for the gradient instead of keeping them in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def computed_again(
    x: Tensor, compute: Callable[[], Tensor], sources: Collection[Tensor]
) -> Iterator[Tensor]:
    """Recompute ``x`` for the gradients of operations in this context, instead of keeping it.

    The gradients raise RuntimeError if a source, or another tensor that these operations keep, has
    been changed in place: PyTorch itself does not check tensors that pass through such hooks.

    Args:
        x: any tensor.
        compute: returns the values of ``x``, from tensors that are in memory anyway.
        sources: those of these tensors that could be changed in place.

    Yields:
        ``x``.
    """

    known = _identity(x)  # not x itself, which these functions would keep in memory
    versions = _versions(sources)

    def pack(saved: Tensor) -> object:
        return saved.shape if _identity(saved) == known else (saved, _versions([saved]))

    def unpack(kept: object) -> Tensor:
        if isinstance(kept, torch.Size):
            _check_versions(sources, versions)
            with torch.no_grad():
                return compute().reshape(kept)
        saved, version = kept
        _check_versions([saved], version)
        return saved

    with saved_tensors_hooks(pack, unpack):
        yield x


def _versions(tensors: Collection[Tensor]) -> list[int]:
    """Return the numbers of changes in place that the tensors have seen."""
    return [x._version for x in tensors]


def _check_versions(tensors: Collection[Tensor], versions: list[int]) -> None:
    if _versions(tensors) != versions:
        raise RuntimeError("a tensor that is needed for a gradient was changed in place")


def _identity(x: Tensor) -> tuple:
    """Return an identity that a tensor shares with its reshaped views and with no other tensor."""
    return x.data_ptr(), x.numel(), x.dtype, x.is_contiguous()
