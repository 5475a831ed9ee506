"""Dropout by the compiled kernel: see ``dropout.c``."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu.boundary import call


def drop(x: Tensor, p: float, seed: int) -> Tensor:
    """Return ``x``, fp32, with each entry set to 0 or divided by ``1 - p``, as the seed says."""
    x = x.resolve_neg().contiguous()
    out = torch.empty_like(x)
    call("dropout", x.numel(), x, x.numel(), p, seed, out)
    return out
