"""Masks of attention scores, to be added to them."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.precision import without_autocast

# In an additive mask this value or less masks a key: fairseq uses -1e4 and -1e8 for -inf.
MASKED = -1e4


def causal_mask(queries: int, keys: int, like: Tensor) -> Tensor:
    """Return the mask ``[queries, keys]`` of the keys after each query's own position."""
    return like.new_full((queries, keys), -float("inf")).triu(1)


def count_visible(key: Tensor, masked: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """Count the keys that each query sees.

    Args:
        key: ``[batch, heads, keys, head_dim]``.
        masked, bias: as in :func:`fairseq_sparse.ops.attention.attend`; a bias of four dimensions
            must have all of the keys.

    Returns:
        The counts in fp32, which broadcast with ``[batch, heads, queries]``.
    """
    seen = None if bias is None else (bias > MASKED).float()
    if masked is None:
        return (
            key.new_full((1,), key.size(2), dtype=torch.float32) if seen is None else seen.sum(-1)
        )
    unmasked = masked.logical_not().float()  # [batch, keys]
    if seen is None:
        return unmasked.sum(-1)[:, None, None]
    with without_autocast(key):  # half precision would round large counts
        if seen.dim() == 2:
            return (unmasked @ seen.T)[:, None]
        return (seen @ unmasked[:, None, :, None]).squeeze(-1)


def assert_causal(bias: Tensor) -> None:
    """Fail if a mask that was declared causal is not, without waiting for the GPU."""
    future = torch.ones_like(bias, dtype=torch.bool).triu(1)
    is_causal = ((bias <= MASKED) == future).logical_and_(future | (bias == 0)).all()
    torch._assert_async(is_causal, "the attention mask is not causal, but attend() got causal=True")


def convert_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask in another dtype, with -inf for ``MASKED``, to which -1e4 in half
    precision is no longer equal."""
    return bias.masked_fill(bias <= MASKED, -float("inf")).to(dtype)


def apply_masks(scores: Tensor, masked: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """Add ``bias`` to scores ``[batch, heads, queries, keys]`` and put -inf where it, or ``masked
    [batch, keys]``, masks a key; in place, unless PyTorch captures the scores."""
    in_place = not is_captured(scores)  # under vmap, the masks may have one dimension more
    if bias is not None:
        bias = convert_bias(bias, scores.dtype)
        scores = scores.add_(bias) if in_place else scores + bias
    if masked is not None:
        masked = masked[:, None, None]
        fill = scores.masked_fill_ if in_place else scores.masked_fill
        scores = fill(masked, -float("inf"))
    return scores
