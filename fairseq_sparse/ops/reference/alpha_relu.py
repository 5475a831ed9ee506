"""alpha-ReLU ("Speeding Up Entmax", Eq. 2): ``[(alpha - 1) z - tau]_+ ** (1 / (alpha - 1))``."""

from __future__ import annotations

from typing import Union

from torch import Tensor

from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.reference.powers import positive_power, slope


def alpha_relu_weights(z: Tensor, tau: Union[float, Tensor], alpha: float) -> Tensor:
    """Return ``p`` in the dtype of ``z``."""
    return weights_and_base(z, tau, alpha)[0].to(z.dtype)


def weights_and_base(z: Tensor, tau: Union[float, Tensor], alpha: float) -> tuple[Tensor, Tensor]:
    """Return ``p`` and its base ``p ** (alpha - 1) = [(alpha - 1) z - tau]_+``, fp32 or better."""
    base = ((alpha - 1) * at_least_fp32(z) - tau).clamp(min=0)
    return positive_power(base, 1 / (alpha - 1)), base


def alpha_relu_gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian ``diag(p ** (2 - alpha))`` on the support."""
    return (slope(at_least_fp32(p), alpha) * grad.masked_fill(p == 0, 0.0)).to(p.dtype)
