"""Attention with sparse weights by the compiled kernels: see ``attention.c``, and
``attention_step.c`` for steps of generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.cpu.boundary import Structure, call, empty, int64s, struct
from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.layout import empty_time_first
from fairseq_sparse.ops.masks import causal_mask, convert_bias

if TYPE_CHECKING:
    from fairseq_sparse.ops.attention_weights import AttentionOptions

RECTIFIED = 0.0


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> tuple[Tensor, Optional[Tensor]]:
    """Return the weighted sums and weights of :func:`fairseq_sparse.ops.attention.attend`. With one
    query per head there are no gradients; with more the weights are None."""
    weights, _, masked, bias, causal, dropout, need_weights, scale, _ = options
    alpha = RECTIFIED if weights.name == "relu" else weights.alpha
    if query.size(2) == 1:
        return attend_step(query, key, value, alpha, scale, masked, need_weights)
    if causal and bias is None:
        bias = causal_mask(query.size(2), key.size(2), query)
    return sparse_attention(query, key, value, alpha, scale, masked, bias, dropout), None


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float,
    scale: float = 1.0,
    masked: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the weighted sums of :func:`fairseq_sparse.ops.attention.attend`; differentiable once.

    Args:
        query: ``[batch, heads, queries, head_dim]``, fp32, as are ``key`` and ``value``.
        alpha: the alpha of entmax, in [1.05, 2], or ``RECTIFIED``.
        scale: the factor of the scores.
        masked: ``[batch, keys]``, true for keys that no query may attend to.
        bias: ``[queries, keys]``, added to the scores; -1e4 or less masks a key.
        dropout: probability of dropping a weight, below 1. Its seed is drawn from PyTorch's
            generator.
    """
    return _SparseAttention.apply(query, key, value, alpha, scale, masked, bias, dropout)


class _SparseAttention(Function):
    @staticmethod
    def forward(ctx, query, key, value, alpha, scale, masked, bias, dropout):
        query, key, value = map(_with_contiguous_rows, (query, key, value))
        if masked is not None:
            masked = masked.contiguous().view(torch.uint8)
        if bias is not None:
            if bias.dtype != torch.float32:
                bias = convert_bias(bias, torch.float32)
            bias = bias.contiguous()
        batch, heads, queries, _ = query.shape
        seed = int(torch.randint(1 << 62, (), device="cpu")) if dropout > 0 else 0
        splits = -(-torch.get_num_threads() // max(1, batch * heads))
        sizes = (*query.shape[:3], key.size(2), query.size(3))
        ctx.options = struct("attention_options")(*sizes, splits, seed, alpha, scale, dropout)
        solution = None
        if alpha != RECTIFIED:
            solution = empty(4, batch, heads, queries, dtype=torch.float64)
        result = empty_time_first(query.shape, query)
        tensors = {"query": query, "key": key, "value": value, "result": result}
        arguments = (*tensors.values(), masked, bias, solution)
        _call("attend_forward", ctx.options, tensors, arguments)
        # The masks are saved like the inputs, so that PyTorch raises an error if one was changed.
        ctx.save_for_backward(query, key, value, masked, bias, solution)
        return result

    @staticmethod
    @first_order
    def backward(ctx, grad):
        query, key, value, masked, bias, solution = ctx.saved_tensors
        grad = _with_contiguous_rows(grad.resolve_neg())
        grad_query = empty_time_first(query.shape, query)
        # Contiguous heads, since they are added up; one partial sum for each split.
        grad_key, grad_value = (x.new_zeros(ctx.options.splits, *x.shape) for x in (key, value))
        tensors = {"query": query, "key": key, "value": value, "result": grad}
        tensors["grad_query"] = grad_query
        arguments = (*tensors.values(), grad_key, grad_value, masked, bias, solution)
        tensors |= {"grad_key": grad_key[0], "grad_value": grad_value[0]}
        _call("attend_backward", ctx.options, tensors, arguments)
        grad_key, grad_value = (x[0] if len(x) == 1 else x.sum(0) for x in (grad_key, grad_value))
        return grad_query, grad_key, grad_value, *[None] * 5


def _call(name: str, options: Structure, tensors: dict[str, Tensor], arguments: tuple) -> None:
    """Call a kernel for tensors ``[batch, heads, time, width]``, with memory to work in.

    Args:
        tensors: the tensors whose strides the kernel needs, by the names of the strides.
    """
    strides = struct("attention_strides")(**{n: x.stride()[:3] for n, x in tensors.items()})
    floats = int64s(0)
    call("attention_workspace", 0, options, name == "attend_backward", floats)
    memory = empty(torch.get_num_threads(), floats[0])
    work = options.batch * options.heads * options.queries * options.keys
    call(name, work, options, strides, *arguments, floats[0], memory)


def attend_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float,
    scale: float = 1.0,
    masked: Optional[Tensor] = None,
    need_weights: bool = False,
) -> tuple[Tensor, Optional[Tensor]]:
    """Return the weighted sums and weights of :func:`fairseq_sparse.ops.attention.attend` for one
    query per head, as in a step of generation. There are no gradients.

    Args:
        query: ``[batch, heads, 1, head_dim]``.
        others: as in :func:`sparse_attention`.
    """
    batch, heads, keys, width = key.shape
    query, key, value = query.contiguous(), _with_contiguous_rows(key), _with_contiguous_rows(value)
    if masked is not None:
        masked = masked.contiguous().view(torch.uint8)
    result = torch.empty_like(query)
    weights = query.new_empty(batch, heads, 1, keys) if need_weights else None
    strides = key.stride()[:3], value.stride()[:3]
    sizes = struct("step_sizes")(batch, heads, keys, width, *strides)
    arguments = (query, key, value, masked, alpha, scale, result, weights)
    call("attend_step", key.numel() // 8, sizes, *arguments)  # eight are multiplied at once
    return result, weights


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
