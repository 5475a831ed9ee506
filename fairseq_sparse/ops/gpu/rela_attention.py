"""Attention with rectified weights on a GPU, without the matrix of scores in memory.

Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units", Eq. 3. For each head, the scores
S, the weights A and the result O are

    S = Q K^T,    A = relu(S),    O = A V.

A weight needs neither the maximum nor the sum of its row: a tile of scores is computed, rectified,
multiplied by its values and discarded. The gradients, with D = dO V^T where A is positive and 0
elsewhere, are

    dV = A^T dO,    dQ = D K,    dK = D^T Q.

Two kernels compute them, each of which recomputes the tiles: one has a program for each block of
queries, the other for each block of keys. So each sum is made by one program, in a fixed order.

A program has OWN positions and goes through the others OTHER at a time. The sums depend only on
OTHER, which depends on the shapes and the dtype alone. For long inputs Triton times a few values of
OWN, warps and stages at first use; whichever it chooses, the result is the same.

Tensors lie in memory as fairseq has them, ``[length, batch, heads, head_dim]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.gpu.arithmetic import INTERPRETED
from fairseq_sparse.ops.layout import empty_time_first

# Arguments that change per batch; excluded from specialisation to avoid recompiling.
_SIZES = ["rows", "heads", "queries", "keys", "reach"]
# Philox rounds; 7 is the smallest number that passes the tests of randomness (Salmon et al. 2011).
_PHILOX_ROUNDS = tl.constexpr(7)


def rela_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Optional[Tensor] = None,
    causal: bool = False,
    dropout: float = 0.0,
    output_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Return ``relu(query key^T) value`` for each head, summed in fp32.

    Args:
        query: ``[batch, heads, queries, head_dim]``, already scaled; fp32, fp16 or bf16, in whose
            range the scores must be, too. ``head_dim`` is a multiple of 16, at most 128.
        key: ``[batch, heads, keys, head_dim]``.
        value: ``[batch, heads, keys, head_dim]``.
        masked: ``[batch, keys]``, true for keys that no query may attend to.
        causal: whether a query sees no key after its own position.
        dropout: probability of dropping a weight.
        output_dtype: the dtype of the inputs (default), or fp32, in which the result of fp16 inputs
            cannot overflow.

    Returns:
        ``[batch, heads, queries, head_dim]``.
    """
    seed = torch.randint(1 << 62, (1,), device=query.device) if dropout > 0 else None
    if masked is not None:
        masked = masked.contiguous().view(torch.uint8)
    mask = _Mask(masked, 0 if causal else key.size(2), dropout, seed)
    return _RectifiedAttention.apply(query, key, value, mask, output_dtype or query.dtype)


class _Mask(NamedTuple):
    masked: Optional[Tensor]
    reach: int  # how many positions after its own a query sees
    dropout: float
    seed: Optional[Tensor]


class _RectifiedAttention(Function):
    @staticmethod
    def forward(ctx, query, key, value, mask, output_dtype):
        result = empty_time_first(query.shape, query, output_dtype)
        query, key, value = (_length_first(x) for x in (query, key, value))
        # The mask's tensors are saved, too, so that PyTorch notices if one is changed.
        ctx.save_for_backward(query, key, value, mask.masked, mask.seed)
        ctx.mask = mask._replace(masked=None, seed=None)
        _launch(_forward, (query, key, value, result.permute(2, 0, 1, 3)), mask)
        return result

    @staticmethod
    @first_order
    def backward(ctx, grad):
        query, key, value, masked, seed = ctx.saved_tensors
        mask = ctx.mask._replace(masked=masked, seed=seed)
        inputs = (query, key, value, _length_first(grad))
        grads = tuple(torch.empty_like(x) for x in (query, key, value))
        _launch(_backward_query, (*inputs, grads[0]), mask)
        _launch(_backward_key_value, (*inputs, *grads[1:]), mask, by_keys=True)
        return *(_batch_first(x) for x in grads), None, None


def _length_first(x: Tensor) -> Tensor:
    """Turn ``[batch, heads, length, head_dim]`` into ``[length, batch, heads, head_dim]``."""
    return x.permute(2, 0, 1, 3).contiguous()


def _batch_first(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0, 3)


def _launch(kernel: Any, tensors: tuple[Tensor, ...], mask: _Mask, by_keys: bool = False) -> None:
    """Run a kernel with a program for each head and each block of queries, or of keys."""
    query, key = tensors[:2]
    queries, batch, heads, head_dim = query.shape
    keys, rows = key.size(0), batch * heads
    own = keys if by_keys else queries
    if own * rows == 0:
        return
    configurations = _configurations(query, key)
    if len(configurations) == 1:  # nothing to time
        kernel, chosen = kernel.fn, configurations[0].all_kwargs()
    else:
        chosen = {}
    with torch.cuda.device_of(query):
        kernel[lambda options: (triton.cdiv(own, options["OWN"]) * rows,)](
            *tensors,
            mask.masked,
            mask.seed,
            float(mask.dropout),
            1 / (1 - mask.dropout) if mask.dropout < 1 else 0.0,
            rows,
            heads,
            queries,
            keys,
            mask.reach,
            HAS_MASKED=mask.masked is not None,
            DROPS=mask.dropout > 0,
            HEAD_DIM=head_dim,
            WIDTH=triton.next_power_of_2(head_dim),
            OTHER=_other(query, key, len(tensors) > 4),
            PRECISION=_precision(query),
            enable_fp_fusion=False,
            **chosen,
        )


def _other(query: Tensor, key: Tensor, backward: bool) -> int:
    """Return the number of positions in a step, on which the order of the sums depends."""
    wide, longest = query.size(3) > 64, max(query.size(0), key.size(0))
    if query.dtype == torch.float32 or longest <= 32 or (wide and backward):
        return 32
    return 64 if wide or backward or longest <= _LONG else 128


def _configurations(query: Tensor, key: Tensor) -> list[triton.Config]:
    """Return the configurations to choose from; each fits the registers and shared memory."""
    wide, longest = query.size(3) > 64, max(query.size(0), key.size(0))
    if query.dtype == torch.float32:
        return [_configuration(32, 8 if wide else 4, 2)]
    if longest > _LONG and not INTERPRETED:
        return _TIMED
    return [_configuration(32 if longest <= 32 else 64, 4, 2)]


def _configuration(own: int, warps: int, stages: int) -> triton.Config:
    return triton.Config({"OWN": own}, num_warps=warps, num_stages=stages)


# For inputs longer than this, timing the kernels is worth it.
_LONG = 256
_TIMED = [_configuration(*x) for x in ((64, 4, 2), (64, 4, 3), (128, 8, 2), (128, 8, 3))]
_timed = triton.autotune(_TIMED, key=["HAS_MASKED", "DROPS", "HEAD_DIM", "OTHER"])


def _precision(query: Tensor) -> str:
    """Return how fp32 is multiplied: nearly exactly for fp32 inputs, as TF32 for half precision."""
    return "tf32x3" if query.dtype == torch.float32 else "tf32"


@triton.jit
def _place(
    tensor,
    row,
    rows,
    start,
    length,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the places of ``BLOCK`` positions of a head from ``start`` on, and the valid ones."""
    position = start + tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    place = tensor + (position.to(tl.int64) * rows + row) * HEAD_DIM + column
    return place, (position < length) & (column < HEAD_DIM)


@triton.jit
def _load(
    tensor,
    row,
    rows,
    start,
    length,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Load ``[BLOCK, WIDTH]``, zeros where there is nothing."""
    place, there = _place(tensor, row, rows, start, length, HEAD_DIM, WIDTH, BLOCK)
    return tl.load(place, mask=there, other=0.0)


@triton.jit
def _store(
    total,
    tensor,
    row,
    rows,
    start,
    length,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place, there = _place(tensor, row, rows, start, length, HEAD_DIM, WIDTH, BLOCK)
    tl.store(place, total.to(tensor.dtype.element_ty), mask=there)


@triton.jit
def _attended(scores, query, key, masked, row, heads, keys, reach, HAS_MASKED: tl.constexpr):
    """Return where weights are positive, or NaN; ``query`` and ``key`` are positions in a tile."""
    attended = (scores <= 0) == 0
    attended &= key <= query + reach
    if HAS_MASKED:
        place = masked + (row // heads).to(tl.int64) * keys + key
        attended &= tl.load(place, mask=key < keys, other=1) == 0
    return attended


@triton.jit
def _kept(seed, row, query, key, dropout):
    """Return which weights dropout keeps, however the scores are cut into tiles.

    Head, query and key are separate counters, so that no product of them can overflow.
    """
    zero = query * 0 + key * 0
    number, _, _, _ = tl.philox(
        tl.load(seed), key + zero, query + zero, row + zero, zero, n_rounds=_PHILOX_ROUNDS
    )
    return tl.uint_to_uniform_float(number) >= dropout


@_timed
@triton.jit(do_not_specialize=_SIZES)
def _forward(
    query,
    key,
    value,
    output,
    masked,
    seed,
    dropout,
    scale,
    rows,
    heads,
    queries,
    keys,
    reach,
    HAS_MASKED: tl.constexpr,
    DROPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    OWN: tl.constexpr,
    OTHER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(queries, OWN)
    row = tl.program_id(0) // blocks
    # Under a causal mask the last queries take longest, so they come first.
    start_q = (blocks - 1 - tl.program_id(0) % blocks) * OWN
    q_at = start_q + tl.arange(0, OWN)[:, None]
    q = _load(query, row, rows, start_q, queries, HEAD_DIM, WIDTH, OWN)
    total = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    for start_k in tl.range(0, tl.minimum(keys, start_q + OWN + reach), OTHER):
        k_at = start_k + tl.arange(0, OTHER)[None, :]
        k = _load(key, row, rows, start_k, keys, HEAD_DIM, WIDTH, OTHER)
        v = _load(value, row, rows, start_k, keys, HEAD_DIM, WIDTH, OTHER)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        attended = _attended(scores, q_at, k_at, masked, row, heads, keys, reach, HAS_MASKED)
        if DROPS:
            attended &= _kept(seed, row, q_at, k_at, dropout)
        weights = tl.where(attended, scores, 0.0).to(v.dtype)
        total = tl.dot(weights, v, total, input_precision=PRECISION)
    _store(total * scale, output, row, rows, start_q, queries, HEAD_DIM, WIDTH, OWN)


@_timed
@triton.jit(do_not_specialize=_SIZES)
def _backward_query(
    query,
    key,
    value,
    grad,
    grad_query,
    masked,
    seed,
    dropout,
    scale,
    rows,
    heads,
    queries,
    keys,
    reach,
    HAS_MASKED: tl.constexpr,
    DROPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    OWN: tl.constexpr,
    OTHER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(queries, OWN)
    row = tl.program_id(0) // blocks
    # Under a causal mask the last queries take longest, so they come first.
    start_q = (blocks - 1 - tl.program_id(0) % blocks) * OWN
    q_at = start_q + tl.arange(0, OWN)[:, None]
    q = _load(query, row, rows, start_q, queries, HEAD_DIM, WIDTH, OWN)
    g = _load(grad, row, rows, start_q, queries, HEAD_DIM, WIDTH, OWN)
    total = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    for start_k in tl.range(0, tl.minimum(keys, start_q + OWN + reach), OTHER):
        k_at = start_k + tl.arange(0, OTHER)[None, :]
        k = _load(key, row, rows, start_k, keys, HEAD_DIM, WIDTH, OTHER)
        v = _load(value, row, rows, start_k, keys, HEAD_DIM, WIDTH, OTHER)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        attended = _attended(scores, q_at, k_at, masked, row, heads, keys, reach, HAS_MASKED)
        if DROPS:
            attended &= _kept(seed, row, q_at, k_at, dropout)
        grad_weights = tl.dot(g, tl.trans(v.to(g.dtype)), input_precision=PRECISION)
        grad_scores = tl.where(attended, grad_weights, 0.0).to(g.dtype)
        total = tl.dot(grad_scores, k.to(g.dtype), total, input_precision=PRECISION)
    _store(total * scale, grad_query, row, rows, start_q, queries, HEAD_DIM, WIDTH, OWN)


@_timed
@triton.jit(do_not_specialize=_SIZES)
def _backward_key_value(
    query,
    key,
    value,
    grad,
    grad_key,
    grad_value,
    masked,
    seed,
    dropout,
    scale,
    rows,
    heads,
    queries,
    keys,
    reach,
    HAS_MASKED: tl.constexpr,
    DROPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    OWN: tl.constexpr,
    OTHER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(keys, OWN)
    row = tl.program_id(0) // blocks
    start_k = tl.program_id(0) % blocks * OWN
    k_at = start_k + tl.arange(0, OWN)[:, None]
    k = _load(key, row, rows, start_k, keys, HEAD_DIM, WIDTH, OWN)
    v = _load(value, row, rows, start_k, keys, HEAD_DIM, WIDTH, OWN)
    total_k = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    total_v = tl.zeros([OWN, WIDTH], dtype=tl.float32)
    first = tl.maximum(0, start_k - reach) // OTHER * OTHER
    for start_q in tl.range(first, queries, OTHER):
        q_at = start_q + tl.arange(0, OTHER)[None, :]
        q = _load(query, row, rows, start_q, queries, HEAD_DIM, WIDTH, OTHER)
        g = _load(grad, row, rows, start_q, queries, HEAD_DIM, WIDTH, OTHER)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        attended = _attended(scores, q_at, k_at, masked, row, heads, keys, reach, HAS_MASKED)
        if DROPS:
            attended &= _kept(seed, row, q_at, k_at, dropout)
        weights = tl.where(attended, scores, 0.0).to(g.dtype)
        total_v = tl.dot(weights, g, total_v, input_precision=PRECISION)
        grad_weights = tl.dot(v.to(g.dtype), tl.trans(g), input_precision=PRECISION)
        grad_scores = tl.where(attended, grad_weights, 0.0).to(g.dtype)
        total_k = tl.dot(grad_scores, q.to(g.dtype), total_k, input_precision=PRECISION)
    _store(total_k * scale, grad_key, row, rows, start_k, keys, HEAD_DIM, WIDTH, OWN)
    _store(total_v * scale, grad_value, row, rows, start_k, keys, HEAD_DIM, WIDTH, OWN)
