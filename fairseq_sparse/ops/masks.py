"""Masks of attention scores, to be added to them."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

# In an additive mask this value or less masks a key: fairseq uses -1e4 and -1e8 for -inf.
MASKED = -1e4


def causal_mask(queries: int, keys: int, like: Tensor) -> Tensor:
    """Return the mask ``[queries, keys]`` of the keys after each query's own position."""
    return like.new_full((queries, keys), -float("inf")).triu(1)


def assert_causal(bias: Tensor) -> None:
    """Fail if a mask that was declared causal is not, without waiting for the GPU."""
    expected = bias.new_full(bias.shape, MASKED).triu_(1)
    is_causal = (bias.clamp(min=MASKED) == expected).all()
    torch._assert_async(is_causal, "the attention mask is not causal, but attend() got causal=True")


def convert_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask in another dtype, with -inf for ``MASKED``, to which -1e4 in half
    precision is no longer equal."""
    return bias.detach().masked_fill(bias <= MASKED, -float("inf")).to(dtype)


def add_masks(scores: Tensor, masked: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """Add ``bias`` to scores ``[batch, heads, queries, keys]``; where it, or ``masked [batch,
    keys]``, masks a key, the result is -inf."""
    if bias is not None:
        scores = scores + convert_bias(bias, scores.dtype)
    if masked is not None:
        scores = scores.masked_fill(masked[:, None, None], -float("inf"))
    return scores
