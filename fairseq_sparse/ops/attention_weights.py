"""From attention scores to attention weights: one named object for each kind of weights.

Each maps scores ``[..., keys]``, in which a masked key has -inf, to weights of that shape in fp32
or better: exactly 0 for masked keys, and a row of zeros where every key is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops import mappings
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.reference.entmax import Alpha

# TensorFlow's default, the framework of ReLA's authors.
LEAKY_RELU_SLOPE = 0.2


@dataclass(frozen=True)
class AttentionWeights:
    """A kind of attention weights, by name.

    Args:
        name: what backends know the kind by.
        function: from scores, and alpha where the kind has one, to weights.
        sums_to_one: whether the weights of a query sum to 1, unless all of its keys are masked.
            Otherwise they have no bound.
        alpha: of alpha-entmax; None where there is none, or where each call gives it.
    """

    name: str
    function: Callable[..., Tensor]
    sums_to_one: bool
    alpha: Optional[float] = None

    def __call__(self, scores: Tensor, alpha: Optional[Alpha] = None) -> Tensor:
        """Return the weights of scores ``[..., keys]``.

        Args:
            alpha: of alpha-entmax without one of its own: a number, or a tensor that broadcasts
                with size 1 for the keys.
        """
        alpha = self.alpha if alpha is None else alpha
        return self.function(scores) if alpha is None else self.function(scores, alpha)

    def with_alpha(self, alpha: float) -> AttentionWeights:
        """Return alpha-entmax with this alpha."""
        return AttentionWeights(self.name, self.function, self.sums_to_one, alpha)


class AttentionOptions(NamedTuple):
    """The arguments of :func:`fairseq_sparse.ops.attention.attend` besides query, key and value."""

    weights: AttentionWeights
    alpha: Optional[Tensor]  # [heads, 1, 1], which gets a gradient; a number is in the weights
    masked: Optional[Tensor]
    bias: Optional[Tensor]
    causal: bool
    dropout: float
    need_weights: bool
    scale: float
    widen: bool  # whether the weighted sum is in fp32 whatever the inputs


def _softmax(scores: Tensor) -> Tensor:
    return mappings.softmax(at_least_fp32(scores))


def _entmax(scores: Tensor, alpha: Alpha) -> Tensor:
    return mappings.entmax(at_least_fp32(scores), alpha)


def _relu(scores: Tensor) -> Tensor:
    return torch.relu(at_least_fp32(scores))


def _gelu(scores: Tensor) -> Tensor:
    return F.gelu(_masked_to_zero(scores))


def _leaky_relu(scores: Tensor) -> Tensor:
    return F.leaky_relu(_masked_to_zero(scores), LEAKY_RELU_SLOPE)


def _masked_to_zero(scores: Tensor) -> Tensor:
    """Return scores of 0 for masked keys: they have weight 0, and unlike -inf a gradient of 0."""
    scores = at_least_fp32(scores)
    return scores.masked_fill(torch.isneginf(scores), 0.0)


softmax = AttentionWeights("softmax", _softmax, sums_to_one=True)
entmax = AttentionWeights("entmax", _entmax, sums_to_one=True)
sparsemax = entmax.with_alpha(2.0)
entmax15 = entmax.with_alpha(1.5)
# ReLA, Eq. 3.
relu = AttentionWeights("relu", _relu, sums_to_one=False)
# 0 only where a key is masked, or where rounding makes it 0.
gelu = AttentionWeights("gelu", _gelu, sums_to_one=False)
# Sparse only where a key is masked.
leaky_relu = AttentionWeights("leaky_relu", _leaky_relu, sums_to_one=False)

ATTENTION_WEIGHTS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax": entmax,
    "relu": relu,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
}
