"""From attention scores to attention weights: one function for each kind of attention.

Each function takes scores ``[..., keys]`` in which a hidden key has -inf, and gives weights of that
shape in fp32 or better: exactly 0 for hidden keys, and a row of zeros where every key is hidden.
Weights of the distribution kinds sum to 1 (softmax, sparsemax, entmax); those of the rectified
kinds have no bound, and a row of them can be all zeros ("null attention"), which is why a norm
follows all of them but ``relu``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_sparse import ops
from fairseq_sparse.modules.attention_norm import (
    GatedLayerNorm,
    GatedRMSNorm,
    RMSNorm,
    RMSNormUniformGain,
)
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.threshold import Alpha

# TensorFlow's default, the framework of ReLA's authors.
LEAKY_RELU_SLOPE = 0.2


def softmax(scores: Tensor) -> Tensor:
    """Dense weights that sum to 1."""
    return ops.softmax(at_least_fp32(scores))


def sparsemax(scores: Tensor) -> Tensor:
    """2-entmax (Martins & Astudillo 2016)."""
    return ops.sparsemax(at_least_fp32(scores))


def entmax15(scores: Tensor) -> Tensor:
    """1.5-entmax (Peters, Niculae, Martins 2019)."""
    return ops.entmax15(at_least_fp32(scores))


def entmax(scores: Tensor, alpha: Alpha) -> Tensor:
    """alpha-entmax; ``alpha`` a number, or a tensor that broadcasts with size 1 for the keys."""
    return ops.entmax(at_least_fp32(scores), alpha)


def relu(scores: Tensor) -> Tensor:
    """``[scores]_+`` (ReLA, Eq. 3)."""
    return torch.relu(at_least_fp32(scores))


def gelu(scores: Tensor) -> Tensor:
    """GELU of the scores: 0 only where a key is hidden, or where rounding makes it 0."""
    return F.gelu(_hidden_to_zero(scores))


def leaky_relu(scores: Tensor) -> Tensor:
    """Leaky ReLU of the scores, which is sparse only where a key is hidden."""
    return F.leaky_relu(_hidden_to_zero(scores), LEAKY_RELU_SLOPE)


def _hidden_to_zero(scores: Tensor) -> Tensor:
    """Scores of 0 for hidden keys: it has weight 0, and unlike -inf no NaN in its gradient."""
    scores = at_least_fp32(scores)
    return scores.masked_fill(torch.isneginf(scores), 0.0)


@dataclass(frozen=True)
class AttentionKind:
    """What a value of ``--attention`` stands for.

    Args:
        weights: the function from scores to weights.
        norm: makes the norm of the concatenated heads from their width and the width of a head.
        sums_to_one: whether the weights of a query sum to 1 (or are all zero).
    """

    weights: Callable[..., Tensor]
    norm: Optional[Callable[[int, int], nn.Module]] = None
    sums_to_one: bool = True

    @property
    def takes_alpha(self) -> bool:
        return self.weights is entmax


ATTENTION_KINDS = {
    "softmax": AttentionKind(softmax),
    "sparsemax": AttentionKind(sparsemax),
    "entmax15": AttentionKind(entmax15),
    "entmax": AttentionKind(entmax),
    "relu": AttentionKind(relu, sums_to_one=False),
    "relu_rmsnorm": AttentionKind(relu, RMSNorm, sums_to_one=False),
    "rela_i": AttentionKind(relu, RMSNormUniformGain, sums_to_one=False),
    "rela_g": AttentionKind(relu, GatedRMSNorm, sums_to_one=False),
    "rela_g_layernorm": AttentionKind(relu, GatedLayerNorm, sums_to_one=False),
    "rela_g_gelu": AttentionKind(gelu, GatedRMSNorm, sums_to_one=False),
    "rela_g_leaky_relu": AttentionKind(leaky_relu, GatedRMSNorm, sums_to_one=False),
}
