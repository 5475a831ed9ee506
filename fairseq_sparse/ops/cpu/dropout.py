"""Dropout by the compiled kernel: see ``dropout.c``."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.boundary import call
from fairseq_sparse.ops.operators import kernel


def _fits(x: Tensor, p: float, seed: Tensor) -> bool:
    return x.dtype == torch.float32 and p < 1 and build.library() is not None


@kernel("cpu", "dropout", _fits)
def dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """Return ``x`` with each entry set to 0 or divided by ``1 - p``, as the seed says."""
    x = x.contiguous()
    out = torch.empty_like(x)
    call("dropout", x.numel(), x, x.numel(), p, int(seed), out)
    return out
