"""Attention with any function from scores to weights, in memory that does not grow with the square
of the length.

One function, :func:`attend`, stands for everything between the projections of queries, keys and
values and the norm of the result: a kernel for a device belongs behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.precision import as_autocast, at_least_fp32, without_autocast

# An additive mask hides a key by any value from here down: fairseq writes -1e4 and -1e8 for -inf.
HIDES = -1e4

# So many scores at once: on a CPU a part should stay in cache, elsewhere it should fill the device.
_PART_SCORES = {"cpu": 1 << 20}
_PART_SCORES_ELSEWHERE = 1 << 26
# Up to so many scores are kept for the gradient rather than computed again.
_KEPT_SCORES = {"cpu": 1 << 18}
_KEPT_SCORES_ELSEWHERE = 1 << 24
# A part has at least so many queries, that its products stay efficient.
_PART_QUERIES = 32

Weights = Callable[..., Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Weights,
    alpha: Optional[Tensor] = None,
    hidden: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    dropout: float = 0.0,
    sums_to_one: bool = True,
    need_weights: bool = False,
) -> tuple[Tensor, Optional[Tensor]]:
    """``weights(query key^T + bias) value`` for each head.

    Unless the weights are asked for, long inputs are worked on in parts whose scores are computed
    again for the gradient, so that not all of them are in memory at once. Then there is no second
    derivative.

    Args:
        query: ``[batch, heads, queries, head_dim]``, scaled already.
        key: ``[batch, heads, keys, head_dim]``.
        value: ``[batch, heads, keys, head_dim]``.
        weights: from scores ``[batch, heads, queries, keys]``, -inf for hidden keys, and ``alpha``
            if it is given, to weights in fp32 or better. Each row is looked at by itself. Another
            tensor that it holds need not get a gradient.
        alpha: ``[heads, 1, 1]``, a parameter of ``weights`` that gets a gradient.
        hidden: ``[batch, keys]``, true for keys that no query may attend to.
        bias: ``[queries, keys]``, or four dimensions that broadcast over the scores; added to
            them, with ``HIDES`` or less for keys that are hidden from a query. It gets no gradient.
        dropout: probability of dropping a weight.
        sums_to_one: if not, the weights have no bound, and in fp16 the weighted sum is given in
            fp32, in which it cannot overflow.
        need_weights: whether to return the weights, as they are before dropout.

    Returns:
        The weighted sums ``[batch, heads, queries, head_dim]``, in the dtype of ``value`` (but see
        ``sums_to_one``), and the weights ``[batch, heads, queries, keys]`` or None.
    """
    if bias is not None:
        bias = bias.detach() if bias.dim() == 4 else bias.detach()[None, None]
    query, key, value = as_autocast(query, key, value)
    widen = not sums_to_one and value.dtype == torch.float16
    # Elsewhere dropout could not be drawn again.
    can_repeat = dropout == 0 or query.device.type in ("cpu", "cuda")
    scores = query.shape[:3].numel() * key.size(2)
    with without_autocast(query):
        if not need_weights and can_repeat and scores > _kept_scores(query):
            arguments = (query, key, value, alpha, weights, hidden, bias, dropout, widen)
            return _AttendInParts.apply(*arguments), None
        chosen = _weights_of(_scores(query, key, hidden, bias), weights, alpha)
        kept = F.dropout(chosen, dropout) if dropout > 0 else chosen
        if not widen:
            return kept.to(value.dtype) @ value, chosen if need_weights else None
        # A mean of the values in fp16, times the total weight in fp32.
        total = chosen.detach().abs().sum(-1, keepdim=True)
        total = total.masked_fill(total == 0, 1.0)
        result = ((kept / total).to(value.dtype) @ value).float() * total
        return result, chosen if need_weights else None


class _AttendInParts(Function):
    @staticmethod
    def forward(ctx, query, key, value, alpha, weights, hidden, bias, dropout, widen):
        ctx.save_for_backward(query, key, value, alpha, hidden, bias)
        ctx.weights, ctx.dropout, ctx.widen = weights, dropout, widen
        ctx.random_state = _random_state(query) if dropout > 0 else None
        if widen:
            value = value.float()  # in half precision the sum could overflow
        result = query.new_empty(
            (query.size(2), query.size(0), query.size(1), value.size(3)), dtype=value.dtype
        ).permute(1, 2, 0, 3)
        for part in _parts(query, key, hidden, bias):
            scores = _scores(query[part.queries], key[part.keys], part.hidden, part.bias)
            kept = _weights_of(scores, weights, None if alpha is None else alpha[part.heads])
            if dropout > 0:
                kept = F.dropout(kept, dropout)
            result[part.queries] = kept.to(value.dtype) @ value[part.keys]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        with without_autocast(grad):
            return *_gradients_in_parts(ctx, grad), *[None] * 5


def _gradients_in_parts(ctx, grad: Tensor) -> tuple[Optional[Tensor], ...]:
    query, key, value, alpha, hidden, bias = ctx.saved_tensors
    dtype = value.dtype
    if ctx.widen:
        value = value.float()
    grad_query = torch.zeros_like(query)
    # Sums over the parts.
    grad_key, grad_value = (
        torch.zeros_like(x, dtype=at_least_fp32(x[:0]).dtype) for x in (key, value)
    )
    grad_alpha = None if alpha is None else torch.zeros_like(alpha)
    with _random_replay(query, ctx.random_state):
        for part in _parts(query, key, hidden, bias):
            part_query, part_key, part_grad = (
                query[part.queries],
                key[part.keys],
                grad[part.queries],
            )
            scores = _scores(part_query, part_key, part.hidden, part.bias).requires_grad_()
            inputs = [scores]
            if alpha is not None:
                inputs.append(alpha[part.heads].detach().requires_grad_())
            with torch.enable_grad():
                kept = _weights_of(scores, ctx.weights, *inputs[1:])
                if ctx.dropout > 0:
                    kept = F.dropout(kept, ctx.dropout)
            grad_kept = part_grad @ value[part.keys].transpose(-2, -1)
            grad_value[part.keys] += kept.detach().to(value.dtype).transpose(-2, -1) @ part_grad
            grad_scores, *grad_alphas = torch.autograd.grad(kept, inputs, grad_kept)
            grad_query[part.queries] = grad_scores @ part_key
            grad_key[part.keys] += grad_scores.transpose(-2, -1) @ part_query
            if alpha is not None:
                grad_alpha[part.heads] += grad_alphas[0]
    return grad_query, grad_key.to(key.dtype), grad_value.to(dtype), grad_alpha


class _Part(NamedTuple):
    queries: tuple[slice, ...]  # where its queries lie in [batch, heads, queries, head_dim]
    keys: tuple[slice, ...]  # where its keys lie in [batch, heads, keys, head_dim]
    heads: slice
    hidden: Optional[Tensor]
    bias: Optional[Tensor]


def _parts(
    query: Tensor, key: Tensor, hidden: Optional[Tensor], bias: Optional[Tensor]
) -> Iterator[_Part]:
    """Cut the queries into parts: some sentences or, where one is too long, some of its queries in
    a few heads, whose products run beside one another."""
    batch, heads, length, _ = query.shape
    keys = key.size(2)
    some = length
    if heads * length * keys > _part_scores(query):
        some = min(length, max(_PART_QUERIES, _part_scores(query) // 4 // keys))
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
                    None if hidden is None else hidden[rows, visible],
                    part_bias if visible.stop == keys else part_bias[..., visible],
                )


def _slices(size: int, scores_each: int, query: Tensor) -> list[slice]:
    """Cut ``size`` items of ``scores_each`` scores into parts."""
    step = max(1, _part_scores(query) // max(1, scores_each))
    return [slice(start, start + step) for start in range(0, size, step)]


def _kept_scores(query: Tensor) -> int:
    kept = _KEPT_SCORES.get(query.device.type, _KEPT_SCORES_ELSEWHERE)
    return min(kept, _part_scores(query))


def _part_scores(query: Tensor) -> int:
    return _PART_SCORES.get(query.device.type, _PART_SCORES_ELSEWHERE)


def _last_visible_key(bias: Optional[Tensor], keys: int) -> int:
    """How many keys any of the queries can see: under a causal mask, half of them on average."""
    # Elsewhere looking would be a synchronisation.
    if bias is None or bias.device.type != "cpu" or bias.size(-1) != keys:
        return keys
    visible = (bias > HIDES).flatten(0, -2).any(0)
    return int(visible.nonzero().max()) + 1 if visible.any() else 1


def _scores(query: Tensor, key: Tensor, hidden: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """``[batch, heads, queries, keys]``, -inf where a key is hidden."""
    scores = query @ key.transpose(-2, -1)
    if bias is not None:
        scores += bias.masked_fill(bias <= HIDES, -float("inf")).to(scores.dtype)
    if hidden is not None:
        scores.masked_fill_(hidden[:, None, None], -float("inf"))
    return scores


def _weights_of(scores: Tensor, weights: Weights, alpha: Optional[Tensor] = None) -> Tensor:
    return weights(scores) if alpha is None else weights(scores, alpha)


def _random_state(x: Tensor) -> Tensor:
    """The state of the generator that dropout on the device of ``x`` draws from."""
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()


@contextmanager
def _random_replay(x: Tensor, state: Optional[Tensor]) -> Iterator[None]:
    """Draw again what was drawn from ``state`` on, and leave the generators as they were."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        if x.is_cuda:
            torch.cuda.set_rng_state(state, x.device)
        else:
            torch.set_rng_state(state)
        yield
