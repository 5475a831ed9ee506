"""From attention scores to attention weights: one named object for each kind of weights.

Each maps scores ``[..., keys]``, in which a masked key has -inf, to weights of that shape in fp32
or better: exactly 0 for masked keys, and a row of zeros where every key is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops import mappings
from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.reference.thresholds import Alpha
from fairseq_sparse.ops.tau import mean_field_tau

# The default of TensorFlow, which ReLA's authors used.
LEAKY_RELU_SLOPE = 0.2
# The epsilon of softpick, as in its authors' code.
SOFTPICK_EPSILON = 1e-8
# Keeps ReLU divided by its sum finite where all scores are 0 or less.
RELU_L1_EPSILON = 1e-6
# The standard deviation of the scores of fairseq's attention before training: the weights of
# queries and keys are drawn with a variance of 1 / (2 d).
INITIAL_DEVIATION = 0.5


@dataclass(frozen=True)
class AttentionWeights:
    """A kind of attention weights, by name.

    Args:
        name: the name by which backends know the kind.
        function: the mapping from scores, and alpha if the kind has one, to weights.
        sums_to_one: whether the weights of a query sum to 1, unless all of its keys are masked.
            If false, they may be unbounded.
        alpha: the alpha of alpha-entmax; None for other kinds, or if each call passes it.
        signed: whether a weight can be below 0.
    """

    name: str
    function: Callable[..., Tensor]
    sums_to_one: bool
    alpha: Optional[float] = None
    signed: bool = False

    def __call__(self, scores: Tensor, alpha: Optional[Alpha] = None) -> Tensor:
        """Return the weights of scores ``[..., keys]``.

        Args:
            alpha: for alpha-entmax without a fixed alpha: a number, or a tensor that broadcasts,
                with size 1 for the keys.
        """
        alpha = self.alpha if alpha is None else alpha
        return self.function(scores) if alpha is None else self.function(scores, alpha)

    @property
    def has_alpha(self) -> bool:
        """Whether this is alpha-entmax with an alpha of its own, such as sparsemax."""
        return self.name == "entmax" and self.alpha is not None

    @property
    def lacks_alpha(self) -> bool:
        """Whether this is alpha-entmax without an alpha of its own."""
        return self.name == "entmax" and self.alpha is None

    def with_alpha(self, alpha: float) -> AttentionWeights:
        """Return alpha-entmax with this alpha."""
        return replace(self, alpha=alpha)


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


def _relu_length(scores: Tensor) -> Tensor:
    return _relu(scores) / _count_unmasked(scores)


def _relu_l1(scores: Tensor) -> Tensor:
    weights = _relu(scores)
    return weights / (weights.sum(-1, keepdim=True) + RELU_L1_EPSILON)


def _relu_centred(scores: Tensor) -> Tensor:
    mean = _masked_to_zero(scores).sum(-1, keepdim=True) / _count_unmasked(scores)
    return torch.relu(at_least_fp32(scores) - mean)


def _alpha_relu(scores: Tensor) -> Tensor:
    count = _count_unmasked(scores)
    thresholds = [0.0, *map(_initial_threshold, range(1, max(scores.size(-1), 1) + 1))]
    # [..., 1], the threshold for as many keys as the query sees
    tau = count.new_tensor(thresholds)[count.long()]
    return mappings.alpha_relu(at_least_fp32(scores), tau)


@cache
def _initial_threshold(count: int) -> float:
    """Return the average threshold of 1.5-entmax over *count* scores before training."""
    return mean_field_tau(INITIAL_DEVIATION, count)


def _sigmoid(scores: Tensor) -> Tensor:
    return torch.sigmoid(at_least_fp32(scores) - _count_unmasked(scores).log())


def _softpick(scores: Tensor) -> Tensor:
    """Return ``relu(e) / (sum |e| + eps)``, where ``e = (exp(s) - 1) exp(-m)`` and m is the largest
    score of the query, or 0 if that is below 0.

    It is computed as ``|e| = exp(max(s, 0) - m) (1 - exp(-|s|))``, so that nothing overflows and
    small scores keep all of their digits.
    """
    scores = _masked_to_zero(scores)
    if scores.size(-1) == 0:
        return scores
    positive = torch.relu(scores)
    size = -torch.expm1(-scores.abs()) * torch.exp(positive - positive.amax(-1, True).detach())
    return torch.where(scores > 0, size, 0.0) / (size.sum(-1, True) + SOFTPICK_EPSILON)


def _count_unmasked(scores: Tensor) -> Tensor:
    """Count the keys of each query that are not masked, ``[..., 1]``; 1 where all are."""
    count = scores.isneginf().logical_not().sum(-1, keepdim=True).clamp(min=1)
    return count.to(at_least_fp32(scores[..., :0]).dtype)


def _masked_to_zero(scores: Tensor) -> Tensor:
    """Set the scores of masked keys to 0: weights are 0, and gradients, too, unlike for -inf."""
    scores = at_least_fp32(scores)
    return scores.masked_fill(torch.isneginf(scores), 0.0)


softmax = AttentionWeights("softmax", _softmax, sums_to_one=True)
entmax = AttentionWeights("entmax", _entmax, sums_to_one=True)
sparsemax = entmax.with_alpha(2.0)
entmax15 = entmax.with_alpha(1.5)
# ReLA, Eq. 3.
relu = AttentionWeights("relu", _relu, sums_to_one=False)
# A weight is 0 only if its key is masked or if it rounds to 0.
gelu = AttentionWeights("gelu", _gelu, sums_to_one=False, signed=True)
# Sparse only where a key is masked.
leaky_relu = AttentionWeights("leaky_relu", _leaky_relu, sums_to_one=False, signed=True)
# [s]_+ / n, n the number of keys that the query sees (Wortsman et al. 2023, arXiv 2309.08586).
relu_length = AttentionWeights("relu_length", _relu_length, sums_to_one=False)
# [s]_+ / (sum [s]_+ + eps): a control, ReLU whose weights sum to 1.
relu_l1 = AttentionWeights("relu_l1", _relu_l1, sums_to_one=False)
# [s - mean(s)]_+: a control, ReLU whose threshold follows the scores of the query.
relu_centred = AttentionWeights("relu_centred", _relu_centred, sums_to_one=False)
# 1.5-ReLU, [s / 2 - tau(n)]_+ ** 2, with the tau of logits before training (SUE, 3.1).
alpha_relu = AttentionWeights("alpha_relu", _alpha_relu, sums_to_one=False)
# sigmoid(s - log n) (Ramapuram et al. 2024, arXiv 2409.04431).
sigmoid = AttentionWeights("sigmoid", _sigmoid, sums_to_one=False)
# Sums to at most 1 (Zuhri et al. 2025, arXiv 2504.20966).
softpick = AttentionWeights("softpick", _softpick, sums_to_one=False)

ATTENTION_WEIGHTS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax": entmax,
    "relu": relu,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "relu_length": relu_length,
    "relu_l1": relu_l1,
    "relu_centred": relu_centred,
    "alpha_relu": alpha_relu,
    "sigmoid": sigmoid,
    "softpick": softpick,
}
