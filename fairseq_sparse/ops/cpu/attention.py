"""Attention with sparse weights by the compiled kernels: see ``attention.c``, and
``attention_step.c`` for steps of generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.cpu.boundary import call, empty, int64s
from fairseq_sparse.ops.masks import causal_mask

if TYPE_CHECKING:
    from fairseq_sparse.ops.attention_weights import AttentionOptions

RECTIFIED = 0.0


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> tuple[Tensor, Optional[Tensor]]:
    """Return the weighted sums and weights of :func:`fairseq_sparse.ops.attention.attend`: without
    gradients for one query a head, and without the weights for more."""
    weights, _, hidden, bias, causal, dropout, need_weights, scale, _ = options
    alpha = RECTIFIED if weights.name == "relu" else weights.alpha
    if query.size(2) == 1:
        return attend_step(query, key, value, alpha, scale, hidden, need_weights)
    if causal and bias is None:
        bias = causal_mask(query.size(2), key.size(2), query)
    return sparse_attention(query, key, value, alpha, scale, hidden, bias, dropout), None


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float,
    scale: float = 1.0,
    hidden: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tensor:
    """Weighted sums as of :func:`fairseq_sparse.ops.attention.attend`; no second derivative.

    Args:
        query: ``[batch, heads, queries, head_dim]``, fp32, as are ``key`` and ``value``.
        alpha: of entmax, in [1.05, 2], or ``RECTIFIED``.
        scale: of the scores.
        hidden: ``[batch, keys]``, true for keys that no query may attend to.
        bias: ``[queries, keys]``, added to the scores; -1e4 or less hides a key.
        dropout: probability of dropping a weight, below 1. Which ones, a number says that is drawn
            from PyTorch's generator.
    """
    return _SparseAttention.apply(query, key, value, alpha, scale, hidden, bias, dropout)


class _Options(NamedTuple):
    """Numbers that an attention depends on besides its tensors."""

    alpha: float
    scale: float
    dropout: float
    seed: int
    splits: int  # of the queries of a head, so that all threads have work


class _SparseAttention(Function):
    @staticmethod
    def forward(ctx, query, key, value, alpha, scale, hidden, bias, dropout):
        query, key, value = map(_with_contiguous_rows, (query, key, value))
        if hidden is not None:
            hidden = hidden.contiguous().view(torch.uint8)
        if bias is not None:
            bias = bias.float().contiguous()
        batch, heads, queries, _ = query.shape
        seed = int(torch.randint(1 << 62, (), device="cpu")) if dropout > 0 else 0
        splits = -(-torch.get_num_threads() // max(1, batch * heads))
        ctx.options = _Options(alpha, scale, dropout, seed, splits)
        solution = None
        if alpha != RECTIFIED:
            solution = empty(4, batch, heads, queries, dtype=torch.float64)
        result = _with_time_first(query)
        tensors = query, key, value, result
        _call("attend_forward", tensors, tensors, (hidden, bias), ctx.options, solution)
        # The masks are saved as the inputs are: PyTorch refuses to go on if one was changed since.
        ctx.save_for_backward(query, key, value, hidden, bias, solution)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        query, key, value, hidden, bias, solution = ctx.saved_tensors
        grad = _with_contiguous_rows(grad)
        grad_query = _with_time_first(query)
        # One head after another, as they are added up; for each split a part of the sum.
        grad_key, grad_value = (x.new_zeros(ctx.options.splits, *x.shape) for x in (key, value))
        tensors = query, key, value, grad, grad_query
        strided = *tensors, grad_key[0], grad_value[0]
        arguments = (*tensors, grad_key, grad_value), (hidden, bias), ctx.options, solution
        _call("attend_backward", strided, *arguments)
        grad_key, grad_value = (x[0] if len(x) == 1 else x.sum(0) for x in (grad_key, grad_value))
        return grad_query, grad_key, grad_value, *[None] * 5


def _call(name, strided, tensors, masks, options: _Options, solution: Optional[Tensor]) -> None:
    """Call a kernel for tensors ``[batch, heads, time, width]``, with memory to work in.

    Args:
        strided: the tensors whose strides the kernel is told.
    """
    query, key = tensors[:2]
    sizes = int64s(*query.shape[:3], key.size(2), query.size(3))
    floats = int64s(0)
    call("attention_workspace", 0, sizes, name == "attend_backward", floats)
    memory = empty(torch.get_num_threads(), floats[0])
    steps = int64s(*(step for x in strided for step in x.stride()[:3]))
    work = query.shape[:3].numel() * key.size(2)
    call(name, work, sizes, *tensors, steps, *masks, *options, solution, floats[0], memory)


def attend_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float,
    scale: float = 1.0,
    hidden: Optional[Tensor] = None,
    need_weights: bool = False,
) -> tuple[Tensor, Optional[Tensor]]:
    """Weighted sums and weights as of :func:`fairseq_sparse.ops.attention.attend`, of one query a
    head: a step of generation. Without gradients.

    Args:
        query: ``[batch, heads, 1, head_dim]``.
        others: those of :func:`sparse_attention`.
    """
    batch, heads, keys, width = key.shape
    query, key, value = query.contiguous(), _with_contiguous_rows(key), _with_contiguous_rows(value)
    if hidden is not None:
        hidden = hidden.contiguous().view(torch.uint8)
    result = torch.empty_like(query)
    weights = query.new_empty(batch, heads, 1, keys) if need_weights else None
    sizes = int64s(batch, heads, keys, width)
    steps = int64s(*key.stride()[:3], *value.stride()[:3])
    arguments = (query, key, value, steps, hidden, alpha, scale, result, weights)
    call("attend_step", key.numel() // 8, sizes, *arguments)  # eight are multiplied at once
    return result, weights


def _with_time_first(like: Tensor) -> Tensor:
    """A new tensor ``[batch, heads, time, width]`` in which a step in time is contiguous, as it is
    in the projections of a module."""
    batch, heads, time, width = like.shape
    return like.new_empty(time, batch, heads, width).permute(1, 2, 0, 3)


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
