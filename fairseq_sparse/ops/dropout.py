"""Dropout whose mask is never in memory.

On a CPU PyTorch draws the numbers of a mask on one thread, one after another, and keeps the mask
for the gradient: in a small Transformer that takes a tenth of a training step. The compiled kernel
computes each number from its place and a seed, on all threads, and again for the gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.backends import choose
from fairseq_sparse.ops.cpu.dropout import drop


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each entry of ``x`` to 0 with probability ``p``; otherwise divide it by ``1 - p``.

    Args:
        x: any shape, dtype and device; the compiled kernel takes fp32 on a CPU, PyTorch the others.
        p: in [0, 1].

    Which entries are dropped depends on PyTorch's generator, from which the kernel draws one
    number. It can be differentiated any number of times. NaN and infinity times 0 are NaN.

    Raises:
        ValueError: ``p`` is out of range.
    """
    if choose("dropout", (x,), p=p).NAME == "reference":
        return F.dropout(x, p)  # which refuses what is out of range
    return _Dropout.apply(x, p, int(torch.randint(1 << 62, (), device="cpu")))


class _Dropout(Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.p, ctx.seed = p, seed
        return drop(x, p, seed)

    @staticmethod
    def backward(ctx, grad):
        return _Dropout.apply(grad, ctx.p, ctx.seed), None, None
