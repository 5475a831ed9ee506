"""Attention on a GPU without ever having the scores in memory.

Rectified weights (ReLA) use a kernel of this package, ``rela_attention.py``; entmax uses AdaSplash
(Goncalves, Treviso, Martins 2025, "AdaSplash: Adaptive Sparse Flash Attention"), if the package
``adasplash`` is installed.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops.gpu.rela_attention import rela_attention
from fairseq_sparse.ops.masks import assert_causal

if TYPE_CHECKING:
    from fairseq_sparse.ops.attention_weights import AttentionOptions

logger = logging.getLogger(__name__)

_ADASPLASH_STEPS = 10  # steps of its search for the threshold; its own default


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> tuple[Tensor, None]:
    """Return the weighted sums of :func:`fairseq_sparse.ops.attention.attend`, and no weights."""
    if options.bias is not None:
        assert_causal(options.bias)
    query = query if options.scale == 1 else query * options.scale
    if options.weights.name == "relu":
        dtype = torch.float32 if options.widen else value.dtype
        masks = (options.masked, options.causal, options.dropout)
        return rela_attention(query, key, value, *masks, dtype), None
    return _by_adasplash(query, key, value, options.weights.alpha, options.causal), None


@cache
def adasplash() -> Optional[ModuleType]:
    """Return the package adasplash, or None where its right version is not installed."""
    try:
        package = importlib.import_module("adasplash")
    except ImportError:
        return None
    if hasattr(package, "adasplash_v1"):
        return package
    logger.warning("adasplash is used only in version 0.2.2: pip install adasplash==0.2.2")
    return None


def _by_adasplash(query: Tensor, key: Tensor, value: Tensor, alpha: float, causal: bool) -> Tensor:
    """Compute attention by adasplash, which scales the scores itself and requires a power of two of
    keys. Under a causal mask, no query sees the keys that are added at the end."""
    length, head_dim = query.shape[2:]
    added = _power_of_two(length) - length
    query, key, value = (
        F.pad(x, (0, 0, 0, added)).contiguous() for x in (query * head_dim**0.5, key, value)
    )
    # By this name, because the package's default uses another algorithm for causal 1.5-entmax.
    result = adasplash().adasplash_v1(
        query, key, value, alpha=alpha, is_causal=causal, niter=_ADASPLASH_STEPS
    )
    return result[:, :, :length]


def _power_of_two(length: int) -> int:
    """Return the smallest power of two that is at least ``length``."""
    return 1 << (length - 1).bit_length()
