"""Any shape, values, layout, dtype and number of threads: the kernels give what fp64 gives."""

from contextlib import contextmanager

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    attend,
    backends,
    entmax,
    entmax_loss,
    gated_rms_norm,
    linear_entmax_loss,
)
from op_cases import attend_by_kernels_at_any_size

# Tolerance for the rounding to the values' dtype and in fp32, in which the kernels compute.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}

sizes = st.one_of(
    st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 128, 129, 255, 256, 257, 600])
)
alphas = st.one_of(st.sampled_from([1.5, 2.0, 1.05]), st.floats(1.05, 2))
seeds = st.integers(0, 1 << 32)
dtypes = st.sampled_from(list(TOLERANCE))


def draw_values(seed, shape, kind):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if kind == "ties":
        return (x * 2).round() / 2
    if kind == "large":
        return x * 1e4
    if kind == "masked":
        return x.masked_fill(torch.rand(shape, generator=generator) < 0.5, -float("inf"))
    if kind == "constant":
        return torch.zeros(shape)
    return x * 1.5


def same_values(x, layout):
    """Return the same numbers in another memory layout."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "strided":
        return torch.stack([x, torch.full_like(x, 7)], -1)[..., 0]
    if layout == "offset":
        return torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)
    return x


kinds = st.sampled_from(["normal", "ties", "large", "masked", "constant"])
layouts = st.sampled_from(["plain", "transposed", "strided", "offset"])


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_agrees(op, inputs, layout, number):
    """Assert that values and gradients of ``op`` are those of PyTorch in fp64."""
    exact = [x.double().requires_grad_() for x in inputs]
    given_ = [same_values(x, layout).requires_grad_() for x in inputs]
    with backends.use("reference"):
        expected = op(*exact)
        weights = torch.linspace(0.5, 1, expected.numel(), dtype=torch.float64)
        weights = weights.view(expected.shape)
        expected = expected, *torch.autograd.grad((expected * weights).sum(), exact)
    with threads(number):
        value = op(*given_)
        found = value, *torch.autograd.grad((value * weights.to(value.dtype)).sum(), given_)
    tolerance = TOLERANCE[inputs[0].dtype]
    for actual, right in zip(found, expected, strict=True):
        scale = max(1.0, float(right.detach().abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(
            actual.double(), right, rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )


@given(st.integers(0, 9), sizes, kinds, layouts, dtypes, alphas, st.integers(1, 3), seeds)
def test_mappings_and_losses(rows, size, kind, layout, dtype, alpha, number, seed):
    z = draw_values(seed, (rows, size), kind).to(dtype)
    target = torch.randint(size, (rows,), generator=torch.Generator().manual_seed(seed))
    if kind == "masked":  # the loss of a masked target is infinite, its gradient is not
        z = z.scatter(1, target[:, None], 0.5)
    assert_agrees(lambda z: alpha_relu(z, 0.1, alpha), [z.clamp(max=50)], layout, number)
    assert_agrees(lambda z: entmax_loss(z, target, alpha), [z], layout, number)
    assert_agrees(
        lambda z: alpha_relu_loss(z, target, 0.1, alpha, reduction="sum"),
        [z.clamp(max=50)],
        layout,
        number,
    )
    if kind != "large":  # for which the rounding of the logits decides between entries
        assert_agrees(lambda z: entmax(z, alpha), [z], layout, number)


@given(st.integers(1, 300), sizes, st.integers(1, 40), alphas, st.integers(1, 3), seeds)
def test_linear_loss(rows, size, width, alpha, number, seed):
    x, weight = (
        draw_values(seed, (rows, width), "normal"),
        draw_values(seed + 1, (size, width), "ties"),
    )
    target = torch.randint(size, (rows,), generator=torch.Generator().manual_seed(seed))
    target[:: max(2, rows // 3)] = -100

    def loss(x, weight):
        return linear_entmax_loss(x, weight, None, target, alpha, reduction="sum")

    assert_agrees(loss, [x, weight], "plain", number)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 70), st.integers(1, 70)),
    st.sampled_from([8, 16, 32, 48, 64, 80]),
    st.one_of(st.just("relu"), alphas),
    layouts,
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_attention(sizes, width, kind, layout, number, causal, padded, seed):
    batch, heads, queries, keys = sizes
    lengths = queries, keys, keys
    inputs = [
        draw_values(seed + i, (batch, heads, n, width), "normal") for i, n in enumerate(lengths)
    ]
    generator = torch.Generator().manual_seed(seed)
    masked = torch.rand(batch, keys, generator=generator) < 0.4 if padded else None
    weights, alpha = ("relu", None) if kind == "relu" else ("entmax", kind)

    def attention(*tensors):
        options = {"masked": masked, "causal": causal, "scale": width**-0.5}
        return attend(*tensors, weights, alpha, **options)[0]

    with pytest.MonkeyPatch.context() as monkeypatch:
        attend_by_kernels_at_any_size(monkeypatch)
        assert_agrees(attention, inputs, layout, number)


@given(st.integers(0, 60), sizes, layouts, st.integers(1, 3), seeds)
def test_norm(rows, size, layout, number, seed):
    x = draw_values(seed, (rows, size), "normal")
    gain, gate = (draw_values(seed + i, (1, size), "normal") for i in (1, 2))
    assert_agrees(lambda x, g, w: gated_rms_norm(x, g[0], w[0]), [x, gain, gate], layout, number)
