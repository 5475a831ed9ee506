"""Attention with any function from scores to weights, in memory that does not grow with the square
of the length.

One function, :func:`attend`, stands for everything between the projections of queries, keys and
values and the norm of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.attention_kernels import (
    HIDES,
    alpha_of,
    causal_mask,
    compiled_takes,
    compiled_takes_step,
    kernel_for,
)
from fairseq_sparse.ops.attention_weights import ATTENTION_WEIGHTS, AttentionWeights
from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.cpu.attention import attend_step, sparse_attention
from fairseq_sparse.ops.precision import as_autocast, at_least_fp32, without_autocast
from fairseq_sparse.ops.threshold import Alpha

# So many scores at once: each core of a CPU should find its own in its cache, another device should
# be filled.
_PART_SCORES = {"cpu": 1 << 19}
_PART_SCORES_ELSEWHERE = 1 << 26
# Up to so many scores are kept for the gradient rather than computed again.
_KEPT_SCORES = {"cpu": 1 << 18}
_KEPT_SCORES_ELSEWHERE = 1 << 24
# A part has at least so many queries, that its products stay efficient.
_PART_QUERIES = 32

Weights = Union[str, AttentionWeights, Callable[..., Tensor]]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Weights,
    alpha: Optional[Alpha] = None,
    hidden: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    sums_to_one: bool = True,
    need_weights: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Optional[Tensor]]:
    """``weights(scale query key^T + bias) value`` for each head.

    Unless the weights are asked for, long inputs are worked on in parts whose scores are computed
    again for the gradient, so that not all of them are in memory at once. Then there is no second
    derivative.

    Args:
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, heads, keys, head_dim]``.
        value: ``[batch, heads, keys, head_dim]``.
        weights: a kind of weights, by name (a key of ``ATTENTION_WEIGHTS``) or as an object. A
            function of one's own has no kernel: from scores ``[batch, heads, queries, keys]``, -inf
            for masked keys, and ``alpha`` if it is given, to weights in fp32 or better, each row
            looked at by itself. Another tensor that it holds need not get a gradient.
        alpha: of ``weights``: a number, or ``[heads, 1, 1]``, which gets a gradient.
        hidden: boolean, ``[batch, keys]``, true for keys that no query may attend to.
        bias: ``[queries, keys]``, or four dimensions that broadcast over the scores; added to
            them, with ``HIDES`` or less for keys that are masked from a query. It gets no gradient.
        causal: mask from each query the keys after its own position. With a ``bias``, a promise
            that it is this mask, ``[queries, keys]``, which kernels for a GPU then need not read.
        dropout: probability of dropping a weight.
        sums_to_one: of a function of one's own. If not, the weights have no bound, and in fp16 the
            weighted sum is given in fp32, in which it cannot overflow.
        need_weights: whether to return the weights, as they are before dropout.
        scale: of the scores.

    Returns:
        The weighted sums ``[batch, heads, queries, head_dim]``, in the dtype of ``value`` (but see
        ``sums_to_one``), and the weights ``[batch, heads, queries, keys]`` or None.
    """
    weights, alpha = _named(weights, alpha, sums_to_one)
    _check_masks(query, key, hidden, bias, causal)
    query, key, value = as_autocast(query, key, value)
    if alpha is None and bias is None and not causal and dropout == 0:
        if compiled_takes_step(query, key, value, weights, hidden):
            return attend_step(query, key, value, alpha_of(weights), scale, hidden, need_weights)
    widen = not weights.sums_to_one and value.dtype == torch.float16
    for_kernels = not need_weights and alpha is None
    if causal and bias is None and query.is_cpu:
        bias = causal_mask(query.size(2), key.size(2), query)
    if for_kernels and compiled_takes(query, key, value, weights, hidden, bias, dropout):
        settings = (alpha_of(weights), scale, hidden, bias, dropout)
        return sparse_attention(query, key, value, *settings), None
    if scale != 1:
        query = query * scale
    if for_kernels:
        kernel = kernel_for(query, key, value, weights, hidden, bias, causal, dropout, widen)
        if kernel is not None:
            return kernel(query, key, value), None
    if causal and bias is None:
        bias = causal_mask(query.size(2), key.size(2), query)
    if bias is not None:
        bias = bias.detach() if bias.dim() == 4 else bias.detach()[None, None]
    captured = is_captured(query, key, value)
    # Elsewhere dropout could not be drawn again.
    can_repeat = (dropout == 0 or query.device.type in ("cpu", "cuda")) and not captured
    scores = query.shape[:3].numel() * key.size(2)
    with without_autocast(query):
        if not need_weights and can_repeat and scores > _kept_scores(query):
            arguments = (query, key, value, alpha, weights, hidden, bias, dropout, widen)
            return _AttendInParts.apply(*arguments), None
        chosen = _weights_of(_scores(query, key, hidden, bias), weights, alpha)
        kept = F.dropout(chosen, dropout) if dropout > 0 else chosen
        if widen:
            value = value.float()  # in half precision the sum could overflow, or its gradient
        return kept.to(value.dtype) @ value, chosen if need_weights else None


def _named(
    weights: Weights, alpha: Optional[Alpha], sums_to_one: bool
) -> tuple[AttentionWeights, Optional[Tensor]]:
    """Return the kind of weights, with alpha in it if that is a number."""
    if isinstance(weights, str):
        if weights not in ATTENTION_WEIGHTS:
            raise ValueError(f"weights must be one of {list(ATTENTION_WEIGHTS)}, got {weights!r}")
        weights = ATTENTION_WEIGHTS[weights]
    elif not isinstance(weights, AttentionWeights):
        weights = AttentionWeights("a function", weights, sums_to_one)
    if alpha is None or torch.is_tensor(alpha):
        return weights, alpha
    return weights.with_alpha(alpha), None


def _check_masks(
    query: Tensor, key: Tensor, hidden: Optional[Tensor], bias: Optional[Tensor], causal: bool
) -> None:
    """Raise ValueError where a mask does not fit the queries and keys."""
    batch, scores = query.size(0), (query.size(2), key.size(2))
    if hidden is not None and (hidden.dtype, *hidden.shape) != (torch.bool, batch, scores[1]):
        raise ValueError(
            f"hidden must be boolean, [{batch}, {scores[1]}], got {hidden.dtype} "
            f"{list(hidden.shape)}"
        )
    if not (bias is None or bias.shape == scores or (bias.dim() == 4 and not causal)):
        raise ValueError(f"bias must be {list(scores)}, got {list(bias.shape)}")


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
        if weights.name == "relu" and bias is None:
            key, hidden = _zero_where_hidden(key, hidden), None
        memory = _Memory(query)
        for part in _parts(query, key, hidden, bias):
            scores = memory.product(query[part.queries], key[part.keys].transpose(-2, -1))
            scores = _mask(scores, part.hidden, part.bias)
            if weights.name == "relu":
                kept = _rectify(scores, dropout)
            else:
                kept = _weights_of(scores, weights, None if alpha is None else alpha[part.heads])
                kept = F.dropout(kept, dropout) if dropout > 0 else kept
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
    if ctx.weights.name == "relu" and bias is None:
        key, hidden = _zero_where_hidden(key, hidden), None
    grad_query = torch.zeros_like(query)
    # Sums over the parts.
    grad_key, grad_value = (
        x.new_zeros(x.shape, dtype=at_least_fp32(x[:0]).dtype) for x in (key, value)
    )
    grad_alpha = None if alpha is None else torch.zeros_like(alpha)
    of_scores, of_grad = _Memory(query), _Memory(value)
    with _random_replay(query, ctx.random_state):
        for part in _parts(query, key, hidden, bias):
            part_query, part_key, part_grad = (
                query[part.queries],
                key[part.keys],
                grad[part.queries],
            )
            scores = _mask(
                of_scores.product(part_query, part_key.transpose(-2, -1)), part.hidden, part.bias
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
    """Weights after dropout, and the gradients of the scores and of alpha, if it is given."""
    inputs = [x.detach().requires_grad_() for x in (scores, alpha) if x is not None]
    with torch.enable_grad():
        kept = _weights_of(inputs[0], weights, *inputs[1:])
        if dropout > 0:
            kept = F.dropout(kept, dropout)
    return kept.detach(), *torch.autograd.grad(kept, inputs, grad)


def _rectify(scores: Tensor, dropout: float) -> Tensor:
    """The weights of ``relu`` after dropout, in the memory of the scores where that is possible."""
    kept = at_least_fp32(scores).relu_()
    return F.dropout(kept, dropout, inplace=True) if dropout > 0 else kept


def _through_rectify(kept: Tensor, grad: Tensor, dropout: float) -> Tensor:
    """The gradient of the scores: a weight that is 0 has been rectified or dropped."""
    grad = grad.to(kept.dtype)
    if dropout > 0:
        grad /= 1 - dropout
    return torch.ops.aten.threshold_backward.grad_input(grad, kept, 0, grad_input=grad)


def _zero_where_hidden(key: Tensor, hidden: Optional[Tensor]) -> Tensor:
    """Keys whose scores are 0, and so their rectified weights, where they are hidden."""
    return key if hidden is None else key.masked_fill(hidden[:, None, :, None], 0.0)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b`` for ``total`` a part of a contiguous tensor."""
    if a.dtype == b.dtype == total.dtype:
        total.view(-1, *total.shape[2:]).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))
    else:
        total += a @ b


class _Memory:
    """Memory for something of one part after another, so that it stays in the cache."""

    def __init__(self, like: Tensor):
        self.memory = like.new_empty(0)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b`` for ``[batch, heads, queries, n]`` and ``[batch, heads, n, keys]``."""
        shape = torch.Size((*a.shape[:3], b.size(3)))
        if self.memory.numel() < shape.numel():
            self.memory = self.memory.new_empty(shape.numel())
        result = self.memory[: shape.numel()].view(-1, *shape[2:])
        return torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=result).view(shape)


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
        # So many heads run beside one another.
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
    if query.device.type == "cpu":
        return _PART_SCORES["cpu"] * torch.get_num_threads()
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
    return _mask(query @ key.transpose(-2, -1), hidden, bias)


def _mask(scores: Tensor, hidden: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """Put -inf where a key is hidden; in place."""
    if bias is not None:
        scores += bias.masked_fill(bias <= HIDES, -float("inf")).to(scores.dtype)
    if hidden is not None:
        scores.masked_fill_(hidden[:, None, None], -float("inf"))
    return scores


def _weights_of(
    scores: Tensor, weights: AttentionWeights, alpha: Optional[Tensor] = None
) -> Tensor:
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
