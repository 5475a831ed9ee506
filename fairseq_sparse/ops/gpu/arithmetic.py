"""Arithmetic that the kernels for GPUs share, and the preparation of their arguments.

In fp32 on a GPU, the operator ``/`` is accurate only to two units in the last place, and
``tl.sqrt`` to one. :func:`divide` and :func:`root` round correctly in any dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.reference.entmax import Alpha


def alpha_arguments(alpha: Alpha, z: Tensor) -> tuple[Tensor, float]:
    """Return alpha as the kernels take it: the tensor ``rates``, alpha - 1, and the constant ALPHA.

    Only 1.5 and 2, whose powers are simple, are compiled in. For any other alpha, ALPHA is 0 and
    kernels read the tensor, so that nothing is recompiled when alpha changes during training. The
    tensor holds alpha - 1 because alpha itself would have too few digits near 1.
    """
    if not torch.is_tensor(alpha) and alpha in (1.5, 2.0):
        return z.new_empty(1), float(alpha)
    return to_compute_dtype(alpha - 1, z), 0.0


def to_compute_dtype(x: float | Tensor, z: Tensor) -> Tensor:
    """Return a number or a tensor as the kernels read it: in the precision that they compute in, on
    the device of ``z``, with no synchronisation."""
    dtype = compute_dtype(z)
    if torch.is_tensor(x):
        return x.detach().to(z.device, dtype)
    return torch.full((), x, dtype=dtype, device=z.device)


def compute_dtype(z: Tensor) -> torch.dtype:
    """Return the dtype that kernels compute in: fp64 for fp64, otherwise fp32."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


@triton.jit
def divide(x, y):
    """Return ``x / y``, correctly rounded; ``x`` is a tensor."""
    if x.dtype == tl.float32:
        quotient = tl.div_rn(x, y)
    else:
        quotient = x / y
    return quotient


@triton.jit
def root(x):
    """Return the square root, correctly rounded."""
    if x.dtype == tl.float32:
        y = tl.sqrt_rn(x)
    else:
        y = tl.sqrt(x)
    return y


@triton.jit
def rate_of(rates, ALPHA: tl.constexpr, DTYPE: tl.constexpr):
    """Return alpha - 1 as a scalar tensor, from what :func:`alpha_arguments` gave."""
    if ALPHA == 0.0:
        rate = tl.load(rates)
    else:
        rate = tl.full([], ALPHA - 1, DTYPE)
    return rate


@triton.jit
def factors(x, tau, rate, ALPHA: tl.constexpr):
    """Return ``above ** (beta - 1)``, 0 where that is 0, and ``above = [x - tau]_+``: factors of p.

    NaN stays NaN in ``above`` and in the product.

    Args:
        rate: alpha - 1, a tensor.
        ALPHA: alpha if it is a constant, 1.5 or 2; else 0.
    """
    above = tl.where(x < tau, 0.0, x - tau)
    if ALPHA == 0.0:
        weight = positive_power(above, divide(tl.zeros_like(rate) + 1, rate) - 1)
    elif ALPHA == 1.5:
        weight = above
    else:
        weight = (above > 0).to(above.dtype)
    return weight, above


@triton.jit
def positive_power(x, exponent):
    """Return ``x ** exponent`` where ``x > 0``, and ``x`` where it is 0 or NaN."""
    return tl.where(x > 0, tl.exp2(exponent * tl.log2(x)), x)


@triton.jit
def any_of(x):
    """Return whether any entry is true."""
    return tl.max(tl.max(x.to(tl.int32), 1), 0) > 0


@triton.jit
def sums_of_two(a, b):
    """Return the sums of the rows of two tensors, ``[ROWS, 1]``, by one exchange of threads."""
    if _INTERPRETED:
        a = tl.sum(a, 1, keep_dims=True)
        b = tl.sum(b, 1, keep_dims=True)
    else:
        a, b = tl.reduce((a, b), 1, _add_two, keep_dims=True)
    return a, b


@triton.jit
def _add_two(a, b, more_a, more_b):
    return a + more_a, b + more_b


@triton.jit
def sums_of_three(a, b, c):
    """Return the row sums of three tensors, as :func:`sums_of_two`."""
    if _INTERPRETED:  # a reduction by a function would take a step of Python for each entry
        a = tl.sum(a, 1, keep_dims=True)
        b = tl.sum(b, 1, keep_dims=True)
        c = tl.sum(c, 1, keep_dims=True)
    else:
        a, b, c = tl.reduce((a, b, c), 1, _add_three, keep_dims=True)
    return a, b, c


@triton.jit
def _add_three(a, b, c, more_a, more_b, more_c):
    return a + more_a, b + more_b, c + more_c


# In Triton's interpreter, decorated functions have another class.
INTERPRETED = not isinstance(_add_three, triton.JITFunction)
_INTERPRETED = tl.constexpr(INTERPRETED)
