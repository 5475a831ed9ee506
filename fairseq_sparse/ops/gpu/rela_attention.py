"""Attention with rectified weights on a GPU, without the matrix of scores in memory.

Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units", Eq. 3. For each head, the scores
S, the weights A and the result O are

    S = scale Q K^T,    A = relu(S),    O = A V.

A weight needs neither the maximum nor the sum of its row: a tile of scores is computed, rectified,
multiplied by its values and discarded. The gradients, with D = dO V^T where A is positive and 0
elsewhere, are

    dV = A^T dO,    dQ = scale D K,    dK = scale D^T Q.

Two kernels compute all this, each of which computes the tiles itself: that of O and dQ has a
program for each block of queries, that of dK and dV for each block of keys. So each sum is made by
one program, in a fixed order.

A program has OWN positions and goes through the others OTHER at a time. Under a causal mask the
tiles that no query of the block sees are left out, and only those that some see are tested.

Dropout draws the numbers of the reference (``reference/dropout.py``), so that a gradient drops what
its forward pass dropped even if only one of the two is computed here. One draw serves two keys.

Tensors lie in memory as fairseq has them, ``[length, batch, heads, head_dim]``. The functions have
the arguments and results of the operators, see ``reference/attention.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_sparse.ops.gpu.verification import verified
from fairseq_sparse.ops.masks import assert_causal
from fairseq_sparse.ops.reference.attention import RECTIFIED

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_HEAD = 128
# Positions of inputs for which half a tile would be empty.
_SHORT = 32
# Arguments that change per batch; excluded from specialisation to avoid recompiling.
_CHANGING = ["seed", "threshold", "rows", "heads", "queries", "keys"]


def fits_attention(query, key, value, masked, bias, seed, alpha, scale, causal, dropout) -> bool:
    return _fits(attention, query, key, value, masked, bias, alpha, causal, dropout)


def fits_attention_backward(
    grad, query, key, value, masked, bias, seed, solution, alpha, scale, causal, dropout
) -> bool:
    return _fits(attention_backward, query, key, value, masked, bias, alpha, causal, dropout)


def _fits(kernel: Callable, query, key, value, masked, bias, alpha, causal, dropout) -> bool:
    """The kernels work on blocks of queries, which does not suit the one query of generation."""
    if not (
        alpha == RECTIFIED
        and query.size(2) > 1
        and query.numel() > 0
        and key.numel() > 0
        and query.dtype in _DTYPES
        and query.dtype == key.dtype == value.dtype
        and key.shape == value.shape
        and query.size(3) % 16 == 0
        and query.size(3) <= _LARGEST_HEAD
        and dropout < 1
        # A captured launch would keep its seed, and so drop the same weights in every replay.
        and not (dropout > 0 and query.is_cuda and torch.cuda.is_current_stream_capturing())
        and (bias is None or causal)
    ):
        return False
    odd, is_short = key.size(2) % 2, max(query.size(2), key.size(2)) <= _SHORT
    lengths = (31, 10 + odd) if is_short else (90, 70 + odd)
    form = (*lengths, query.size(3), masked is not None, causal, dropout > 0)
    return verified(kernel, query.device, query.dtype, form, form)


def attention(
    query: Tensor, key: Tensor, value: Tensor, masked: Optional[Tensor], bias: Optional[Tensor],
    seed: Optional[Tensor], alpha: float, scale: float, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the weighted sums ``[queries, batch, heads, head_dim]``, and no solution.

    Those of fp16 inputs are fp32, in which they cannot overflow.
    """
    _assert_causal_once(bias)
    tensors = [_length_first(x) for x in (query, key, value)]
    dtype = torch.float32 if value.dtype == torch.float16 else value.dtype
    context = torch.empty_like(tensors[0], dtype=dtype)
    _launch(_by_queries, (*tensors, None, context), masked, seed, scale, causal, dropout)
    return context, context.new_empty(0, dtype=torch.float64)


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, masked: Optional[Tensor],
    bias: Optional[Tensor], seed: Optional[Tensor], solution: Tensor, alpha: float, scale: float,
    causal: bool, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of ``query``, as ``[queries, batch, heads, head_dim]``, ``key`` and
    ``value``, of ``grad`` in the shape of the result."""
    inputs = [*(_length_first(x) for x in (query, key, value)), grad.contiguous()]
    grads = [torch.empty_like(x) for x in inputs[:3]]
    options = (masked, seed, scale, causal, dropout)
    _launch(_by_queries, (*inputs, grads[0]), *options)
    _launch(_by_keys, (*inputs, *grads[1:]), *options)
    return grads[0], *(x.permute(1, 2, 0, 3).contiguous() for x in grads[1:])


def _length_first(x: Tensor) -> Tensor:
    """Turn ``[batch, heads, length, head_dim]`` into ``[length, batch, heads, head_dim]``."""
    return x.permute(2, 0, 1, 3).contiguous()


# The causal mask that was checked last: the tensor that owns its memory, its part and its version.
_checked: tuple = (lambda: None, None)


def _assert_causal_once(bias: Optional[Tensor]) -> None:
    """Fail if a mask is not causal. All layers get the same one, or parts of a buffer that stays;
    it is read again only if it is another one or was changed."""
    global _checked
    if bias is None:
        return
    owner = bias if bias._base is None else bias._base
    found = (bias.shape, bias.stride(), bias.storage_offset())
    found += (None if bias.is_inference() else bias._version,)
    if found[-1] is None or _checked[0]() is not owner or _checked[1] != found:
        assert_causal(bias)
        _checked = weakref.ref(owner), found


def _launch(
    kernel: Any, tensors: tuple[Optional[Tensor], ...], masked: Optional[Tensor],
    seed: Optional[Tensor], scale: float, causal: bool, dropout: float,
) -> None:  # fmt: skip
    """Run a kernel with a program for each head and each block of queries, or of keys."""
    query, key, _, grad = tensors[:4]
    queries, batch, heads, head_dim = query.shape
    keys, rows = key.size(0), batch * heads
    own, warps = _own(query.dtype, head_dim, max(queries, keys), backward=grad is not None)
    blocks = triton.cdiv(keys if kernel is _by_keys else queries, own)
    masked = None if masked is None else masked.contiguous().view(torch.uint8)
    seed = 0 if seed is None else int(seed)
    threshold = int(dropout * (1 << 32))  # as in the reference
    # Products of fp32 are nearly exact; in half precision it does not matter.
    precision = "tf32x3" if query.dtype == torch.float32 else "tf32"
    with torch.cuda.device_of(query):
        kernel[(blocks * rows,)](
            *tensors, masked, seed, threshold, 1 / (1 - dropout), scale, rows, heads, queries, keys,
            CAUSAL=causal, DROPS=dropout > 0, EVEN=keys % 2 == 0, DIM=head_dim,
            WIDTH=triton.next_power_of_2(head_dim), OWN=own, OTHER=32, PRECISION=precision,
            num_warps=warps, num_stages=2, enable_fp_fusion=False,
        )  # fmt: skip


def _own(dtype: torch.dtype, head_dim: int, longest: int, backward: bool) -> tuple[int, int]:
    """Return the positions of a program, and its warps, which fit the registers and the shared
    memory of every GPU from Ampere on. The gradient of fp16 inputs is fp32."""
    wide = head_dim > 64
    small = dtype == torch.float32 or longest <= _SHORT
    small |= wide and backward and dtype == torch.float16
    return 32 if small else 64, 8 if wide or dtype == torch.float32 else 4


@triton.jit
def _places(
    tensor, row, rows, start, length, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the places of ``BLOCK`` positions of a head from ``start`` on, and which exist."""
    position = start + tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    places = tensor + (position.to(tl.int64) * rows + row) * DIM + column
    return places, (position < length) & (column < DIM)


@triton.jit
def _load(
    tensor, row, rows, start, length, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Load ``[BLOCK, WIDTH]``, zeros where there is nothing."""
    places, exist = _places(tensor, row, rows, start, length, DIM, WIDTH, BLOCK)
    return tl.load(places, mask=exist, other=0.0)


@triton.jit
def _store(
    tensor, x, row, rows, start, length, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    places, exist = _places(tensor, row, rows, start, length, DIM, WIDTH, BLOCK)
    tl.store(places, x.to(tensor.dtype.element_ty), mask=exist)


@triton.jit
def _kept(
    seed, threshold, row, start_q, start_k, queries, keys,
    EVEN: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Return which weights ``[Q, K]`` dropout keeps: those whose number, the one that the reference
    draws, is at least ``threshold``. With an EVEN number of keys, pairs of them share a draw."""
    at = row.to(tl.int64) * queries + start_q + tl.arange(0, Q)[:, None]
    place = at * keys + start_k
    if EVEN:
        bits = _random_at(seed, place // 2 + tl.arange(0, K // 2)[None, :])
        lower = (bits & 0xFFFFFFFF).to(tl.int64) >= threshold
        upper = (bits >> 32).to(tl.int64) >= threshold
        kept = tl.join(lower.to(tl.int8), upper.to(tl.int8))
        kept = tl.reshape(kept, [Q, K]) != 0
    else:
        place += tl.arange(0, K)[None, :]
        bits = _random_at(seed, place >> 1) >> (32 * (place & 1)).to(tl.uint64)
        kept = (bits & 0xFFFFFFFF).to(tl.int64) >= threshold
    return kept


@triton.jit
def _random_at(seed, place):
    """Return 64 random bits by splitmix64, as in ``reference/dropout.py``."""
    x = seed + (place + 1) * -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, with a sign
    x = x.to(tl.uint64)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _attended(
    scores, masked, seed, threshold, row, heads, start_q, start_k, queries, keys,
    TESTED: tl.constexpr, DROPS: tl.constexpr, EVEN: tl.constexpr, BY_KEYS: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Return where weights are positive, or NaN, and not dropped, in a tile ``[queries, keys]``, or
    ``[keys, queries]`` if BY_KEYS; if TESTED, no query sees a key after it."""
    attended = (scores <= 0) == 0  # true of NaN
    q_at = start_q + tl.arange(0, Q)
    k_at = start_k + tl.arange(0, K)
    q_at = q_at[None, :] if BY_KEYS else q_at[:, None]
    k_at = k_at[:, None] if BY_KEYS else k_at[None, :]
    if TESTED:
        attended &= k_at <= q_at
    if masked is not None:
        place = masked + (row // heads).to(tl.int64) * keys + k_at
        attended &= tl.load(place, mask=k_at < keys, other=1) == 0
    if DROPS:
        kept = _kept(seed, threshold, row, start_q, start_k, queries, keys, EVEN, Q, K)
        attended &= tl.trans(kept) if BY_KEYS else kept
    return attended


@triton.jit(do_not_specialize=_CHANGING)
def _by_queries(
    query, key, value, grad, result, masked, seed, threshold, factor, scale, rows, heads, queries,
    keys,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr, EVEN: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute O or, if there is a ``grad``, dQ."""
    blocks = tl.cdiv(queries, OWN)
    row = tl.program_id(0) // blocks
    # Under a causal mask the last queries take longest, so they come first.
    start_q = (blocks - 1 - tl.program_id(0) % blocks) * OWN
    # All queries of the block see every key before the first of these, a multiple of OTHER.
    seen_by_all = keys
    end = keys
    if CAUSAL:
        seen_by_all = tl.minimum(keys, start_q) // OTHER * OTHER
        end = tl.minimum(keys, start_q + OWN)
    q = _load(query, row, rows, start_q, queries, DIM, WIDTH, OWN)
    if grad is not None:
        g = _load(grad, row, rows, start_q, queries, DIM, WIDTH, OWN)
    total = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    for TESTED in tl.static_range(1 + CAUSAL):  # the tiles that all see, then those that some see
        for start_k in tl.range(TESTED * seen_by_all, end if TESTED else seen_by_all, OTHER):
            k = _load(key, row, rows, start_k, keys, DIM, WIDTH, OTHER)
            v = _load(value, row, rows, start_k, keys, DIM, WIDTH, OTHER)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            attended = _attended(
                scores, masked, seed, threshold, row, heads, start_q, start_k, queries, keys,
                TESTED, DROPS, EVEN, False, OWN, OTHER,
            )  # fmt: skip
            if grad is None:
                weights = tl.where(attended, scores, 0.0).to(v.dtype)
                total = tl.dot(weights, v, total, input_precision=PRECISION)
            else:
                grad_weights = tl.dot(g, tl.trans(v.to(g.dtype)), input_precision=PRECISION)
                grad_scores = tl.where(attended, grad_weights, 0.0).to(g.dtype)
                total = tl.dot(grad_scores, k.to(g.dtype), total, input_precision=PRECISION)
    total *= factor if grad is None else factor * scale
    _store(result, total, row, rows, start_q, queries, DIM, WIDTH, OWN)


@triton.jit(do_not_specialize=_CHANGING)
def _by_keys(
    query, key, value, grad, grad_key, grad_value, masked, seed, threshold, factor, scale, rows,
    heads, queries, keys,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr, EVEN: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV."""
    blocks = tl.cdiv(keys, OWN)
    row = tl.program_id(0) // blocks
    start_k = tl.program_id(0) % blocks * OWN
    first = 0
    see_all = 0  # from this query on, all see every key of the block
    if CAUSAL:
        first = start_k // OTHER * OTHER
        see_all = tl.minimum(tl.cdiv(start_k + OWN, OTHER) * OTHER, queries)
    k = _load(key, row, rows, start_k, keys, DIM, WIDTH, OWN)
    v = _load(value, row, rows, start_k, keys, DIM, WIDTH, OWN)
    total_k = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    total_v = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    for TESTED in tl.static_range(1 + CAUSAL):
        for start_q in tl.range(
            first if TESTED else see_all, see_all if TESTED else queries, OTHER
        ):
            q = _load(query, row, rows, start_q, queries, DIM, WIDTH, OTHER)
            g = _load(grad, row, rows, start_q, queries, DIM, WIDTH, OTHER)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
            attended = _attended(
                scores, masked, seed, threshold, row, heads, start_q, start_k, queries, keys,
                TESTED, DROPS, EVEN, True, OTHER, OWN,
            )  # fmt: skip
            weights = tl.where(attended, scores, 0.0).to(g.dtype)
            total_v = tl.dot(weights, g, total_v, input_precision=PRECISION)
            grad_weights = tl.dot(v.to(g.dtype), tl.trans(g), input_precision=PRECISION)
            grad_scores = tl.where(attended, grad_weights, 0.0).to(g.dtype)
            total_k = tl.dot(grad_scores, q.to(g.dtype), total_k, input_precision=PRECISION)
    _store(grad_key, total_k * (factor * scale), row, rows, start_k, keys, DIM, WIDTH, OWN)
    _store(grad_value, total_v * factor, row, rows, start_k, keys, DIM, WIDTH, OWN)
