"""The gradients of the mappings on a GPU.

alpha-entmax: one program for each row, which it reads twice. alpha-ReLU: an elementwise kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.gpu.alpha_relu import elementwise_grid, elementwise_options
from fairseq_sparse.ops.gpu.arithmetic import (
    alpha_arguments,
    divide,
    positive_power,
    rate_of,
    root,
)
from fairseq_sparse.ops.gpu.entmax import contiguous_rows, sweep_options
from fairseq_sparse.ops.gpu.entmax_search import STAGES


def entmax_gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian of alpha-entmax, ``diag(s) - s s^T / sum(s)`` with
    ``s = p ** (2 - alpha)`` on the support (Peters et al. 2019, Prop. 1).

    Args:
        p: probabilities ``[rows, size]``, any floating dtype; computed in fp32 or better.
        grad: in the shape of ``p``. Off the support it may hold anything.
        alpha: a number > 1.

    Returns:
        ``[rows, size]`` in the dtype of ``p``.
    """
    p, grad = contiguous_rows(p), contiguous_rows(grad)
    rows, size = p.shape
    result = torch.empty_like(p, memory_format=torch.contiguous_format)
    if result.numel() > 0:
        options = sweep_options(size, p.dtype)
        with torch.cuda.device_of(p):
            rates, constant = alpha_arguments(alpha, p)
            _entmax_kernel[(rows,)](
                p,
                grad,
                result,
                rates,
                p.stride(0),
                grad.stride(0),
                size,
                ALPHA=constant,
                **options,
            )
    return result


def alpha_relu_gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian ``diag(p ** (2 - alpha))`` on the support.

    Args:
        p: the result of alpha-ReLU.
        grad: in the shape of ``p``.
    """
    p, grad = p.contiguous(), grad.contiguous()
    result = torch.empty_like(p)
    if p.numel() > 0:
        with torch.cuda.device_of(p):
            rates, constant = alpha_arguments(alpha, p)
            _alpha_relu_kernel[elementwise_grid(p)](
                p, grad, result, rates, p.numel(), ALPHA=constant, **elementwise_options(p)
            )
    return result


@triton.jit
def _entmax_kernel(
    p,
    grad,
    result,
    rates,  # alpha - 1, read if ALPHA is 0
    p_stride,
    grad_stride,
    size,
    ALPHA: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p += row * p_stride
    grad += row * grad_stride
    result += row * size
    power = 1 - rate_of(rates, ALPHA, DTYPE)
    total = tl.zeros([BLOCK], DTYPE)
    product = tl.zeros([BLOCK], DTYPE)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        s, incoming = _load(p, grad, power, start, size, ALPHA, BLOCK, DTYPE)
        total += s
        product += s * incoming
    total_of_row = tl.sum(total, 0)
    mean = divide(tl.sum(product, 0), tl.where(total_of_row == 0, 1.0, total_of_row))
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        s, incoming = _load(p, grad, power, start, size, ALPHA, BLOCK, DTYPE)
        outgoing = (s * (incoming - mean)).to(result.dtype.element_ty)
        tl.store(result + column, outgoing, mask=column < size)


@triton.jit
def _load(
    p, grad, power, start, size, ALPHA: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):
    """Load s and the incoming gradient, both 0 off the support."""
    column = start + tl.arange(0, BLOCK)
    weight = tl.load(p + column, mask=column < size, other=0.0).to(DTYPE)
    incoming = tl.load(grad + column, mask=column < size, other=0.0).to(DTYPE)
    return _slope(weight, power, ALPHA), tl.where(weight > 0, incoming, 0.0)


@triton.jit
def _alpha_relu_kernel(
    p, grad, result, rates, count, ALPHA: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(p + place, mask=place < count, other=0.0).to(DTYPE)
    incoming = tl.load(grad + place, mask=place < count, other=0.0).to(DTYPE)
    power = 1 - rate_of(rates, ALPHA, DTYPE)
    # Not 0 * incoming, which may be infinite.
    product = tl.where(weight == 0, 0.0, _slope(weight, power, ALPHA) * incoming)
    tl.store(result + place, product.to(result.dtype.element_ty), mask=place < count)


@triton.jit
def _slope(p, power, ALPHA: tl.constexpr):
    """Return ``p ** (2 - alpha)``, 0 where p is 0."""
    if ALPHA == 1.5:
        s = root(p)
    elif ALPHA == 2:
        s = tl.where(p > 0, 1.0, p)
    else:
        s = positive_power(p, power)
    return s
