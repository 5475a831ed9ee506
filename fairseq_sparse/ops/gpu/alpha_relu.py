"""alpha-ReLU on a GPU: one elementwise kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.gpu.arithmetic import alpha_arguments, factors, rate_of, to_compute_dtype

BLOCK = 1024


def alpha_relu_weights(z: Tensor, tau: float | Tensor, alpha: float) -> Tensor:
    """Return ``[(alpha - 1) z - tau]_+ ** (1 / (alpha - 1))`` in the dtype of ``z``.

    Args:
        z: logits of any shape and floating dtype, computed in fp32 or better.
        tau: a number or a tensor with one element.
        alpha: a number > 1.
    """
    z = z.contiguous()
    p = torch.empty_like(z)
    if p.numel() > 0:
        with torch.cuda.device_of(z):
            rates, constant = alpha_arguments(alpha, z)
            _weights_kernel[elementwise_grid(z)](
                z,
                to_compute_dtype(tau, z),
                rates,
                p,
                z.numel(),
                ALPHA=constant,
                **elementwise_options(z),
            )
    return p


def elementwise_grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


def elementwise_options(x: Tensor) -> dict:
    return {
        "BLOCK": BLOCK,
        "DTYPE": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "enable_fp_fusion": False,
    }


@triton.jit
def _weights_kernel(
    z,
    tau,
    rates,  # alpha - 1, read if ALPHA is 0
    p,
    count,
    ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(z + place, mask=place < count, other=0.0).to(DTYPE)
    rate = rate_of(rates, ALPHA, DTYPE)
    weight, above = factors(rate * logits, tl.load(tau), rate, ALPHA)
    tl.store(p + place, (weight * above).to(p.dtype.element_ty), mask=place < count)
