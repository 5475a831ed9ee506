"""Compiled kernels for the CPU: rows of logits, sparse products, attention, norms and dropout.

They compute what the modules above this folder compute in PyTorch, which stays the readable
reference and is used wherever :func:`usable` says no.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops import capture
from fairseq_sparse.ops.cpu import build


@contextmanager
def turned_off() -> Iterator[None]:
    """A context in which PyTorch computes everything, where it can be watched."""
    before, capture.kernels_are_off = capture.kernels_are_off, True
    try:
        yield
    finally:
        capture.kernels_are_off = before


def usable(*tensors: Optional[Tensor]) -> bool:
    """Return whether the kernels take these tensors: fp32 on a CPU, and the kernels compiled."""
    given = [x for x in tensors if x is not None]
    return all(x.dtype == torch.float32 for x in given) and is_there_for(*given)


def is_there_for(*tensors: Tensor) -> bool:
    """Return whether the kernels would take these tensors if they were fp32."""
    return (
        not capture.kernels_are_off
        and all(x.is_cpu for x in tensors)
        and not capture.is_captured(*tensors)
        and build.library() is not None
    )
