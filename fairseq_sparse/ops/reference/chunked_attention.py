"""Attention over chunks of queries: its memory does not grow with the length squared.

The scores of a chunk are computed again for the gradient. There is no second derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.layout import empty_time_first
from fairseq_sparse.ops.masks import MASKED, apply_masks
from fairseq_sparse.ops.precision import at_least_fp32, without_autocast

if TYPE_CHECKING:
    from fairseq_sparse.ops.attention_weights import AttentionWeights

# Chunk size in scores: on a CPU, those of each core should fit into its cache; other devices should
# be fully used.
_CHUNK_SCORES = {"cpu": 1 << 19, "other": 1 << 26}
# Below this many scores, keep them for backward instead of recomputing.
_KEPT_SCORES = {"cpu": 1 << 18, "other": 1 << 24}
# Minimum number of queries per chunk: smaller products are slow.
_CHUNK_QUERIES = 32


def needs_chunks(query: Tensor, key: Tensor) -> bool:
    """Return whether the scores should not all be in memory at once."""
    scores = query.shape[:3].numel() * key.size(2)
    return scores > min(_KEPT_SCORES[_device(query)], _chunk_size(query).scores)


class ChunkedAttention(Function):
    """The weighted sums of :func:`fairseq_sparse.ops.reference.attention.attend`."""

    @staticmethod
    def forward(ctx, query, key, value, alpha, weights, masked, bias, dropout, widen):
        ctx.save_for_backward(query, key, value, alpha, masked, bias)
        ctx.weights, ctx.dropout, ctx.widen = weights, dropout, widen
        # Kept: if the number of threads changes, other chunks would draw another dropout.
        ctx.size = _chunk_size(query)
        ctx.random_state = _random_state(query) if dropout > 0 else None
        if widen:
            value = value.float()  # in half precision the sum could overflow
        result = empty_time_first((*query.shape[:3], value.size(3)), query, value.dtype)
        memory = _Memory(query)
        for chunk in _chunks(query, key, masked, bias, ctx.size):
            scores = memory.product(query[chunk.queries], key[chunk.keys].transpose(-2, -1))
            scores = apply_masks(scores, chunk.masked, chunk.bias)
            kept = weights(scores, None if alpha is None else alpha[chunk.heads])
            kept = F.dropout(kept, dropout) if dropout > 0 else kept
            result[chunk.queries] = kept.to(value.dtype) @ value[chunk.keys]
        return result

    @staticmethod
    @first_order
    def backward(ctx, grad):
        with without_autocast(grad):
            return *_gradients_in_chunks(ctx, grad), *[None] * 5


def _gradients_in_chunks(ctx, grad: Tensor) -> tuple[Optional[Tensor], ...]:
    query, key, value, alpha, masked, bias = ctx.saved_tensors
    dtype = value.dtype
    if ctx.widen:
        value = value.float()
    grad_query = torch.zeros_like(query)
    # Sums over the chunks.
    grad_key, grad_value = (
        x.new_zeros(x.shape, dtype=at_least_fp32(x[:0]).dtype) for x in (key, value)
    )
    grad_alpha = None if alpha is None else torch.zeros_like(alpha)
    of_scores, of_grad = _Memory(query), _Memory(value)
    with _random_replay(query, ctx.random_state):
        for chunk in _chunks(query, key, masked, bias, ctx.size):
            queries, keys = query[chunk.queries], key[chunk.keys]
            scores = of_scores.product(queries, keys.transpose(-2, -1))
            scores = apply_masks(scores, chunk.masked, chunk.bias)
            grad_chunk = grad[chunk.queries]
            grad_kept = of_grad.product(grad_chunk, value[chunk.keys].transpose(-2, -1))
            kept, grad_scores, *grad_alphas = _through_weights(
                scores,
                grad_kept,
                ctx.weights,
                None if alpha is None else alpha[chunk.heads],
                ctx.dropout,
            )
            if alpha is not None:
                grad_alpha[chunk.heads] += grad_alphas[0]
            _add_product(grad_value[chunk.keys], kept.to(value.dtype).transpose(-2, -1), grad_chunk)
            grad_query[chunk.queries] = grad_scores @ keys
            _add_product(grad_key[chunk.keys], grad_scores.transpose(-2, -1), queries)
    return grad_query, grad_key.to(key.dtype), grad_value.to(dtype), grad_alpha


def _through_weights(
    scores: Tensor, grad: Tensor, weights: AttentionWeights, alpha: Optional[Tensor], dropout: float
) -> tuple[Tensor, ...]:
    """Return the weights after dropout, and the gradients of the scores and of a given alpha."""
    inputs = [x.detach().requires_grad_() for x in (scores, alpha) if x is not None]
    with torch.enable_grad():
        kept = weights(*inputs)
        if dropout > 0:
            kept = F.dropout(kept, dropout)
    return kept.detach(), *torch.autograd.grad(kept, inputs, grad)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` to ``total``, a part of a contiguous tensor."""
    if a.dtype == b.dtype == total.dtype:
        total.view(-1, *total.shape[2:]).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))
    else:
        total += a @ b


class _Memory:
    """Memory that all chunks use in turn, so that it stays in the cache."""

    def __init__(self, like: Tensor):
        self.memory = like.new_empty(0)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a @ b`` for ``[batch, heads, queries, n]`` and ``[batch, heads, n, keys]``."""
        shape = torch.Size((*a.shape[:3], b.size(3)))
        if self.memory.numel() < shape.numel():
            self.memory = self.memory.new_empty(shape.numel())
        result = self.memory[: shape.numel()].view(-1, *shape[2:])
        return torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=result).view(shape)


class _Chunk(NamedTuple):
    queries: tuple[slice, ...]  # where its queries lie in [batch, heads, queries, head_dim]
    keys: tuple[slice, ...]  # where its keys lie in [batch, heads, keys, head_dim]
    heads: slice
    masked: Optional[Tensor]
    bias: Optional[Tensor]


class _Size(NamedTuple):
    scores: int  # the number of scores in a chunk
    scores_of_part: int  # in the part that one core computes; a quarter on other devices


def _device(x: Tensor) -> str:
    return "cpu" if x.device.type == "cpu" else "other"


def _chunk_size(query: Tensor) -> _Size:
    size = _CHUNK_SCORES[_device(query)]
    if _device(query) == "cpu":
        return _Size(size * torch.get_num_threads(), size)
    return _Size(size, size // 4)


def _chunks(
    query: Tensor, key: Tensor, masked: Optional[Tensor], bias: Optional[Tensor], size: _Size
) -> Iterator[_Chunk]:
    """Split the queries into chunks: whole sentences or, for a long sentence, some of its queries
    and heads."""
    batch, heads, length, _ = query.shape
    keys = key.size(2)
    queries_each = length
    if heads * length * keys > size.scores:
        queries_each = min(length, max(_CHUNK_QUERIES, size.scores_of_part // keys))
    for sentences in _slices(batch, heads * length * keys, size):
        for start in range(0, length, queries_each):
            queries = slice(start, start + queries_each)
            for some_heads in _slices(heads, queries_each * keys, size):
                chunk_bias = bias
                for dim, part in enumerate((sentences, some_heads, queries)):
                    if bias is not None and bias.size(dim) > 1:
                        chunk_bias = chunk_bias[(slice(None),) * dim + (part,)]
                visible = slice(_last_visible_key(chunk_bias, keys))
                yield _Chunk(
                    (sentences, some_heads, queries),
                    (sentences, some_heads, visible),
                    some_heads,
                    None if masked is None else masked[sentences, visible],
                    chunk_bias if visible.stop == keys else chunk_bias[..., visible],
                )


def _slices(count: int, scores_each: int, size: _Size) -> list[slice]:
    """Split ``count`` items of ``scores_each`` scores into chunks."""
    step = max(1, size.scores // max(1, scores_each))
    return [slice(start, start + step) for start in range(0, count, step)]


def _last_visible_key(bias: Optional[Tensor], keys: int) -> int:
    """Return the number of keys up to the last that any query sees, at least 1."""
    # On other devices, reading the mask would be a synchronisation.
    if bias is None or bias.device.type != "cpu" or bias.size(-1) != keys:
        return keys
    visible = (bias > MASKED).flatten(0, -2).any(0)
    return int(visible.nonzero().max()) + 1 if visible.any() else 1


def _random_state(x: Tensor) -> Tensor:
    """Return the state of the generator that dropout on the device of ``x`` draws from."""
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()


@contextmanager
def _random_replay(x: Tensor, state: Optional[Tensor]) -> Iterator[None]:
    """Repeat the random numbers drawn from ``state`` on, then restore the generators."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        if x.is_cuda:
            torch.cuda.set_rng_state(state, x.device)
        else:
            torch.set_rng_state(state)
        yield
