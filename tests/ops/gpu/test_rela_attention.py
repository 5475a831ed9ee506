"""The kernels of rectified attention: values and gradients are those of the definition.

Without a GPU they run in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import references
from attention_cases import INF, causal
from fairseq_sparse.ops import backends, operators
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import relu
from fairseq_sparse.ops.gpu import rela_attention as kernels
from fairseq_sparse.ops.gpu import verification
from fairseq_sparse.ops.reference.dropout import keep_factors
from numerics.interpreted_gpu import InterpretedGPU
from op_cases import HALF_DTYPES, logits

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HEADS = 2, 2
# Numbers of queries and keys: below and above a tile, and never a multiple of it.
LENGTHS = ((5, 7), (34, 40), (40, 33))


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


def rela_attention(query, key, value, masked=None, causal=False, dropout=0.0, seed=7):
    """Return the weighted sums, with their gradients."""
    return _Attention.apply(query, key, value, masked, causal, dropout, seed)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, masked, causal, dropout, seed):
        seed = torch.tensor(seed, device="cpu")
        options = (masked, None, seed if dropout > 0 else None)
        numbers = (0.0, 1.0, causal, dropout)
        context, solution = kernels.attention(query, key, value, *options, *numbers)
        ctx.arguments = (query, key, value, *options, solution, *numbers)
        return context.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.permute(2, 0, 1, 3)
        grad_query, *grads = kernels.attention_backward(grad, *ctx.arguments)
        return grad_query.permute(1, 2, 0, 3), *grads, *[None] * 4


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


@pytest.mark.parametrize("has_masked", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_agrees_with_one_query_at_a_time(lengths, is_causal, has_masked):
    masked = hidden_keys(lengths[1]) if has_masked else None
    bias = causal(*lengths) if is_causal else 0
    if has_masked:
        bias = bias + torch.zeros(masked.shape).masked_fill(masked.cpu(), -INF)[:, None, None]
    assert_agrees(inputs(*lengths), bias, masked=masked, causal=is_causal)


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


@pytest.mark.parametrize("keys", [48, 33])
def test_dropout_draws_the_numbers_of_the_reference(keys):
    """A forward pass and its gradient need not be computed by the same backend."""
    query, key = inputs(40, keys, head_dim=48)[:2]
    value = torch.eye(keys, 48, device=DEVICE).expand(BATCH, HEADS, -1, -1)  # so the sums are A
    weights = rela_attention(query, key, value)[..., :keys]
    places = torch.arange(weights.numel(), device=DEVICE).view(weights.shape)
    for seed in (7, (1 << 61) + 5):
        dropped = rela_attention(query, key, value, dropout=0.3, seed=seed)[..., :keys]
        factors = keep_factors(places, 0.3, torch.tensor(seed), torch.float32)
        torch.testing.assert_close(dropped, weights * factors)


@pytest.mark.parametrize("keys", [48, 33])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_knows_what_was_dropped(is_causal, keys):
    tensors = inputs(70, keys, head_dim=48)
    options = {"dropout": 0.25, "causal": is_causal}
    value = torch.eye(keys, 48, device=DEVICE).expand(BATCH, HEADS, -1, -1)
    kept = rela_attention(*tensors[:2], value, **options)[..., :keys] != 0
    actual = values_and_gradients(lambda *qkv: rela_attention(*qkv, **options), *tensors)
    assert relative_error(actual, dense(*tensors, factor=kept / 0.75)) < 1e-6


@pytest.mark.parametrize("lengths", [(20, 31), (90, 70), (70, 90)], ids=str)  # of both tiles
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_half_precision_is_summed_in_fp32(dtype, lengths):
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bf16 as if it were integers")
    tensors = inputs(*lengths, dtype=dtype)

    def attention(*qkv):
        result = rela_attention(*qkv, causal=True)
        assert result.dtype == (torch.float32 if dtype == torch.float16 else dtype)
        return result

    exact = dense(*tensors, factor=(causal(*lengths) == 0).to(DEVICE))
    assert relative_error(values_and_gradients(attention, *tensors), exact) < torch.finfo(dtype).eps


def test_in_fp32_a_large_sum_does_not_overflow_nor_its_small_gradient_vanish():
    """The norm that follows makes the gradient of a large sum small."""
    *tensors, grad = inputs(40, 70, dtype=torch.float16, scale=30.0)
    tensors.append(grad.float() * 1e-8)

    actual, exact = values_and_gradients(rela_attention, *tensors), dense(*tensors)
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


@pytest.mark.parametrize("has_masked, is_causal, drops", [(0, 0, 0), (0, 1, 1), (1, 1, 0)])
@pytest.mark.parametrize("lengths", [(31, 28), (90, 69)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_kernels_pass_the_comparison_at_their_first_use(
    dtype, lengths, has_masked, is_causal, drops, caplog, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAIRSEQ_SPARSE_CACHE", str(tmp_path))
    monkeypatch.setattr(verification, "_verdicts", {})
    *tensors, grad = inputs(*lengths, dtype=dtype)
    masked = hidden_keys(lengths[1]) if has_masked else None
    arguments = (*tensors, masked, None, None)
    options = (0.0, 1.0, bool(is_causal), 0.1 * drops)
    assert kernels.fits_attention(*arguments, *options), caplog.text
    assert kernels.fits_attention_backward(grad, *arguments, None, *options), caplog.text
    assert len(verification._verdicts) == 2


@pytest.mark.parametrize("need_weights", [False, True])
def test_attend_takes_this_road(need_weights, monkeypatch):
    """Values and gradients, from the public function to the kernels."""
    condition = ("attention", DEVICE.replace("cuda", "gpu"))
    monkeypatch.setitem(operators._conditions, condition, kernels.fits_attention)
    monkeypatch.setattr(kernels, "verified", lambda *given: True)
    tensors = inputs(30, 40)

    def attention(*qkv):
        options = {"masked": masked, "causal": True, "scale": 0.3, "need_weights": need_weights}
        return attend(*qkv, relu, sums_to_one=False, **options)[0]

    masked = hidden_keys(40)
    with InterpretedGPU() as mode:
        found = values_and_gradients(attention, *tensors)
    assert mode.used == (set() if need_weights else {"attention", "attention_backward"})
    with backends.use("reference"):
        expected = values_and_gradients(attention, *tensors)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def attend_with(bias, causal=True):
    *tensors, _ = inputs(*bias.shape)
    return kernels.attention(*tensors, None, bias.to(DEVICE), None, 0.0, 1.0, causal, 0.0)[0]


def test_another_mask_than_the_causal_one_is_refused():
    """The host does not read the mask: a GPU fails later, a CPU at once."""
    right = torch.full((6, 6), -INF).triu(1)
    attend_with(right)
    more, less = right.clone(), right.clone()
    more[3, 1], less[1, 3] = -INF, 0
    for mask in (more, less, right.t(), torch.zeros(6, 6), right[1:, :]):
        with pytest.raises(RuntimeError, match="mask is not causal"):
            attend_with(mask)


def test_a_causal_mask_is_read_once(monkeypatch):
    """A decoder's layers get parts of one buffer, of the same size in each batch."""
    read = []
    monkeypatch.setattr(kernels, "assert_causal", lambda bias: read.append(bias.shape))
    buffer = torch.full((9, 9), -INF, device=DEVICE).triu(1)
    for _ in range(3):
        attend_with(buffer[:6, :6])
    assert read == [(6, 6)]
    attend_with(buffer[:5, :5])
    buffer[0, 0] = 0  # changed, though not in effect
    attend_with(buffer[:5, :5])
    attend_with(buffer.clone()[:5, :5])
    assert read == [(6, 6)] + [(5, 5)] * 3


def test_what_the_kernels_leave_to_the_reference(monkeypatch):
    monkeypatch.setattr(kernels, "verified", lambda *given: True)

    def fits(*lengths, bias=None, alpha=0.0, causal=False, dropout=0.0, **options):
        *tensors, _ = inputs(*(lengths or (30, 40)), **options)
        return kernels.fits_attention(*tensors, None, bias, None, alpha, 1.0, causal, dropout)

    mask = torch.zeros(30, 40)
    assert (
        fits() and fits(dtype=torch.float16) and fits(bias=mask, causal=True) and fits(dropout=0.9)
    )
    assert not fits(1, 40) and not fits(alpha=1.5) and not fits(bias=mask) and not fits(dropout=1.0)
    assert not fits(dtype=torch.float64) and not fits(head_dim=24) and not fits(head_dim=144)
    query, key, value, _ = inputs(30, 40)
    rest = (None, None, None, 0.0, 1.0, False, 0.0)
    assert not kernels.fits_attention(query, key, value[..., :8], *rest)
    assert not kernels.fits_attention(query, key, value.half(), *rest)
