"""RMSNorm and gated RMSNorm, which keep the unbounded outputs of rectified attention in range.

Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units", Eq. 4 and 5, over the last
dimension, of size d:

    RMSNorm(z) = g * z / RMS(z),    RMS(z) = sqrt(sum(z ** 2) / d + eps),
    gated:       sigmoid(w * z) * RMSNorm(z).

A row of zeros (null attention) stays exactly zero, and its gradient is finite.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.precision import at_least_fp32

# Value used in the authors' code; bounds the gradient of rows near zero by 1 / sqrt(eps).
EPSILON = 1e-8


def rms_norm(z: Tensor, gain: Tensor, eps: float = EPSILON) -> Tensor:
    """Apply RMSNorm over the last dimension, see the docstring of this module.

    Args:
        z: ``[..., d]``, any floating dtype; computed in fp32 or better.
        gain: ``g``, ``[d]``.
        eps: added to the mean square.

    Returns:
        A tensor in the shape of ``z``, fp32 or better: half precision is the caller's choice.

    Raises:
        ValueError: the gain has another size.
    """
    return _apply(z, gain, None, eps)


def gated_rms_norm(z: Tensor, gain: Tensor, gate: Tensor, eps: float = EPSILON) -> Tensor:
    """Apply gated RMSNorm over the last dimension; see also :func:`rms_norm`.

    Args:
        gate: ``w``, ``[d]``.
    """
    return _apply(z, gain, gate, eps)


def _apply(z: Tensor, gain: Tensor, gate: Optional[Tensor], eps: float) -> Tensor:
    for name, x in (("gain", gain), ("gate", gate)):
        if x is not None and x.shape != z.shape[-1:]:
            raise ValueError(f"{name} must be {list(z.shape[-1:])}, got {list(x.shape)}")
    z, gain = at_least_fp32(z), at_least_fp32(gain)
    normed = z * (z.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
    return normed if gate is None else torch.sigmoid(at_least_fp32(gate) * z) * normed
