"""The choice of a kernel for attention, and its arguments; here any device counts as a GPU."""

import sys

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

from attention_cases import INF
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.ops import backends, gpu
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import entmax, relu
from fairseq_sparse.ops.gpu import attention
from fairseq_sparse.ops.masks import assert_causal, causal_mask
from op_cases import attention_options, chosen_attention, logits

BUFFER = torch.full((1024, 1024), -INF).triu(1)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(backends, "_device_of", lambda tensors: "gpu")
    attention_alone = {"attention": backends._ON_GPU["attention"]}
    monkeypatch.setitem(backends._RULES, "gpu", attention_alone)
    monkeypatch.setattr(backends, "runs_kernels", lambda device: True)
    with backends.use("gpu"):
        yield


class AdaSplash:
    """A stand-in for adasplash 0.2.2 with the same results and the same requirements."""

    def __init__(self):
        self.calls = []

    def adasplash_v1(self, q, k, v, alpha, is_causal, niter):
        assert q.shape == k.shape == v.shape and niter == 10
        length, head_dim = q.shape[2:]
        assert length.bit_count() == 1 and head_dim in (16, 32, 64, 128, 256)
        assert all(x.is_contiguous() for x in (q, k, v))
        self.calls.append((alpha, is_causal))
        scores = q @ k.transpose(-2, -1) / head_dim**0.5
        if is_causal:
            scores = scores + torch.full_like(scores, -INF).triu(1)
        return entmax(scores, alpha) @ v


@pytest.fixture
def adasplash(monkeypatch):
    package = AdaSplash()
    monkeypatch.setattr(gpu, "adasplash", lambda: package)
    monkeypatch.setattr(attention, "adasplash", lambda: package)
    return package


def inputs(queries=600, keys=600, heads=1, head_dim=16, dtype=torch.float32):
    lengths = (queries, keys, keys)
    return [logits(1, heads, length, head_dim, dtype=dtype) for length in lengths]


def arguments(weights, *tensors, bias=None, causal=None, **options):
    causal = bias is not None if causal is None else causal
    return *tensors, attention_options(weights, bias=bias, causal=causal, **options)


def chosen(*given, **options):
    """Return whether an attention goes to a kernel."""
    *tensors, options = arguments(*given, **options)
    return chosen_attention(*tensors, **options._asdict()) is gpu


def future(queries, keys):
    """Return a causal mask as fairseq does: a part of a larger mask that it keeps."""
    return BUFFER[:queries, :keys]


@pytest.fixture
def rela(monkeypatch):
    """The recorded arguments of calls of the kernel for rectified weights."""
    calls = []
    monkeypatch.setattr(attention, "rela_attention", lambda *x: calls.append(x[3:]))
    return calls


def test_rectified_attention_has_a_kernel(rela):
    masked = torch.rand(1, 40) < 0.5
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = inputs(30, 40, dtype=dtype)
        for bias in (None, future(30, 40)):
            options = {"masked": masked, "bias": bias, "dropout": 0.1, "widen": True}
            assert chosen(relu, *tensors, **options)
            gpu.attend(*arguments(relu, *tensors, **options))
            assert rela.pop() == (masked, bias is not None, 0.1, torch.float32)
        gpu.attend(*arguments(relu, *tensors))
        assert rela.pop()[3] == dtype


def test_its_kinds_are_those_that_take_the_positive_part():
    kinds = {name for name, kind in ATTENTION_KINDS.items() if chosen(kind.weights, *inputs())}
    assert kinds == {"relu", "relu_rmsnorm", "rela_i", "rela_g", "rela_g_layernorm"}


@pytest.mark.parametrize(
    "case",
    [
        {"queries": 1},
        {"dtype": torch.float64},
        {"head_dim": 24},
        {"head_dim": 144},
    ],
    ids=str,
)
def test_what_the_kernel_does_not_take(case):
    assert not chosen(relu, *inputs(**case))


def test_values_of_another_width_have_no_kernel():
    query, key, _ = inputs()
    assert not chosen(relu, query, key, logits(1, 1, 600, 32, dtype=torch.float32))


def test_cpus_have_no_kernel(monkeypatch):
    monkeypatch.undo()
    assert not chosen(relu, *inputs())


def test_a_mask_that_is_not_said_to_be_causal_has_no_kernel():
    assert not chosen(relu, *inputs(30, 40), bias=torch.randn(30, 40), causal=False)
    assert not chosen(relu, *inputs(30, 40), bias=future(30, 40), causal=False)


def test_weights_that_are_asked_for_come_from_no_kernel(adasplash):
    _, weights = attend(*inputs(), ATTENTION_KINDS["entmax15"].weights, need_weights=True)
    assert weights.shape == (1, 1, 600, 600) and not adasplash.calls


@pytest.mark.parametrize("hides", [-INF, -1e4, -1e8])
def test_a_causal_mask_is_what_it_is_said_to_be(hides):
    mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).bool().triu(1), hides)
    for bias in (mask[:4, :4], mask[:4, :6], mask[:6, :3], causal_mask(4, 6, mask)):
        assert_causal(bias)


def test_another_mask_than_the_causal_one_is_refused():
    """The host does not read the mask: a GPU fails later, a CPU at once."""
    causal = torch.full((6, 6), -INF).triu(1)
    more, less, slope = (causal.clone() for _ in range(3))
    more[3, 1], less[1, 3], slope[3, 1] = -INF, 0, -0.5
    for mask in (more, less, slope, causal.t(), torch.zeros(6, 6), causal[1:, :]):
        with pytest.raises(RuntimeError, match="mask is not causal"):
            gpu.attend(*arguments(relu, *inputs(*mask.shape), bias=mask))


def test_a_mask_is_not_read_by_the_host(rela):
    bias = torch.full((4, 4), -INF, device="meta")
    assert chosen(relu, *inputs(4, 4), bias=bias)
    gpu.attend(*arguments(relu, *inputs(4, 4), bias=bias))
    assert rela


@pytest.mark.parametrize("kind, alpha", [("entmax15", 1.5), ("sparsemax", 2.0)])
@pytest.mark.parametrize("causal", [False, True])
def test_entmax_of_long_inputs_goes_to_adasplash(kind, alpha, causal, adasplash):
    length = 600 if causal else 512
    bias = future(length, length) if causal else None
    tensors, weights = inputs(length, length), ATTENTION_KINDS[kind].weights
    expected, _ = attend(*tensors, weights, bias=bias, need_weights=True)
    for given in (bias, None):
        actual, _ = attend(*tensors, weights, bias=given, causal=causal)
        assert adasplash.calls.pop() == (alpha, causal)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "case",
    [
        {"queries": 256, "keys": 256},
        {"queries": 600, "keys": 600},
        {"queries": 512, "keys": 1024},
        {"queries": 512, "keys": 512, "head_dim": 48},
        {"queries": 512, "keys": 512, "dtype": torch.float64},
    ],
    ids=str,
)
def test_what_adasplash_does_not_take(case, adasplash):
    assert not chosen(ATTENTION_KINDS["entmax15"].weights, *inputs(**case))


def test_adasplash_knows_no_padding_no_dropout_and_no_other_alpha(adasplash):
    tensors, entmax15 = inputs(512, 512), ATTENTION_KINDS["entmax15"].weights
    assert chosen(entmax15, *tensors)
    assert not chosen(entmax15, *tensors, masked=torch.rand(1, 512) < 0.5)
    assert not chosen(entmax15, *tensors, dropout=0.1)
    for alpha in (2.5, 1.0, float("nan")):
        assert not chosen(entmax.with_alpha(alpha), *tensors)


def test_without_adasplash_entmax_has_no_kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "adasplash", None)
    monkeypatch.setattr(gpu, "adasplash", attention.adasplash.__wrapped__)
    assert not chosen(ATTENTION_KINDS["entmax15"].weights, *inputs(512, 512))


def test_a_learned_alpha_has_no_kernel(adasplash):
    attend(*inputs(512, 512), entmax, alpha=torch.full((1, 1, 1), 1.5))
    assert not adasplash.calls
