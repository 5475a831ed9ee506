"""Cases for tests of the ops: mappings, losses, dtypes, random logits."""

import torch

import references
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    backends,
    entmax,
    entmax15,
    entmax_loss,
    softmax,
    sparsemax,
)
from fairseq_sparse.ops.attention_weights import AttentionOptions, relu
from fairseq_sparse.ops.attention_weights import entmax as weights_by_entmax
from fairseq_sparse.ops.backends import choose
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.attention import RECTIFIED

HALF_DTYPES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float64, torch.float32, *HALF_DTYPES)

MAPPINGS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax125": lambda z, dim=-1: entmax(z, 1.25, dim),
    "entmax175": lambda z, dim=-1: entmax(z, 1.75, dim),
    "entmax3": lambda z, dim=-1: entmax(z, 3, dim),
}
ALPHA_OF = {"sparsemax": 2.0, "entmax15": 1.5, "entmax125": 1.25, "entmax175": 1.75, "entmax3": 3.0}
# Kinds of attention weights that have CPU kernels.
SPARSE_WEIGHTS = {"relu": relu} | {
    f"entmax {alpha}": weights_by_entmax.with_alpha(alpha) for alpha in (1.05, 1.3, 1.5, 1.9, 2)
}

TAU = 0.3


def attends_by_kernels():
    """Return whether this machine has attention kernels: a compiler, and vectors of 8 numbers."""
    return build.library() is not None and backends._has_wide_vectors()


class EntmaxLoss:
    """One loss with its mapping and naive versions, all with the same arguments."""

    def __str__(self):
        return "entmax"

    def loss(self, z, target, alpha=1.5, **options):
        return entmax_loss(z, target, alpha, **options)

    def mapping(self, z, alpha):
        return entmax(z, alpha)

    def naive_loss(self, z, target, alpha=1.5, label_smoothing=0.0):
        return references.entmax_loss(z, target, alpha, label_smoothing)

    def naive_gradient(self, z, target, alpha=1.5, label_smoothing=0.0):
        return references.entmax_loss_gradient(z, target, alpha, label_smoothing)

    def logits_of(self, q, alpha):
        """Return logits that are mapped to ``q``."""
        return q ** (alpha - 1) / (alpha - 1)


class AlphaReLULoss(EntmaxLoss):
    def __str__(self):
        return "alpha_relu"

    def loss(self, z, target, alpha=1.5, **options):
        return alpha_relu_loss(z, target, TAU, alpha, **options)

    def mapping(self, z, alpha):
        return alpha_relu(z, TAU, alpha)

    def naive_loss(self, z, target, alpha=1.5, label_smoothing=0.0):
        return references.alpha_relu_loss(z, target, TAU, alpha, label_smoothing)

    def naive_gradient(self, z, target, alpha=1.5, label_smoothing=0.0):
        return references.alpha_relu_loss_gradient(z, target, TAU, alpha, label_smoothing)

    def logits_of(self, q, alpha):
        return (q ** (alpha - 1) + TAU) / (alpha - 1)


LOSSES = (EntmaxLoss(), AlphaReLULoss())


def logits(*shape, dtype=torch.float64, scale=1.0):
    return torch.randn(shape, dtype=torch.float64).mul(scale).to(dtype)


def batch(*shape, size=12, dtype=torch.float64, scale=1.5):
    """Draw logits ``[*shape, size]`` and targets ``shape``."""
    return logits(*shape, size, dtype=dtype, scale=scale), torch.randint(size, shape)


def alpha_of(weights):
    """Return alpha of a kind of attention weights, as the C kernels take it."""
    return RECTIFIED if weights.name == "relu" else weights.alpha


def attention_options(weights, **options):
    """Return the options of ``attend``: the given ones, and defaults for the others."""
    defaults = {"alpha": None, "masked": None, "bias": None, "causal": False, "dropout": 0.0}
    defaults |= {"need_weights": False, "scale": 1.0, "widen": False}
    return AttentionOptions(weights, **{**defaults, **options})


def chosen_attention(query, key, value, weights, **options):
    """Return the backend that computes an attention."""
    options = attention_options(weights, **options)
    return choose("attention", (query, key, value, options.masked, options.bias), options=options)
