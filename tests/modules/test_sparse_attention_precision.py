"""Attention in half precision and under autocast, on a CPU."""

import copy

import pytest
import torch

from attention_cases import (
    CASES,
    INF,
    NORMALISED,
    RECTIFIED,
    assert_finite_gradients,
    assert_within_rounding,
    causal,
    module,
    self_attention,
    sequence,
)
from fairseq_sparse.ops.reference import attention as reference
from op_cases import HALF_DTYPES
from references import moved_by_one_rounding

WIDTH, KEYS = 16, 1000
FP32 = torch.float32
each_case = pytest.mark.parametrize("case", CASES)
in_parts_too = pytest.mark.parametrize("part", [1 << 20, 4000], ids=["whole", "parts"])


def cpu_has(dtype):
    """Return whether this torch can multiply and differentiate in a dtype on a CPU."""
    try:
        x = torch.ones(2, 2, 2, dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x @ x, x[0], x[0, 0]).sum().backward()
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        return False
    return True


each_half_dtype = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(
            dtype, marks=pytest.mark.skipif(not cpu_has(dtype), reason="torch lacks it on a CPU")
        )
        for dtype in HALF_DTYPES
    ],
    ids=str,
)


def in_two_precisions(layer, dtype):
    """Return a copy in ``dtype``, and one in fp32 with the same rounded parameters."""
    rounded = copy.deepcopy(layer).to(dtype)
    return rounded, copy.deepcopy(rounded).float()


@each_half_dtype
@each_case
def test_agrees_with_fp32_within_the_rounding(case, dtype):
    half, single = in_two_precisions(self_attention(case, width=WIDTH), dtype)
    x = sequence(20, 3, WIDTH, dtype=dtype)
    mask = causal(20)
    output, weights = half(x, x, x, attn_mask=mask.to(dtype))
    expected, expected_weights = single(*(3 * [x.float()]), attn_mask=mask)
    assert output.dtype == dtype and weights.dtype == FP32
    assert_within_rounding(output, expected, dtype)
    assert_within_rounding(weights, expected_weights, dtype)


def large_attention(case):
    """Return a layer and inputs: 1,000 keys, largest scores of 1e3 to 2e4, values of about 30."""
    layer = module(case, dtype=FP32, width=WIDTH)
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj):
            projection.weight.copy_(torch.eye(WIDTH))
            projection.bias.zero_()
        for parameter in layer.query_scale.parameters() if layer.query_scale else ():
            parameter.zero_()
    query, key = (sequence(n, 2, WIDTH, dtype=FP32, scale=40.0) for n in (8, KEYS))
    value = sequence(KEYS, 2, WIDTH, dtype=FP32, scale=30.0)
    split = (x.unflatten(-1, (2, -1)).permute(1, 2, 0, 3) for x in (query, key))
    largest = (next(split) @ next(split).mT / (WIDTH / 2) ** 0.5).abs().amax(-1)
    assert 1e3 < largest.min() and largest.max() < 2e4
    return layer.train(), query, key, value


@pytest.mark.pairwise
@in_parts_too
@each_half_dtype
# Without a norm, the gradients of these exceed the range of fp16, as do the sums of alpha_relu.
@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in ("relu", "sigmoid", "alpha_relu")]
)
def test_many_large_scores_do_not_overflow(case, dtype, part, monkeypatch):
    """In fp16 their weighted sums would overflow by far."""
    monkeypatch.setitem(reference._CHUNK_SCORES, "cpu", part)
    layer, *inputs = large_attention(case)
    half, single = in_two_precisions(layer, dtype)
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    grad = sequence(8, 2, WIDTH, dtype=dtype, scale=0.1)  # those of the scores fit into fp16
    if case in RECTIFIED:
        assert half(*inputs)[1].sum(-1).max() > 65504
    output, _ = half(*inputs, need_weights=False)
    output.backward(grad)
    assert torch.isfinite(output).all()
    assert_finite_gradients(*inputs, *half.parameters())
    # A gate jumps where a sum of 1e5 changes its sign by rounding.
    if case not in ("relu_rmsnorm", "rela_i"):
        return
    expected, _ = single(*(x.detach().float() for x in inputs))
    expected.backward(grad.float())
    other = copy.deepcopy(single)
    other.zero_grad()
    moved, _ = other(*(moved_by_one_rounding(x.detach()).float() for x in inputs))
    moved.backward(grad.float())
    assert_within_rounding(output, expected, dtype, moved=moved)
    for name in ("v_proj", "out_proj"):  # fp16 cannot represent the small gradients of the scores
        actual, exact, moved = (getattr(m, name).weight.grad for m in (half, single, other))
        assert_within_rounding(actual, exact, dtype, moved=moved)


@each_half_dtype
@pytest.mark.parametrize("case", NORMALISED)
def test_a_query_that_attends_to_nothing_has_finite_gradients(case, dtype):
    """The norm multiplies its gradient by 10,000, and fairseq scales the loss by 128."""
    layer = self_attention(case, width=WIDTH).train()
    with torch.no_grad():
        layer.q_proj.bias.zero_()
        layer.k_proj.bias.zero_()
        layer.k_proj.weight.copy_(-layer.q_proj.weight)  # no query attends to itself
    layer = layer.to(dtype)
    x = sequence(20, 3, WIDTH, dtype=dtype)
    grad = 128 * sequence(20, 3, WIDTH, dtype=dtype)
    grad[1:] = 0  # the first query sees only itself; those of the others may exceed fp16's range
    layer(x, x, x, attn_mask=causal(20), need_weights=False)[0].backward(grad)
    assert_finite_gradients(*layer.parameters())


@each_half_dtype
@pytest.mark.parametrize("dtype_of_mask", ["its own", "fp32"])
def test_the_least_number_that_fairseq_writes_hides(dtype, dtype_of_mask):
    """bf16 cannot represent -1e4 exactly."""
    layer = self_attention("rela_g_leaky_relu").to(dtype)
    x = sequence(dtype=dtype)
    mask_dtype = dtype if dtype_of_mask == "its own" else FP32
    written, meant = (
        layer(x, x, x, attn_mask=causal(5, hides=hides).to(mask_dtype), need_head_weights=True)
        for hides in (-1e4, -INF)
    )
    assert (written[1].triu(1) == 0).all()
    assert torch.equal(written[0], meant[0]) and torch.equal(written[1], meant[1])


@each_case
def test_autocast(case):
    layer = self_attention(case, dtype=FP32, width=WIDTH).train()
    x = sequence(20, 3, WIDTH, dtype=FP32).requires_grad_()
    mask = causal(20)
    mask[0, :5] = 0  # softpick's weight of a single key jumps where its score is 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = layer(x, x, x, attn_mask=mask)
        without_weights, _ = layer(x, x, x, attn_mask=mask, need_weights=False)
    assert weights.dtype == FP32
    assert torch.equal(output, without_weights)
    expected, expected_weights = layer(x, x, x, attn_mask=mask)
    moved = moved_by_one_rounding(x.detach().bfloat16()).float()
    moved_output, moved_weights = layer(moved, moved, moved, attn_mask=mask)
    assert_within_rounding(output, expected, torch.bfloat16, moved=moved_output)
    assert_within_rounding(weights, expected_weights, torch.bfloat16, moved=moved_weights)
    output.float().square().sum().backward()
    assert_finite_gradients(x, *layer.parameters())


@in_parts_too
@pytest.mark.parametrize("case", NORMALISED)
def test_autocast_to_fp16_with_many_large_scores(case, part, monkeypatch):
    """With --amp, even a product of fp32 tensors is computed in fp16."""
    monkeypatch.setitem(reference._CHUNK_SCORES, "cpu", part)
    layer, *inputs = large_attention(case)
    inputs = [x.requires_grad_() for x in inputs]
    with torch.autocast("cpu", dtype=torch.float16):
        output, _ = layer(*inputs, need_weights=False)
    expected, _ = layer(*inputs, need_weights=False)
    halves = (moved_by_one_rounding(x.detach().half()).float() for x in inputs)
    moved, _ = layer(*halves, need_weights=False)
    assert_within_rounding(output, expected, torch.float16, moved=moved)
    output.backward(torch.randn_like(output) / 10)  # those of the scores fit into fp16
    assert_finite_gradients(*inputs, *layer.parameters())
