"""Attention with any kind of weights: everything between the projections of queries, keys and
values and the norm of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional, Union

import torch
from torch import Tensor

from fairseq_sparse.ops.attention_weights import ATTENTION_WEIGHTS, AttentionWeights
from fairseq_sparse.ops.checks import check_alpha
from fairseq_sparse.ops.dropout import draw_seed
from fairseq_sparse.ops.masks import MASKED, causal_mask
from fairseq_sparse.ops.operators import has_kernel
from fairseq_sparse.ops.precision import as_autocast
from fairseq_sparse.ops.reference import attention as reference
from fairseq_sparse.ops.reference.thresholds import Alpha

__all__ = ["MASKED", "Weights", "attend"]

Weights = Union[str, AttentionWeights, Callable[..., Tensor]]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Weights,
    alpha: Optional[Alpha] = None,
    masked: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    sums_to_one: bool = True,
    need_weights: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Optional[Tensor]]:
    """Return ``weights(scale query key^T + bias) value`` for each head.

    Unless the weights are requested, the scores of a long input are not kept but computed again for
    the gradient, so that memory does not grow with the square of its length: by a kernel, for
    rectified weights and entmax with a number alpha, which has no second derivative; otherwise in
    chunks, by ``torch.utils.checkpoint``, which ``torch.func`` does not differentiate.

    Args:
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, heads, keys, head_dim]``.
        value: ``[batch, heads, keys, head_dim]``.
        weights: a kind of weights, by name (a key of ``ATTENTION_WEIGHTS``) or as an object, or a
            custom function, for which there is no kernel. The function maps scores ``[batch, heads,
            queries, keys]``, -inf for masked keys, and ``alpha`` if given, to weights in fp32 or
            better, each row by itself: of a long input it gets some sentences or queries at a time.
        alpha: the alpha of ``entmax`` or of a custom function: a number, or a tensor
            ``[heads, 1, 1]``, which gets a gradient.
        masked: boolean, ``[batch, keys]``, true for keys that no query may attend to.
        bias: ``[queries, keys]``, or four dimensions that broadcast over the scores; added to
            them, with ``MASKED`` or less where a key is masked. It gets no gradient.
        causal: whether to mask the keys after each query's own position. If ``bias`` is given
            too, it must be exactly this mask, ``[queries, keys]``; GPU kernels do not read it.
        dropout: probability of dropping a weight, from 0 to 1.
        sums_to_one: whether the weights of a custom function sum to 1. If not, they are unbounded,
            and in fp16 the weighted sum is returned in fp32, in which it cannot overflow.
        need_weights: whether to return the weights before dropout.
        scale: the factor of the scores.

    Returns:
        The weighted sums ``[batch, heads, queries, head_dim]``, in the dtype of ``value`` (but see
        ``sums_to_one``), and the weights ``[batch, heads, queries, keys]`` or None.

    Raises:
        ValueError: the name of the weights is unknown, a tensor has a wrong shape or dtype, alpha
            is missing or given to weights that take none, or ``dropout`` is out of range.
    """
    weights, alpha = _resolve_weights(weights, alpha, sums_to_one)
    _check_shapes(query, key, value)
    _check_masks(query, key, masked, bias, causal)
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be a probability, from 0 to 1, got {dropout}")
    if alpha is not None:
        alpha = _alpha_per_head(alpha, query.size(1))
    query, key, value = as_autocast(query, key, value)
    if alpha is None and (weights.name == "relu" or weights.has_alpha):
        number = reference.RECTIFIED if weights.name == "relu" else weights.alpha
        options = (masked, bias, number, scale, causal, dropout, need_weights)
        found = _attend_by_kernel(query, key, value, *options)
        if found is not None:
            return found
    if bias is None and causal:
        bias = causal_mask(query.size(2), key.size(2), query)
    options = (weights, alpha, masked, bias, scale, dropout)
    if not need_weights and reference.exceeds_chunk(query, key):
        return reference.attend_in_chunks(query, key, value, *options, causal), None
    context, chosen = reference.attend(query, key, value, *options)
    return context, chosen if need_weights else None


def _attend_by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    alpha: float,
    scale: float,
    causal: bool,
    dropout: float,
    need_weights: bool,
) -> Optional[tuple[Tensor, Optional[Tensor]]]:
    """Return the result of :func:`attend` if a kernel computes it, otherwise None.

    Only then is attention an operator, because that computes scores again for the gradient.
    """
    tensors = (query, key, value, masked)
    if query.size(2) == 1:  # a step of generation
        plain = bias is None and not causal and dropout == 0 and not torch.is_grad_enabled()
        options = (alpha, scale, need_weights)
        if not (plain and has_kernel("attention_step", *tensors, *options)):
            return None
        context, chosen = reference.attention_step(*tensors, *options)
        return context, chosen if need_weights else None
    options = (alpha, scale, causal, dropout)
    if need_weights or not has_kernel("attention", *tensors, bias, None, *options):
        return None
    seed = draw_seed() if dropout > 0 else None
    context, _ = reference.attention(*tensors, bias, seed, *options)
    return context.permute(1, 2, 0, 3), None


def _resolve_weights(
    weights: Weights, alpha: Optional[Alpha], sums_to_one: bool
) -> tuple[AttentionWeights, Optional[Tensor]]:
    """Return the kind of weights, which includes alpha if it is a number, and a tensor alpha.

    Raises:
        ValueError: there is no such kind, or alpha is missing, or given to a kind without one.
    """
    given = getattr(weights, "name", weights)
    if isinstance(weights, str):
        if weights not in ATTENTION_WEIGHTS:
            raise ValueError(f"weights must be one of {list(ATTENTION_WEIGHTS)}, got {weights!r}")
        weights = ATTENTION_WEIGHTS[weights]
    if not isinstance(weights, AttentionWeights):
        weights = AttentionWeights("a function", weights, sums_to_one)
    elif weights.lacks_alpha != (alpha is not None):
        wants = "needs alpha" if weights.lacks_alpha else "takes no alpha"
        raise ValueError(f"{given} {wants}, got {alpha}")
    if alpha is None or torch.is_tensor(alpha):
        return weights, alpha
    if weights.name == "entmax":  # a function of one's own may take any alpha
        alpha = 1.0 if alpha == 1 else check_alpha(alpha)
    return weights.with_alpha(alpha), None


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError where queries, keys and values do not fit each other."""
    keys = (*query.shape[:2], *key.shape[2:3])
    if query.dim() != 4 or key.shape != (*keys, query.size(3)) or value.shape[:-1] != keys:
        raise ValueError(
            "query, key and value must be [batch, heads, queries or keys, head_dim], got "
            f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )


def _alpha_per_head(alpha: Tensor, heads: int) -> Tensor:
    """Return alpha as ``[heads, 1, 1]``; raise ValueError where it has another shape."""
    try:
        return alpha.expand(heads, 1, 1)
    except RuntimeError:
        raise ValueError(f"alpha must be [{heads}, 1, 1], got {list(alpha.shape)}") from None


def _check_masks(
    query: Tensor, key: Tensor, masked: Optional[Tensor], bias: Optional[Tensor], causal: bool
) -> None:
    """Raise ValueError where a mask does not fit the queries and keys, or is of another dtype."""
    batch, scores = query.size(0), (query.size(2), key.size(2))
    if masked is not None and (masked.dtype, *masked.shape) != (torch.bool, batch, scores[1]):
        raise ValueError(
            f"masked must be boolean, [{batch}, {scores[1]}], got {masked.dtype} "
            f"{list(masked.shape)}"
        )
    if bias is None:
        return
    whole = (*query.shape[:2], *scores)
    pairs = zip(bias.shape, whole, strict=False)
    broadcasts = bias.dim() == 4 and all(size in (1, full) for size, full in pairs)
    if bias.shape != scores and (causal or not broadcasts):
        expected = f"{list(scores)}" if causal else f"{list(scores)} or broadcast to {list(whole)}"
        raise ValueError(f"bias must be {expected}, got {list(bias.shape)}")
    if not bias.is_floating_point():
        raise ValueError(f"bias is added to the scores: it must be floating, got {bias.dtype}")
