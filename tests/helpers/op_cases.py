"""Cases for tests of the ops: mappings, losses, dtypes, random logits."""

import torch

import references
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    cpu,
    entmax,
    entmax15,
    entmax_loss,
    softmax,
    sparsemax,
)
from fairseq_sparse.ops.attention_weights import entmax as weights_by_entmax
from fairseq_sparse.ops.attention_weights import relu
from fairseq_sparse.ops.cpu.attention import _has_wide_vectors
from fairseq_sparse.ops.dropout import draw_seed
from fairseq_sparse.ops.reference.attention import RECTIFIED, attention

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
    return _has_wide_vectors()


def attend_by_kernels_at_any_size(monkeypatch):
    """Let the CPU kernels compute also what is left to PyTorch because it is as fast."""
    for limit in ("_LEAST_SCORES", "_LEAST_RECTIFIED", "_LEAST_LANES"):
        monkeypatch.setattr(cpu.attention, limit, 0)


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
    """Return alpha of a kind of attention weights, as the operators take it."""
    return RECTIFIED if weights.name == "relu" else weights.alpha


def sparse_attention(
    query, key, value, alpha, scale=1.0, masked=None, bias=None, causal=False, dropout=0.0
):
    """Return attention by its operator, which ``attend`` calls only where a kernel is fast."""
    seed = draw_seed() if dropout > 0 else None
    options = (masked, bias, seed, alpha, scale, causal, dropout)
    return attention(query, key, value, *options)[0].permute(1, 2, 0, 3)
