"""Attention with sparse weights by the compiled kernels: see ``attention.c``, and
``attention_step.c`` for steps of generation."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.boundary import call, empty, int64s
from fairseq_sparse.ops.cpu.rows import in_range
from fairseq_sparse.ops.cpu.signatures import attention_options, attention_strides, step_sizes
from fairseq_sparse.ops.masks import causal_mask, convert_bias
from fairseq_sparse.ops.operators import kernel
from fairseq_sparse.ops.reference.attention import RECTIFIED

# Scores per head, below which PyTorch's products are as fast.
_LEAST_SCORES = 64 * 64
# Scores of all heads, below which that is so for rectified weights: all of them fit into the cache.
_LEAST_RECTIFIED = 1 << 20
# The width of a head must be a multiple of this.
_WIDTHS = 16
# Kernels compiled for vectors of fewer floats are slower than PyTorch's products, which choose the
# vectors of the processor at run time.
_LEAST_LANES = 8


def _fits_attention(query, key, value, masked, bias, seed, alpha, scale, causal, dropout) -> bool:
    """Return whether the kernels can compute an attention, and faster than PyTorch."""
    (batch, heads, queries, _), keys = query.shape, key.size(2)
    return (
        queries * keys >= _LEAST_SCORES
        and (alpha != RECTIFIED or batch * heads * queries * keys >= _LEAST_RECTIFIED)
        and dropout < 1
        and (bias is None or bias.shape == (queries, keys))
        and _fits_heads(query, key, value, alpha)
    )


def _fits_attention_step(query, key, value, masked, alpha, scale, need_weights) -> bool:
    """Return whether the kernel can compute a step of generation, and faster than PyTorch."""
    return query.size(2) == 1 and _fits_heads(query, key, value, alpha)


def _fits_heads(query: Tensor, key: Tensor, value: Tensor, alpha: float) -> bool:
    return (
        (alpha == RECTIFIED or in_range(alpha))
        and query.dtype == key.dtype == value.dtype == torch.float32
        and value.shape == key.shape
        and query.numel() > 0
        and key.numel() > 0
        and query.size(3) % _WIDTHS == 0
        and _has_wide_vectors()
    )


def _has_wide_vectors() -> bool:
    """Return whether there are kernels, for vectors that make them fast."""
    library = build.library()
    return library is not None and library.attention_lanes() >= _LEAST_LANES


# What torch.compiler.assume_constant_result sets; it imports the compiler, which takes seconds.
_has_wide_vectors._dynamo_marked_constant = True


@kernel("cpu", "attention", _fits_attention)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    alpha: float,
    scale: float,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums ``[queries, batch, heads, head_dim]`` and the solutions of entmax,
    see ``reference/attention.py``."""
    query, key, value = map(_with_contiguous_rows, (query, key, value))
    batch, heads, queries, width = query.shape
    options = _options(query, key, seed, alpha, scale, dropout)
    rows = (0,) if alpha == RECTIFIED else (4, batch, heads, queries)
    solution = empty(*rows, dtype=torch.float64)
    context = empty(queries, batch, heads, width)
    result = context.permute(1, 2, 0, 3)
    tensors = {"query": query, "key": key, "value": value, "result": result}
    masks = _masks(query, key, masked, bias, causal)
    _call("attend_forward", options, tensors, (*tensors.values(), *masks, _or_none(solution)))
    return context, solution


def _fits_attention_backward(
    grad, query, key, value, masked, bias, seed, solution, *options
) -> bool:
    """Return whether the kernels apply, which they do not to rows solved by the reference."""
    is_known = not solution.flatten()[:1].isnan().any()
    return is_known and _fits_attention(query, key, value, masked, bias, seed, *options)


@kernel("cpu", "attention_backward", _fits_attention_backward)
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    solution: Tensor,
    alpha: float,
    scale: float,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, see ``reference/attention.py``."""
    query, key, value, grad = map(_with_contiguous_rows, (query, key, value, grad))
    batch, heads, queries, width = query.shape
    options = _options(query, key, seed, alpha, scale, dropout)
    grad_query = empty(queries, batch, heads, width)
    # Contiguous heads, since they are added up; one partial sum for each split.
    grad_key, grad_value = (x.new_zeros(options.splits, *x.shape) for x in (key, value))
    tensors = {"query": query, "key": key, "value": value, "result": grad.permute(1, 2, 0, 3)}
    tensors["grad_query"] = grad_query.permute(1, 2, 0, 3)
    masks = _masks(query, key, masked, bias, causal)
    arguments = (*tensors.values(), grad_key, grad_value, *masks, _or_none(solution))
    tensors |= {"grad_key": grad_key[0], "grad_value": grad_value[0]}
    _call("attend_backward", options, tensors, arguments)
    grad_key, grad_value = (x[0] if len(x) == 1 else x.sum(0) for x in (grad_key, grad_value))
    return grad_query, grad_key, grad_value


def _options(
    query: Tensor, key: Tensor, seed: Optional[Tensor], alpha: float, scale: float, dropout: float
) -> attention_options:
    batch, heads, queries, width = query.shape
    splits = -(-torch.get_num_threads() // (batch * heads))
    number = 0 if seed is None else int(seed)
    sizes = (batch, heads, queries, key.size(2), width, splits)
    return attention_options(*sizes, number, alpha, scale, dropout)


def _masks(
    query: Tensor, key: Tensor, masked: Optional[Tensor], bias: Optional[Tensor], causal: bool
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Return the masks as the kernels take them."""
    if masked is not None:
        masked = masked.contiguous().view(torch.uint8)
    if bias is None and causal:
        bias = causal_mask(query.size(2), key.size(2), query)
    elif bias is not None and bias.dtype != torch.float32:
        bias = convert_bias(bias, torch.float32)
    return masked, None if bias is None else bias.contiguous()


def _or_none(solution: Tensor) -> Optional[Tensor]:
    return solution if solution.dim() > 1 else None


def _call(
    name: str, options: attention_options, tensors: dict[str, Tensor], arguments: tuple
) -> None:
    """Call a kernel for tensors ``[batch, heads, time, width]``, with memory to work in.

    Args:
        tensors: the tensors whose strides the kernel needs, by the names of the strides.
    """
    strides = attention_strides(**{n: x.stride()[:3] for n, x in tensors.items()})
    floats = int64s(0)
    call("attention_workspace", 0, options, name == "attend_backward", floats)
    memory = empty(torch.get_num_threads(), floats[0])
    work = options.batch * options.heads * options.queries * options.keys
    call(name, work, options, strides, *arguments, floats[0], memory)


@kernel("cpu", "attention_step", _fits_attention_step)
def attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Optional[Tensor],
    alpha: float,
    scale: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of one query per head, and the weights, or an empty tensor."""
    batch, heads, keys, width = key.shape
    query, key, value = query.contiguous(), _with_contiguous_rows(key), _with_contiguous_rows(value)
    result = torch.empty_like(query)
    weights = query.new_empty((batch, heads, 1, keys) if need_weights else 0)
    if masked is not None:
        masked = masked.contiguous().view(torch.uint8)
    sizes = step_sizes(batch, heads, keys, width, key.stride()[:3], value.stride()[:3])
    arguments = (query, key, value, masked, alpha, scale, result)
    # Eight numbers are multiplied at once.
    call("attend_step", key.numel() // 8, sizes, *arguments, weights if need_weights else None)
    return result, weights


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
