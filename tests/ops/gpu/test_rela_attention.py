"""The kernels of rectified attention: values and gradients are those of the definition.

Without a GPU they run in Triton's interpreter, on tensors of the CPU.
"""

import itertools

import numpy as np
import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import triton
import triton.language as tl

import references
from attention_cases import INF, causal
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import relu
from fairseq_sparse.ops.gpu import rela_attention as kernels
from fairseq_sparse.ops.gpu.rela_attention import rela_attention
from op_cases import HALF_DTYPES, logits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HEADS = 2, 2
# Numbers of queries and keys: below and above a tile, and never a multiple of it.
LENGTHS = ((5, 7), (34, 40), (40, 33))
each_length = pytest.mark.parametrize("lengths", LENGTHS, ids=str)


def inputs(queries, keys, head_dim=16, dtype=torch.float32, scale=1.0):
    """Return query, key, value and the gradient of the result."""
    return [
        logits(BATCH, HEADS, length, head_dim, dtype=dtype, scale=scale).to(DEVICE)
        for length in (queries, keys, keys, queries)
    ]


def hidden_keys(keys):
    """Mask some keys of one sentence and all keys of the other."""
    masked = torch.rand(BATCH, keys, device=DEVICE) < 0.4
    masked[1] = True
    return masked


def values_and_gradients(attention, query, key, value, grad):
    """Return the result and the gradients of query, key and value, as one vector."""
    tensors = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    result = attention(*tensors)
    gradients = torch.autograd.grad(result, tensors, grad.to(result.dtype))
    return torch.cat([x.detach().flatten() for x in (result, *gradients)])


def dense(*tensors, factor=1.0):
    """Return the same in fp64, from all scores at once; each weight is scaled by ``factor``."""

    def attention(query, key, value):
        return (query @ key.transpose(-2, -1)).relu() * factor @ value

    return values_and_gradients(attention, *(x.double() for x in tensors))


def relative_error(actual, exact):
    return float((actual.double() - exact).norm() / exact.norm())


def assert_agrees(tensors, bias, **options):
    """Compare with the naive reference, which takes one query at a time and masks as ``bias``."""
    shape = (BATCH, HEADS, tensors[0].size(2), tensors[1].size(2))

    def naive(*tensors):
        def attention(query, key, value):
            return references.attention(query, key, value, "relu", torch.zeros(shape) + bias)[0]

        return values_and_gradients(attention, *tensors)

    actual = values_and_gradients(lambda *qkv: rela_attention(*qkv, **options), *tensors)
    references.assert_close_to_naive(actual.cpu(), naive, *(x.cpu() for x in tensors), slack=4)


@each_length
def test_agrees_with_one_query_at_a_time(lengths):
    assert_agrees(inputs(*lengths), 0)


@each_length
def test_causal_mask(lengths):
    assert_agrees(inputs(*lengths), causal(*lengths), causal=True)


@each_length
def test_padding_and_causal_mask(lengths):
    masked = hidden_keys(lengths[1])
    padding = torch.zeros(masked.shape).masked_fill(masked.cpu(), -INF)[:, None, None]
    assert_agrees(inputs(*lengths), padding, masked=masked)
    assert_agrees(inputs(*lengths), padding + causal(*lengths), masked=masked, causal=True)


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 128])
def test_size_of_a_head(head_dim):
    assert_agrees(inputs(9, 35, head_dim), 0)


def test_any_layout_in_memory():
    """Layouts may differ from fairseq's, and tensors may share memory."""
    query, key, _, grad = inputs(9, 35)
    key = key.transpose(0, 2).contiguous().transpose(0, 2)
    assert_agrees([query, key, key[:, :1].expand(-1, HEADS, -1, -1), grad], 0)


def test_null_attention_is_exactly_zero_with_zero_gradients():
    query, key, value, grad = inputs(40, 70)
    result = values_and_gradients(rela_attention, query.abs(), -key.abs(), value, grad)
    assert torch.equal(result, torch.zeros_like(result))


def test_a_query_without_keys_is_exactly_zero_with_finite_gradients():
    tensors, masked = inputs(40, 70), hidden_keys(70)

    def attention(query, key, value):
        result = rela_attention(query, key, value, masked=masked, causal=True)
        assert (result[1] == 0).all() and (result[0] != 0).any()
        return result

    assert torch.isfinite(values_and_gradients(attention, *tensors)).all()


def test_a_hidden_key_does_not_matter():
    (query, key, value, _), masked = inputs(40, 70), hidden_keys(70)
    expected = rela_attention(query, key, value, masked)
    key = key.masked_fill(masked[:, None, :, None], float("nan"))
    assert torch.equal(rela_attention(query, key, value, masked), expected)


def test_nan_stays_nan():
    query, key, value, _ = inputs(40, 70)
    query[0, 1, 2, 3] = float("nan")
    blank = torch.isnan(rela_attention(query, key, value))
    assert blank[0, 1, 2].all() and blank.sum() == blank.size(-1)


@pytest.mark.parametrize("queries, keys", [(0, 5), (5, 0)])
def test_nothing_to_attend_with_or_to(queries, keys):
    result = values_and_gradients(rela_attention, *inputs(queries, keys))
    assert torch.equal(result, torch.zeros_like(result))


def weights_after_dropout(query, key, dropout, **options):
    """Return the weights: with the identity as values, they are the result."""
    value = torch.eye(key.size(2), device=DEVICE).expand(BATCH, HEADS, -1, -1)
    return rela_attention(query, key, value, dropout=dropout, **options)


def test_dropout_drops_weights_and_scales_the_others():
    query, key, *_ = inputs(70, 48, head_dim=48)
    weights = weights_after_dropout(query, key, dropout=0.0)
    dropped = weights_after_dropout(query, key, dropout=0.25)
    kept, positive = dropped != 0, weights > 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    share = kept.sum((-2, -1)) / positive.sum((-2, -1))
    deviation = (0.75 * 0.25 / positive.sum((-2, -1))).sqrt()
    assert ((share - 0.75).abs() < 5 * deviation).all()
    assert (weights_after_dropout(query, key, dropout=1.0) == 0).all()


def test_each_head_and_sentence_drops_others():
    query, key, *_ = inputs(70, 48, head_dim=48)
    kept = (weights_after_dropout(query.abs(), key.abs(), dropout=0.5) != 0).flatten(0, 1)
    for one, other in itertools.combinations(kept, 2):
        assert 0.4 < (one == other).double().mean() < 0.6


def test_dropout_is_drawn_by_the_generator_of_torch():
    query, key, *_ = inputs(40, 48, head_dim=48)
    torch.manual_seed(7)
    first, second = (weights_after_dropout(query, key, dropout=0.5) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(weights_after_dropout(query, key, dropout=0.5), first)
    assert not torch.equal(first, second)


@triton.jit
def _kept_of_keys(seed, query, kept, SIZE: tl.constexpr):
    key = tl.arange(0, SIZE)
    tl.store(kept + key, kernels._kept(seed, 0, query, key, 0.5).to(tl.int32))


def test_dropout_differs_between_places_that_are_two_to_the_32_apart():
    """With 65,536 keys, query * keys + key in 32 bits is the same for queries 0 and 65,536."""
    seed = torch.tensor([7], device=DEVICE)
    kept = torch.zeros(3, 1024, dtype=torch.int32, device=DEVICE)
    for row, query in enumerate((0, 1, 65536)):
        _kept_of_keys[(1,)](seed, query, kept[row], SIZE=1024)
    for one, other in itertools.combinations(kept, 2):
        assert 0.4 < (one == other).double().mean() < 0.6


def _product_in_order(a, b, dtype):
    """Return the product of matrices; BLAS adds up in an order that depends on their sizes."""
    return (a[..., None].astype(dtype) * b[..., None, :, :]).sum(axis=-2)


def test_timing_does_not_change_the_result(monkeypatch):
    """The order of a sum does not depend on which number of own positions is the fastest."""
    monkeypatch.setattr(np, "matmul", _product_in_order)  # of Triton's interpreter
    tensors = inputs(130, 70, dtype=torch.float16)
    monkeypatch.setattr(kernels, "_LONG", 0)
    by_own = {timed.kwargs["OWN"]: timed for timed in kernels._TIMED}
    assert all(timed.kwargs.keys() == {"OWN"} for timed in kernels._TIMED) and len(by_own) > 1
    results = []
    for timed in by_own.values():
        monkeypatch.setattr(kernels, "_configurations", lambda *x, timed=timed: [timed])
        results.append(values_and_gradients(rela_attention, *tensors))
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_knows_what_was_dropped(is_causal):
    tensors = inputs(70, 48, head_dim=48)
    options = {"dropout": 0.25, "causal": is_causal}
    torch.manual_seed(7)
    kept = weights_after_dropout(*tensors[:2], **options) != 0
    torch.manual_seed(7)
    actual = values_and_gradients(lambda *qkv: rela_attention(*qkv, **options), *tensors)
    assert relative_error(actual, dense(*tensors, factor=kept / 0.75)) < 1e-6


@pytest.mark.parametrize("output", [None, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_half_precision_is_summed_in_fp32(dtype, output):
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bf16 as if it were integers")
    tensors = inputs(40, 70, dtype=dtype)

    def attention(*qkv):
        result = rela_attention(*qkv, causal=True, output_dtype=output)
        assert result.dtype == (output or dtype)
        return result

    exact = dense(*tensors, factor=(causal(40, 70) == 0).to(DEVICE))
    assert relative_error(values_and_gradients(attention, *tensors), exact) < torch.finfo(dtype).eps


def test_in_fp32_a_large_sum_does_not_overflow_nor_its_small_gradient_vanish():
    """The norm that follows makes the gradient of a large sum small."""
    *tensors, grad = inputs(40, 70, dtype=torch.float16, scale=30.0)
    tensors.append(grad.float() * 1e-8)

    def attention(*qkv):
        return rela_attention(*qkv, output_dtype=torch.float32)

    actual, exact = values_and_gradients(attention, *tensors), dense(*tensors)
    sums = BATCH * HEADS * 40 * 16
    assert exact[:sums].abs().max() > torch.finfo(torch.float16).max
    for part in (slice(sums), slice(sums, None)):
        assert relative_error(actual[part], exact[part]) < torch.finfo(torch.float16).eps


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", (torch.float32, *HALF_DTYPES), ids=str)
@pytest.mark.parametrize("lengths", [(25, 30), (200, 150), (1000, 1500)], ids=str)
def test_on_a_gpu(lengths, dtype, head_dim, is_causal):
    tensors = inputs(*lengths, head_dim, dtype)
    masked = hidden_keys(lengths[1])
    tensors[0] /= head_dim**0.5
    buffer = torch.full((2000, 2000), -INF, device=DEVICE, dtype=dtype).triu(1)
    bias = buffer[: lengths[0], : lengths[1]] if is_causal else None

    def attention(*qkv):
        return attend(*qkv, relu, masked=masked, bias=bias, sums_to_one=False)[0]

    seen = ~masked[:, None, None].expand(BATCH, HEADS, *lengths)
    exact = dense(*tensors, factor=seen if bias is None else seen & (bias == 0))
    tolerance = 4e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert relative_error(values_and_gradients(attention, *tensors), exact) < tolerance


@pytest.mark.gpu
def test_memory_on_a_gpu_does_not_grow_with_the_square_of_the_length():
    tensors = [x.half().requires_grad_() for x in inputs(8192, 8192, 64)[:3]]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(*tensors, relu, sums_to_one=False, dropout=0.1)[0].sum().backward()
    scores = BATCH * HEADS * 8192**2
    assert torch.cuda.max_memory_allocated() - before < scores / 4


def test_a_mask_that_is_changed_before_the_gradient_is_refused():
    query, key, value, grad = inputs(5, 7)
    masked = torch.zeros(BATCH, 7, dtype=torch.bool, device=DEVICE)
    result = rela_attention(query.requires_grad_(), key, value, masked)
    masked[0, 3] = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward(grad)
