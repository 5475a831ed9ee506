"""The ops in plain PyTorch, for any device and dtype: the formulas, and no decisions.

The kernels in ``cpu`` and ``gpu`` are checked against these ops, which compute wherever the kernels
do not apply.
"""

from fairseq_sparse.ops.reference.alpha_relu import alpha_relu_gradient, alpha_relu_weights
from fairseq_sparse.ops.reference.attention import attend
from fairseq_sparse.ops.reference.entmax import (
    entmax_gradient,
    entmax_probabilities,
    entmax_rows,
)
from fairseq_sparse.ops.reference.norms import rms_norm, rms_norm_gradients
from fairseq_sparse.ops.reference.residual import residual

NAME = "reference"

__all__ = [
    "NAME",
    "alpha_relu_gradient",
    "alpha_relu_weights",
    "attend",
    "entmax_gradient",
    "entmax_probabilities",
    "entmax_rows",
    "residual",
    "rms_norm",
    "rms_norm_gradients",
]
