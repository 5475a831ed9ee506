"""The norms and gates of rectified linear attention, over the concatenated heads of a query.

Each takes ``[..., d]`` and returns fp32 or better, in which the unbounded outputs of rectified
attention cannot overflow.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_sparse.ops import gated_rms_norm, rms_norm
from fairseq_sparse.ops.precision import at_least_fp32


class RMSNorm(nn.Module):
    """``g * z / RMS(z)`` with a gain ``g`` that starts at 1 (ReLA, Eq. 4).

    Args:
        width: the width ``d`` of the concatenated heads.
        head_width: the width ``d_h`` of a head; only the initialisation of one subclass uses it.
    """

    def __init__(self, width: int, head_width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, z: Tensor) -> Tensor:
        return rms_norm(z, self.weight)


class RMSNormUniformGain(RMSNorm):
    """RMSNorm of ReLA-i, whose gain is drawn from ``U(-sqrt(3 / d_h), sqrt(3 / d_h))``.

    The gain has the width ``d`` of the concatenated heads, for which Xavier's bound would be
    ``sqrt(3 / d)``, as for the gate of ReLA-g. The paper states ``d_h``, the width of a head.
    """

    def __init__(self, width: int, head_width: int):
        super().__init__(width, head_width)
        bound = math.sqrt(3 / head_width)
        nn.init.uniform_(self.weight, -bound, bound)


class GatedRMSNorm(RMSNorm):
    """``sigmoid(w * z) * RMSNorm(z)`` of ReLA-g (Eq. 5)."""

    def __init__(self, width: int, head_width: int):
        super().__init__(width, head_width)
        self.gate = nn.Parameter(xavier_uniform_vector(width))

    def forward(self, z: Tensor) -> Tensor:
        return gated_rms_norm(z, self.weight, self.gate)


class Gate(nn.Module):
    """``sigmoid(w * z) * z``: the gate of ReLA-g without its norm."""

    def __init__(self, width: int, head_width: int):
        super().__init__()
        self.gate = nn.Parameter(xavier_uniform_vector(width))

    def forward(self, z: Tensor) -> Tensor:
        z, gate = at_least_fp32(z), at_least_fp32(self.gate)
        return torch.sigmoid(gate * z) * z


class GatedLayerNorm(nn.Module):
    """``sigmoid(w * z) * LayerNorm(z)``: the ablation of ReLA-g with another norm.

    Its learned offset gives a query that attends to nothing an output other than 0.
    """

    def __init__(self, width: int, head_width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.gate = nn.Parameter(xavier_uniform_vector(width))

    def forward(self, z: Tensor) -> Tensor:
        z, weight, bias = (at_least_fp32(x) for x in (z, self.weight, self.bias))
        return torch.sigmoid(at_least_fp32(self.gate) * z) * F.layer_norm(
            z, weight.shape, weight, bias
        )


def xavier_uniform_vector(width: int) -> Tensor:
    """Draw Xavier-uniform values for a vector, whose fan-in and fan-out are both its width."""
    bound = math.sqrt(3 / width)
    return torch.empty(width).uniform_(-bound, bound)
