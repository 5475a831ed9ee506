"""The kernels for GPUs, in Triton; entmax attention uses those of the package ``adasplash``.

Importing this imports Triton, so :mod:`fairseq_sparse.ops.backends` imports it only for the first
CUDA tensor.
"""

from fairseq_sparse.ops.gpu.alpha_relu import alpha_relu_weights
from fairseq_sparse.ops.gpu.attention import adasplash, attend
from fairseq_sparse.ops.gpu.entmax import entmax_probabilities, entmax_rows
from fairseq_sparse.ops.gpu.gradients import alpha_relu_gradient, entmax_gradient
from fairseq_sparse.ops.gpu.linear_loss import linear_losses
from fairseq_sparse.ops.gpu.losses import row_losses

NAME = "gpu"

__all__ = [
    "NAME",
    "adasplash",
    "alpha_relu_gradient",
    "alpha_relu_weights",
    "attend",
    "entmax_gradient",
    "entmax_probabilities",
    "entmax_rows",
    "linear_losses",
    "row_losses",
]
