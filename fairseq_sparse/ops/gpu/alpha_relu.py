"""alpha-ReLU on a GPU: one elementwise kernel forward and one backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.gpu.entmax import positive_power, power_above

_BLOCK = 1024


def scalar_tau(tau: float | Tensor, z: Tensor) -> Tensor:
    """``tau``, a number or a tensor with one element, as the kernels read it: in the precision that
    they compute in, on the device of ``z``, with no synchronisation."""
    dtype = torch.float64 if z.dtype == torch.float64 else torch.float32
    if torch.is_tensor(tau):
        return tau.detach().to(z.device, dtype)
    return torch.full((), tau, dtype=dtype, device=z.device)


def alpha_relu_weights(z: Tensor, tau: float | Tensor, alpha: float) -> Tensor:
    """``[(alpha - 1) z - tau]_+ ** (1 / (alpha - 1))`` in the dtype of ``z``.

    Args:
        z: logits of any shape and floating dtype, computed in fp32 or better.
        tau: a number or a tensor with one element.
        alpha: a number > 1.
    """
    z = z.contiguous()
    p = torch.empty_like(z)
    if p.numel() > 0:
        with torch.cuda.device_of(z):
            _weights_kernel[_grid(z)](
                z, scalar_tau(tau, z), p, z.numel(), ALPHA=float(alpha), **_options(z)
            )
    return p


def alpha_relu_gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``grad`` times the Jacobian ``diag(p ** (2 - alpha))`` on the support, in ``p``'s dtype.

    Args:
        p: what :func:`alpha_relu_weights` gave.
        grad: in the shape of ``p``.
    """
    p, grad = p.contiguous(), grad.contiguous()
    result = torch.empty_like(p)
    if p.numel() > 0:
        with torch.cuda.device_of(p):
            _gradient_kernel[_grid(p)](
                p, grad, result, p.numel(), ALPHA=float(alpha), **_options(p)
            )
    return result


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), _BLOCK),)


def _options(x: Tensor) -> dict:
    return {
        "BLOCK": _BLOCK,
        "DTYPE": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "enable_fp_fusion": True,
    }


@triton.jit
def _weights_kernel(
    z, tau, p, count, ALPHA: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(z + place, mask=place < count, other=0.0).to(DTYPE)
    weight, above = power_above((ALPHA - 1) * logits, tl.load(tau), ALPHA, False)
    tl.store(p + place, (weight * above).to(p.dtype.element_ty), mask=place < count)


@triton.jit
def _gradient_kernel(
    p, grad, result, count, ALPHA: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(p + place, mask=place < count, other=0.0).to(DTYPE)
    incoming = tl.load(grad + place, mask=place < count, other=0.0).to(DTYPE)
    # Not 0 * incoming, which may be infinite.
    slope = positive_power(weight, 2 - ALPHA)
    product = tl.where(weight == 0, 0.0, slope * incoming)
    tl.store(result + place, product.to(result.dtype.element_ty), mask=place < count)
