"""Sparse mappings, their losses, attention over them and its norms, in pure PyTorch.

Usable on its own: nothing here imports fairseq.
"""

from fairseq_sparse.ops.alpha_relu import alpha_relu
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.entmax import entmax, entmax15, entmax_threshold, softmax, sparsemax
from fairseq_sparse.ops.linear_loss import linear_alpha_relu_loss, linear_entmax_loss
from fairseq_sparse.ops.losses import alpha_relu_loss, entmax_loss
from fairseq_sparse.ops.rms_norm import gated_rms_norm, rms_norm
from fairseq_sparse.ops.tau import tau_from_formula, tau_from_logits, tau_from_weights

__all__ = [
    "alpha_relu",
    "alpha_relu_loss",
    "attend",
    "entmax",
    "entmax15",
    "entmax_loss",
    "entmax_threshold",
    "gated_rms_norm",
    "linear_alpha_relu_loss",
    "linear_entmax_loss",
    "rms_norm",
    "softmax",
    "sparsemax",
    "tau_from_formula",
    "tau_from_logits",
    "tau_from_weights",
]
