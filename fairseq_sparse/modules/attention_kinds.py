"""The kinds of attention: each has a function from scores to weights, and may have a norm.

The weights of softmax, sparsemax and entmax sum to 1. Those of ReLA are unbounded, and a row of
them can be all zeros ("null attention"), which is why all kinds of ReLA but ``relu`` have a norm.
The gate and the norm of ReLA over softmax are controls, as are ReLU with weights that sum to 1
(``relu_l1``) and ReLU of scores from which their mean is subtracted (``relu_centred``);
``relu_length``, ``softpick`` and ``sigmoid`` are other alternatives to softmax, and ``alpha_relu``
carries the output transform of that name over to attention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from torch import nn

from fairseq_sparse.modules.attention_norm import (
    Gate,
    GatedLayerNorm,
    GatedRMSNorm,
    RMSNorm,
    RMSNormUniformGain,
)
from fairseq_sparse.ops.attention_weights import (
    AttentionWeights,
    alpha_relu,
    entmax,
    entmax15,
    gelu,
    leaky_relu,
    relu,
    relu_centred,
    relu_l1,
    relu_length,
    sigmoid,
    softmax,
    softpick,
    sparsemax,
)


@dataclass(frozen=True)
class AttentionKind:
    """A kind of attention: a value of ``--attention``.

    Args:
        weights: the mapping from scores to weights.
        norm: builds the norm or gate of the concatenated heads, given their width and the width of
            one head.
    """

    weights: AttentionWeights
    norm: Optional[Callable[[int, int], nn.Module]] = None

    @property
    def takes_alpha(self) -> bool:
        """Return whether the kind uses ``--attention-alpha``."""
        return self.weights.lacks_alpha

    @property
    def is_entmax(self) -> bool:
        """Return whether the weights are alpha-entmax with any alpha above 1."""
        return self.weights.name == entmax.name

    @property
    def is_positive(self) -> bool:
        """Return whether the weights of keys that are not masked are above 0."""
        return self.weights.name in (softmax.name, sigmoid.name)

    @property
    def sums_to_one(self) -> bool:
        """Return whether the weights of a query sum to 1 (or are all zero)."""
        return self.weights.sums_to_one


ATTENTION_KINDS = {
    "softmax": AttentionKind(softmax),
    "sparsemax": AttentionKind(sparsemax),
    "entmax15": AttentionKind(entmax15),
    "entmax": AttentionKind(entmax),
    "relu": AttentionKind(relu),
    "relu_rmsnorm": AttentionKind(relu, RMSNorm),
    "rela_i": AttentionKind(relu, RMSNormUniformGain),
    "rela_g": AttentionKind(relu, GatedRMSNorm),
    "rela_g_layernorm": AttentionKind(relu, GatedLayerNorm),
    "rela_g_gelu": AttentionKind(gelu, GatedRMSNorm),
    "rela_g_leaky_relu": AttentionKind(leaky_relu, GatedRMSNorm),
    "softmax_gated": AttentionKind(softmax, Gate),
    "softmax_rmsnorm_gated": AttentionKind(softmax, GatedRMSNorm),
    "relu_length": AttentionKind(relu_length),
    "relu_l1": AttentionKind(relu_l1),
    "relu_centred": AttentionKind(relu_centred, GatedRMSNorm),
    "alpha_relu": AttentionKind(alpha_relu),
    "alpha_relu_rmsnorm_gated": AttentionKind(alpha_relu, GatedRMSNorm),
    "softpick": AttentionKind(softpick),
    "sigmoid": AttentionKind(sigmoid),
}
