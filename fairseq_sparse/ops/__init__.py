"""Sparse mappings, their losses, attention over them and its norms.

Usable on its own: nothing here imports fairseq. Each public function calls a registered operator
(``operators.py``). The formulas in ``reference``, in PyTorch, compute it, or a kernel in ``cpu`` or
``gpu`` where one applies and the user's choice (``backends.py``) allows it.

Derivatives are those of reverse mode, of first and second order (``torch.func``: ``grad``,
``vjp``, ``jacrev``); forward mode (``jvp``, ``hessian``) is not supported.
"""

from fairseq_sparse.ops import cpu, gpu
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.losses import (
    alpha_relu_loss,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
)
from fairseq_sparse.ops.mappings import (
    alpha_relu,
    entmax,
    entmax15,
    entmax_threshold,
    log_alpha_relu,
    log_entmax,
    softmax,
    sparsemax,
)
from fairseq_sparse.ops.norms import gated_rms_norm, rms_norm
from fairseq_sparse.ops.tau import tau_from_formula, tau_from_logits, tau_from_weights

__all__ = [
    "alpha_relu",
    "alpha_relu_loss",
    "attend",
    "cpu",
    "entmax",
    "entmax15",
    "entmax_loss",
    "entmax_threshold",
    "gated_rms_norm",
    "gpu",
    "linear_alpha_relu_loss",
    "linear_entmax_loss",
    "log_alpha_relu",
    "log_entmax",
    "rms_norm",
    "softmax",
    "sparsemax",
    "tau_from_formula",
    "tau_from_logits",
    "tau_from_weights",
]
