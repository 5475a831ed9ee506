"""From attention scores to attention weights.

Each function takes scores ``[..., keys]`` in which a hidden key has -inf, and gives weights of that
shape in fp32 or better: exactly 0 for hidden keys, and a row of zeros where every key is hidden.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops.entmax import entmax as entmax_of_any_dtype
from fairseq_sparse.ops.entmax import softmax as softmax_of_any_dtype
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.threshold import Alpha

# TensorFlow's default, the framework of ReLA's authors.
LEAKY_RELU_SLOPE = 0.2


def softmax(scores: Tensor) -> Tensor:
    """Dense weights that sum to 1."""
    return softmax_of_any_dtype(at_least_fp32(scores))


def entmax(scores: Tensor, alpha: Alpha) -> Tensor:
    """alpha-entmax; ``alpha`` a number, or a tensor that broadcasts with size 1 for the keys."""
    return entmax_of_any_dtype(at_least_fp32(scores), alpha)


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
