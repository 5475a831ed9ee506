"""The kernels for CPUs, in C: rows of logits, sparse products, attention, norms and dropout.

They are compiled at their first use (``build.py``), and nothing reaches them but through one
checked boundary (``boundary.py``). They compute in fp32.
"""

from fairseq_sparse.ops.cpu.attention import attend
from fairseq_sparse.ops.cpu.linear_loss import linear_losses
from fairseq_sparse.ops.cpu.losses import row_losses
from fairseq_sparse.ops.cpu.norms import rms_norm, rms_norm_gradients
from fairseq_sparse.ops.cpu.rows import (
    alpha_relu_weights,
    entmax_gradient,
    entmax_probabilities,
    entmax_rows,
    log_probabilities,
)

NAME = "cpu"

__all__ = [
    "NAME",
    "alpha_relu_weights",
    "attend",
    "entmax_gradient",
    "entmax_probabilities",
    "entmax_rows",
    "linear_losses",
    "log_probabilities",
    "rms_norm",
    "rms_norm_gradients",
    "row_losses",
]
