"""Attention over a few queries at a time: its memory does not grow with the length squared.

The scores of a part are computed again for the gradient. There is no second derivative.
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
from fairseq_sparse.ops.masks import MASKED, apply_masks
from fairseq_sparse.ops.precision import at_least_fp32, without_autocast

if TYPE_CHECKING:
    from fairseq_sparse.ops.attention_weights import AttentionWeights

# Scores in a part: on a CPU, those of each core should fit into its cache; another device should be
# fully used.
_PART_SCORES = {"cpu": 1 << 19}
_PART_SCORES_ELSEWHERE = 1 << 26
# Below this many scores, keep them for backward instead of recomputing.
_KEPT_SCORES = {"cpu": 1 << 18}
_KEPT_SCORES_ELSEWHERE = 1 << 24
# Least number of queries in a part, so that its products stay efficient.
_PART_QUERIES = 32


def are_too_many(query: Tensor, key: Tensor) -> bool:
    """Return whether the scores should not all be in memory at once."""
    kept = _KEPT_SCORES.get(query.device.type, _KEPT_SCORES_ELSEWHERE)
    scores = query.shape[:3].numel() * key.size(2)
    return scores > min(kept, _part_scores(query))


class AttendInParts(Function):
    """The weighted sums of :func:`fairseq_sparse.ops.reference.attention.attend`."""

    @staticmethod
    def forward(ctx, query, key, value, alpha, weights, masked, bias, dropout, widen):
        ctx.save_for_backward(query, key, value, alpha, masked, bias)
        ctx.weights, ctx.dropout, ctx.widen = weights, dropout, widen
        ctx.random_state = _random_state(query) if dropout > 0 else None
        if widen:
            value = value.float()  # in half precision the sum could overflow
        result = query.new_empty(
            (query.size(2), query.size(0), query.size(1), value.size(3)), dtype=value.dtype
        ).permute(1, 2, 0, 3)
        if weights.name == "relu" and bias is None:
            key, masked = _zero_where_masked(key, masked), None
        memory = _Memory(query)
        for part in _parts(query, key, masked, bias):
            scores = memory.product(query[part.queries], key[part.keys].transpose(-2, -1))
            scores = apply_masks(scores, part.masked, part.bias)
            if weights.name == "relu":
                kept = _rectify(scores, dropout)
            else:
                kept = weights(scores, None if alpha is None else alpha[part.heads])
                kept = F.dropout(kept, dropout) if dropout > 0 else kept
            result[part.queries] = kept.to(value.dtype) @ value[part.keys]
        return result

    @staticmethod
    @first_order
    def backward(ctx, grad):
        with without_autocast(grad):
            return *_gradients_in_parts(ctx, grad), *[None] * 5


def _gradients_in_parts(ctx, grad: Tensor) -> tuple[Optional[Tensor], ...]:
    query, key, value, alpha, masked, bias = ctx.saved_tensors
    dtype = value.dtype
    if ctx.widen:
        value = value.float()
    if ctx.weights.name == "relu" and bias is None:
        key, masked = _zero_where_masked(key, masked), None
    grad_query = torch.zeros_like(query)
    # Sums over the parts.
    grad_key, grad_value = (
        x.new_zeros(x.shape, dtype=at_least_fp32(x[:0]).dtype) for x in (key, value)
    )
    grad_alpha = None if alpha is None else torch.zeros_like(alpha)
    of_scores, of_grad = _Memory(query), _Memory(value)
    with _random_replay(query, ctx.random_state):
        for part in _parts(query, key, masked, bias):
            part_query, part_key, part_grad = (
                query[part.queries],
                key[part.keys],
                grad[part.queries],
            )
            scores = apply_masks(
                of_scores.product(part_query, part_key.transpose(-2, -1)), part.masked, part.bias
            )
            grad_kept = of_grad.product(part_grad, value[part.keys].transpose(-2, -1))
            if ctx.weights.name == "relu":
                kept = _rectify(scores, ctx.dropout)
                grad_scores = _through_rectify(kept, grad_kept, ctx.dropout).to(query.dtype)
            else:
                part_alpha = None if alpha is None else alpha[part.heads]
                kept, grad_scores, *grad_alphas = _through_weights(
                    scores, grad_kept, ctx.weights, part_alpha, ctx.dropout
                )
                if alpha is not None:
                    grad_alpha[part.heads] += grad_alphas[0]
            _add_product(grad_value[part.keys], kept.to(value.dtype).transpose(-2, -1), part_grad)
            grad_query[part.queries] = grad_scores @ part_key
            _add_product(grad_key[part.keys], grad_scores.transpose(-2, -1), part_query)
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


def _rectify(scores: Tensor, dropout: float) -> Tensor:
    """Return the weights of ``relu`` after dropout, in the scores' memory where possible."""
    kept = at_least_fp32(scores).relu_()
    return F.dropout(kept, dropout, inplace=True) if dropout > 0 else kept


def _through_rectify(kept: Tensor, grad: Tensor, dropout: float) -> Tensor:
    """Return the gradient of the scores: a weight that is 0 has been rectified or dropped."""
    grad = grad.to(kept.dtype)
    if dropout > 0:
        grad /= 1 - dropout
    return torch.ops.aten.threshold_backward.grad_input(grad, kept, 0, grad_input=grad)


def _zero_where_masked(key: Tensor, masked: Optional[Tensor]) -> Tensor:
    """Set masked keys to 0, so that their scores and rectified weights are 0."""
    return key if masked is None else key.masked_fill(masked[:, None, :, None], 0.0)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` to ``total``, a part of a contiguous tensor."""
    if a.dtype == b.dtype == total.dtype:
        total.view(-1, *total.shape[2:]).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))
    else:
        total += a @ b


class _Memory:
    """Memory that all parts use in turn, so that it stays in the cache."""

    def __init__(self, like: Tensor):
        self.memory = like.new_empty(0)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a @ b`` for ``[batch, heads, queries, n]`` and ``[batch, heads, n, keys]``."""
        shape = torch.Size((*a.shape[:3], b.size(3)))
        if self.memory.numel() < shape.numel():
            self.memory = self.memory.new_empty(shape.numel())
        result = self.memory[: shape.numel()].view(-1, *shape[2:])
        return torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=result).view(shape)


class _Part(NamedTuple):
    queries: tuple[slice, ...]  # where its queries lie in [batch, heads, queries, head_dim]
    keys: tuple[slice, ...]  # where its keys lie in [batch, heads, keys, head_dim]
    heads: slice
    masked: Optional[Tensor]
    bias: Optional[Tensor]


def _parts(
    query: Tensor, key: Tensor, masked: Optional[Tensor], bias: Optional[Tensor]
) -> Iterator[_Part]:
    """Cut the queries into parts: some sentences or, if one is too long, some of its queries in a
    few heads, whose products run in parallel."""
    batch, heads, length, _ = query.shape
    keys = key.size(2)
    some = length
    if heads * length * keys > _part_scores(query):
        # Number of heads processed in parallel.
        beside = torch.get_num_threads() if query.device.type == "cpu" else 4
        some = min(length, max(_PART_QUERIES, _part_scores(query) // beside // keys))
    for rows in _slices(batch, heads * length * keys, query):
        for columns in (slice(start, start + some) for start in range(0, length, some)):
            for some_heads in _slices(heads, some * keys, query):
                part_bias = bias
                for dim, part in enumerate((rows, some_heads, columns)):
                    if bias is not None and bias.size(dim) > 1:
                        part_bias = part_bias[(slice(None),) * dim + (part,)]
                visible = slice(_last_visible_key(part_bias, keys))
                yield _Part(
                    (rows, some_heads, columns),
                    (rows, some_heads, visible),
                    some_heads,
                    None if masked is None else masked[rows, visible],
                    part_bias if visible.stop == keys else part_bias[..., visible],
                )


def _slices(size: int, scores_each: int, query: Tensor) -> list[slice]:
    """Cut ``size`` items of ``scores_each`` scores into parts."""
    step = max(1, _part_scores(query) // max(1, scores_each))
    return [slice(start, start + step) for start in range(0, size, step)]


def _part_scores(query: Tensor) -> int:
    if query.device.type == "cpu":
        return _PART_SCORES["cpu"] * torch.get_num_threads()
    return _PART_SCORES.get(query.device.type, _PART_SCORES_ELSEWHERE)


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
