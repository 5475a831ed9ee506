"""RMSNorm and gated RMSNorm by the compiled kernels: see ``reference/norms.py`` and ``norms.c``."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu.boundary import call


def rms_norm(x: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    """Return the normalised ``x [..., size]``; fp32 as are ``gain [size]`` and ``gate [size]``."""
    x = x.contiguous()
    out = torch.empty_like(x)
    call("rms_norm", x.numel(), *_arguments(x, gain, gate, eps), out)
    return out


def rms_norm_gradients(
    x: Tensor, grad: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, of ``gain`` and, if there is one, of ``gate``."""
    x = x.contiguous()
    grad_x = torch.empty_like(x)
    sums = x.new_zeros(torch.get_num_threads(), 2, gain.numel(), dtype=torch.float64)
    z, *others = _arguments(x, gain, gate, eps)
    call("rms_norm_gradient", x.numel(), z, grad.contiguous(), *others, grad_x, sums)
    return grad_x, *sums.sum(0).float()


def _arguments(x: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> tuple:
    size = gain.numel()
    rows = x.numel() // size if size else 0
    return x, rows, size, gain.contiguous(), None if gate is None else gate.contiguous(), eps
