"""Attention in plain PyTorch: with any weights, and the operators that kernels compute."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_sparse.ops.attention_weights import AttentionWeights, entmax, relu
from fairseq_sparse.ops.dropout import dropout as drop
from fairseq_sparse.ops.masks import add_masks, causal_mask
from fairseq_sparse.ops.operators import differentiable, once_differentiable, operator
from fairseq_sparse.ops.precision import without_autocast
from fairseq_sparse.ops.reference.dropout import keep_factors
from fairseq_sparse.ops.reference.rows import entmax_backward
from fairseq_sparse.ops.reference.thresholds import Alpha

# The alpha that stands for rectified weights.
RECTIFIED = 0.0
# Number of scores that are in memory at once.
_CHUNK_SCORES = {"cpu": 1 << 20, "other": 1 << 24}
# Minimum number of queries per chunk: smaller products are slow.
_CHUNK_QUERIES = 32


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: AttentionWeights,
    alpha: Optional[Alpha],
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums and weights of :func:`fairseq_sparse.ops.attention.attend`."""
    with without_autocast(query):
        query = query if scale == 1 else query * scale
        scores = add_masks(query @ key.transpose(-2, -1), masked, bias)
        chosen = weights(scores, alpha)
        kept = drop(chosen, dropout) if dropout > 0 else chosen
        if not weights.sums_to_one and value.dtype == torch.float16:
            value = value.float()  # in half precision the sum could overflow, or its gradient
        return kept.to(value.dtype) @ value, chosen


def exceeds_chunk(query: Tensor, key: Tensor) -> bool:
    """Return whether there are more scores than should be in memory at once."""
    return query.shape[:3].numel() * key.size(2) > _chunk_scores(query)


def _chunk_scores(x: Tensor) -> int:
    return _CHUNK_SCORES["cpu" if x.is_cpu else "other"]


def attend_in_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: AttentionWeights,
    alpha: Optional[Alpha],
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    scale: float,
    dropout: float,
    causal: bool,
) -> Tensor:
    """Return the weighted sums of :func:`attend`, of one chunk of queries after another: whole
    sentences, or a part of a long one. Scores are computed again for the gradient, not kept."""
    batch, heads, queries, _ = query.shape
    rows = max(_CHUNK_QUERIES, _chunk_scores(query) // (heads * key.size(2)))
    if bias is not None:
        bias = bias if bias.dim() == 4 else bias[None, None]
        bias = bias.expand(batch, -1, queries, key.size(2))

    several = max(1, rows // queries)

    def computed_again(first: int, start: int) -> Tensor:
        sentences, some = slice(first, first + several), slice(start, start + rows)
        keys = slice(start + rows if causal else None)  # no later key is visible
        return checkpoint(
            lambda *arguments: attend(*arguments)[0],
            query[sentences, :, some],
            key[sentences, :, keys],
            value[sentences, :, keys],
            weights,
            alpha,
            None if masked is None else masked[sentences, keys],
            None if bias is None else bias[sentences, :, some, keys],
            scale,
            dropout,
            use_reentrant=False,
            preserve_rng_state=dropout > 0,
        )

    return torch.cat(
        [
            torch.cat([computed_again(first, start) for start in range(0, queries, rows)], 2)
            for first in range(0, batch, several)
        ]
    )


def weights_of(alpha: float) -> AttentionWeights:
    """Return the weights that an operator's alpha stands for."""
    return relu if alpha == RECTIFIED else entmax.with_alpha(alpha)


def _sums_like(query: Tensor, value: Tensor, alpha: float) -> Tensor:
    """Return an empty ``[queries, batch, heads, head_dim]``; fp16 cannot hold unbounded sums."""
    batch, heads, queries, _ = query.shape
    widens = alpha == RECTIFIED and value.dtype == torch.float16
    dtype = torch.float32 if widens else value.dtype
    return value.new_empty(queries, batch, heads, value.size(3), dtype=dtype)


def _fake_attention(query, key, value, masked, bias, seed, alpha, *options):
    rows = (0,) if alpha == RECTIFIED else (4, *query.shape[:3])
    return _sums_like(query, value, alpha), query.new_empty(rows, dtype=torch.float64)


@operator(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? masked, Tensor? bias, Tensor? seed,"
    " float alpha, float scale, bool causal, float dropout) -> (Tensor, Tensor)",
    _fake_attention,
)
def _attention(
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
    """Return the weighted sums of :func:`fairseq_sparse.ops.attention.attend`, and the solutions of
    entmax that a kernel's gradient needs.

    Args:
        bias: ``[queries, keys]``.
        seed: ``[]``, int64, on a CPU; decides which weights are dropped. None without dropout.
        alpha: the alpha of entmax, above 1, or ``RECTIFIED``.

    Returns:
        ``[queries, batch, heads, head_dim]``, and for entmax ``[4, batch, heads, queries]``, fp64:
        see ``reference/rows.py``. The reference does not know them: they are NaN.
    """
    context, solution = _fake_attention(query, key, value, masked, bias, seed, alpha)
    _, factors, kept = _weights(query, key, masked, bias, seed, alpha, scale, causal, dropout)
    with without_autocast(query):
        sums = kept.to(context.dtype) @ value.to(context.dtype)
    return context.copy_(sums.permute(2, 0, 1, 3)), solution.fill_(torch.nan)


def _weights(
    query: Tensor,
    key: Tensor,
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    seed: Optional[Tensor],
    alpha: float,
    scale: float,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Optional[Tensor], Tensor]:
    """Return the weights, the factors of dropout, and their product."""
    if bias is None and causal:
        bias = causal_mask(query.size(2), key.size(2), query)
    with without_autocast(query):
        scores = add_masks((query * scale) @ key.transpose(-2, -1), masked, bias)
        chosen = weights_of(alpha)(scores)
    if dropout == 0:
        return chosen, None, chosen
    places = torch.arange(chosen.numel(), device=chosen.device).view(chosen.shape)
    factors = keep_factors(places, dropout, seed, chosen.dtype)
    return chosen, factors, chosen * factors


def _save_attention(ctx, inputs, output):
    ctx.options = inputs[6:]
    ctx.mark_non_differentiable(output[1])
    # The masks are saved like the inputs, so that PyTorch raises an error if one was changed.
    ctx.save_for_backward(*inputs[:6], output[1])


def _attention_gradient(ctx, grad, _):
    query, key, value, *others = ctx.saved_tensors
    grad_query, *grads = attention_backward(grad, query, key, value, *others, *ctx.options)
    grads = (grad_query.permute(1, 2, 0, 3), *grads)
    return *(once_differentiable(x, grad, query, key, value) for x in grads), *[None] * 7


attention = differentiable(_attention, _save_attention, _attention_gradient)


def _fake_attention_backward(grad, query, key, value, *others):
    batch, heads, queries, width = query.shape
    empty = query.new_empty(queries, batch, heads, width)
    return empty, key.new_empty(key.shape), value.new_empty(value.shape)


@operator(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? masked,"
    " Tensor? bias, Tensor? seed, Tensor solution, float alpha, float scale, bool causal,"
    " float dropout) -> (Tensor, Tensor, Tensor)",
    _fake_attention_backward,
)
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
    """Return the gradients of ``query``, as ``[queries, batch, heads, head_dim]``, ``key`` and
    ``value``. Scores are computed again."""
    chosen, factors, kept = _weights(query, key, masked, bias, seed, alpha, scale, causal, dropout)
    grad = grad.permute(1, 2, 0, 3)
    with without_autocast(query):
        grad_value = kept.to(grad.dtype).transpose(-2, -1) @ grad
        grad_chosen = (grad @ value.to(grad.dtype).transpose(-2, -1)).to(chosen.dtype)
        if factors is not None:
            grad_chosen = grad_chosen * factors
        if alpha == RECTIFIED:
            grad_scores = grad_chosen.masked_fill(chosen == 0, 0.0)
        else:
            rows = (x.flatten(0, 2) for x in (chosen, grad_chosen))
            grad_scores = entmax_backward(*rows, alpha).view(chosen.shape)
        grad_scores = (grad_scores * scale).to(query.dtype)
        grad_query = grad_scores @ key
        grad_key = grad_scores.transpose(-2, -1) @ query
    grad_query = grad_query.permute(2, 0, 1, 3).contiguous()
    return grad_query, grad_key.contiguous(), grad_value.to(value.dtype).contiguous()


def _fake_attention_step(query, key, value, masked, alpha, scale, need_weights):
    shape = (*query.shape[:3], key.size(2)) if need_weights else (0,)
    return query.new_empty(query.shape), query.new_empty(shape)


@operator(
    "attention_step(Tensor query, Tensor key, Tensor value, Tensor? masked, float alpha,"
    " float scale, bool need_weights) -> (Tensor, Tensor)",
    _fake_attention_step,
)
def attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Optional[Tensor],
    alpha: float,
    scale: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of one query per head, as in a step of generation, and the weights,
    or an empty tensor. For fp32 and fp64."""
    options = (weights_of(alpha), None, masked, None, scale, 0.0)
    sums, chosen = attend(query, key, value, *options)
    return sums.contiguous(), chosen.contiguous() if need_weights else chosen.new_empty(0)
