"""Which attention a kernel takes, that never has the scores in memory.

On a CPU the compiled kernels take rectified weights and entmax, in fp32. On a GPU, rectified
weights (ReLA) have a kernel of this package's, :mod:`fairseq_sparse.ops.gpu`; for
entmax there is AdaSplash (Goncalves, Treviso, Martins 2025, "AdaSplash: Adaptive Sparse Flash
Attention"), where ``adasplash`` is installed. Nothing here looks at a value on the GPU.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops import cpu
from fairseq_sparse.ops.attention_weights import AttentionWeights
from fairseq_sparse.ops.cpu.attention import RECTIFIED, is_fast, takes_width
from fairseq_sparse.ops.cpu.rows import can_solve
from fairseq_sparse.ops.gpu import usable

logger = logging.getLogger(__name__)

# An additive mask hides a key by any value from here down: fairseq writes -1e4 and -1e8 for -inf.
HIDES = -1e4

# What rela_attention takes.
_RELA_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_RELA_LARGEST_HEAD = 128
# What adasplash takes. It compiles anew for each length: so short inputs are not worth it.
_ADASPLASH_HEADS = (16, 32, 64, 128, 256)
_ADASPLASH_LEAST_LENGTH = 512
_ADASPLASH_STEPS = 10  # of its search for the threshold, its own default

# Of a head, on a CPU: below, the products of PyTorch are as fast.
_LEAST_SCORES = 20 * 20


def kernel_for(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: AttentionWeights,
    hidden: Optional[Tensor],
    bias: Optional[Tensor],
    causal: bool,
    dropout: float,
    widen: bool,
) -> Optional[Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """What gives the weighted sums of :func:`fairseq_sparse.ops.attention.attend` for its
    arguments ``query``, ``key`` and ``value``, or None where no kernel takes them.

    Args:
        widen: whether the sums are to be in fp32 whatever the inputs.
        others: those of ``attend``.
    """
    # One query alone, as in generation, is no work for blocks of queries.
    if query.size(2) == 1 or not usable(query, key, value) or value.shape != key.shape:
        return None
    if bias is not None and not causal:
        return None
    is_relu = weights.name == "relu"
    alpha = None if is_relu else weights.alpha
    if is_relu and _rela_takes(query):
        from fairseq_sparse.ops.gpu.rela_attention import rela_attention

        dtype = torch.float32 if widen else value.dtype
        kernel = partial(
            rela_attention, hidden=hidden, causal=causal, dropout=dropout, output_dtype=dtype
        )
    elif not (alpha is None or widen or dropout > 0) and hidden is None and _adasplash():
        if not _adasplash_takes(query, key, alpha, causal):
            return None
        kernel = partial(_by_adasplash, alpha=alpha, causal=causal)
    else:
        return None
    if bias is not None:
        assert_causal(bias)
    return kernel


def compiled_takes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: AttentionWeights,
    hidden: Optional[Tensor],
    bias: Optional[Tensor],
    dropout: float,
) -> bool:
    """Whether :func:`fairseq_sparse.ops.cpu.attention.sparse_attention` takes the arguments of
    :func:`fairseq_sparse.ops.attention.attend`, and is faster: on a CPU, in fp32."""
    scores = query.size(2), key.size(2)
    return (
        scores[0] > 1
        and scores[0] * scores[1] >= _LEAST_SCORES
        and dropout < 1
        and (bias is None or bias.shape == scores)
        and _compiled_solve(query, key, value, weights)
        and cpu.is_there_for(*(x for x in (hidden, bias) if x is not None))
    )


def compiled_takes_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: AttentionWeights,
    hidden: Optional[Tensor],
) -> bool:
    """Whether :func:`fairseq_sparse.ops.cpu.attention.attend_step` takes these arguments of
    :func:`fairseq_sparse.ops.attention.attend`, without bias and dropout: one query a head, and no
    gradient, as in generation."""
    return (
        query.size(2) == 1
        and not torch.is_grad_enabled()
        and _compiled_solve(query, key, value, weights)
        and (hidden is None or cpu.is_there_for(hidden))
    )


def _compiled_solve(query: Tensor, key: Tensor, value: Tensor, weights: AttentionWeights) -> bool:
    alpha = alpha_of(weights)
    return (
        alpha is not None
        and (alpha == RECTIFIED or can_solve(alpha))
        and cpu.usable(query, key, value)
        and is_fast()
        and value.shape == key.shape
        and takes_width(query.size(3))
    )


def alpha_of(weights: AttentionWeights) -> Optional[float]:
    """Return the alpha of alpha-entmax, ``RECTIFIED`` for rectified weights, None for others."""
    return RECTIFIED if weights.name == "relu" else weights.alpha


def _rela_takes(query: Tensor) -> bool:
    head_dim = query.size(3)
    return (
        query.dtype in _RELA_DTYPES
        and head_dim % 16 == 0
        and head_dim <= _RELA_LARGEST_HEAD
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


@cache
def _adasplash() -> Optional[ModuleType]:
    try:
        package = importlib.import_module("adasplash")
    except ImportError:
        return None
    if hasattr(package, "adasplash_v1"):
        return package
    logger.warning("the installed adasplash is not used, 0.2.2 is: pip install adasplash==0.2.2")
    return None


def _adasplash_takes(query: Tensor, key: Tensor, alpha: float, causal: bool) -> bool:
    length, head_dim = query.shape[2:]
    return (
        query.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and query.shape == key.shape
        and alpha <= 2
        and head_dim in _ADASPLASH_HEADS
        and length >= _ADASPLASH_LEAST_LENGTH
        and (causal or length == _power_of_two(length))
    )


def _by_adasplash(query: Tensor, key: Tensor, value: Tensor, alpha: float, causal: bool) -> Tensor:
    """Attention by adasplash, which scales the scores itself and takes a power of two of keys:
    under a causal mask, no query sees those that are added behind it."""
    length, head_dim = query.shape[2:]
    added = _power_of_two(length) - length
    query, key, value = (
        F.pad(x, (0, 0, 0, added)).contiguous() for x in (query * head_dim**0.5, key, value)
    )
    # By this name: the package's default takes another algorithm where alpha is 1.5 and causal.
    result = _adasplash().adasplash_v1(
        query, key, value, alpha=alpha, is_causal=causal, niter=_ADASPLASH_STEPS
    )
    return result[:, :, :length]


def _power_of_two(length: int) -> int:
    """The smallest that is no less."""
    return 1 << (length - 1).bit_length()


def causal_mask(queries: int, keys: int, like: Tensor) -> Tensor:
    """Return what masks from each query the keys after its own position, to add to the scores."""
    return like.new_full((queries, keys), -float("inf")).triu(1)


def assert_causal(bias: Tensor) -> None:
    """Fail if a mask that is said to be causal is not, without waiting for the GPU to see it."""
    future = torch.ones_like(bias, dtype=torch.bool).triu(1)
    is_causal = ((bias <= HIDES) == future).logical_and_(future | (bias == 0)).all()
    torch._assert_async(is_causal, "the attention mask is not causal, as attend() was told")
