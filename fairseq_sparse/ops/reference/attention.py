"""Attention with any function from scores to weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.masks import apply_masks, causal_mask
from fairseq_sparse.ops.precision import without_autocast
from fairseq_sparse.ops.reference.chunked_attention import ChunkedAttention, needs_chunks

if TYPE_CHECKING:
    from fairseq_sparse.ops.attention_weights import AttentionOptions


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> tuple[Tensor, Optional[Tensor]]:
    """Return ``weights(scale query key^T + bias) value`` for each head, and the weights if they are
    asked for; see :func:`fairseq_sparse.ops.attention.attend`."""
    weights, alpha, masked, bias, causal, dropout, need_weights, scale, widen = options
    query = query if scale == 1 else query * scale
    if bias is None and causal:
        bias = causal_mask(query.size(2), key.size(2), query)
    if bias is not None:
        bias = bias.detach() if bias.dim() == 4 else bias.detach()[None, None]
    # Elsewhere dropout could not be drawn again for the gradient.
    can_repeat = dropout == 0 or query.device.type in ("cpu", "cuda")
    given = [x for x in (query, key, value, alpha, masked, bias) if x is not None]
    in_chunks = can_repeat and not need_weights and not is_captured(*given)
    with without_autocast(query):
        if in_chunks and needs_chunks(query, key):
            arguments = (alpha, weights, masked, bias, dropout, widen)
            return ChunkedAttention.apply(query, key, value, *arguments), None
        scores = apply_masks(query @ key.transpose(-2, -1), masked, bias)
        chosen = weights(scores, alpha)  # [batch, heads, queries, keys]
        kept = F.dropout(chosen, dropout) if dropout > 0 else chosen
        if widen:
            value = value.float()  # in half precision the sum could overflow, or its gradient
        return kept.to(value.dtype) @ value, chosen if need_weights else None
