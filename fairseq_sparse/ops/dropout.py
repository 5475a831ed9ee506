"""Dropout whose mask is never in memory.

On a CPU PyTorch draws the numbers of a mask on one thread, one after another, and keeps the mask
for the gradient: in a small Transformer that takes a tenth of a training step. The compiled kernel
computes each number from its place and a seed, on all threads, and again for the gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops.reference import dropout as reference


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each entry of ``x`` to 0 with probability ``p``; otherwise divide it by ``1 - p``.

    Args:
        x: any shape, dtype and device; PyTorch's own dropout serves all but fp32 on a CPU.
        p: in [0, 1].

    Which entries are dropped depends on PyTorch's generator, from which one number is drawn. It can
    be differentiated any number of times. NaN and infinity times 0 are NaN.

    Raises:
        ValueError: ``p`` is out of range.
    """
    if x.is_cpu and x.dtype == torch.float32 and 0 <= p < 1:
        return reference.dropout(x, p, draw_seed())
    return F.dropout(x, p)  # which refuses what is out of range


def draw_seed() -> Tensor:
    """Draw the seed of a mask from PyTorch's generator for CPUs."""
    return torch.randint(1 << 62, (), device="cpu")
