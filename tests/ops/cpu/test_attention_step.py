"""A step of generation by the compiled kernel gives what PyTorch gives in double precision."""

import pytest
import torch

from fairseq_sparse.ops import backends
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import entmax, gelu, relu, softmax
from fairseq_sparse.ops.cpu.attention import attention_step
from op_cases import SPARSE_WEIGHTS, alpha_of, logits

pytestmark = pytest.mark.usefixtures("compiled")

INF = float("inf")
each_weights = pytest.mark.parametrize("weights", SPARSE_WEIGHTS.values(), ids=SPARSE_WEIGHTS)
# batch, heads, keys, width of a head
SIZES = {
    "one key": (1, 1, 1, 16),
    "a few": (2, 3, 9, 16),
    "a block": (3, 2, 16, 64),
    "one more than blocks": (2, 2, 129, 48),
    "wide heads": (2, 1, 70, 144),
    "many keys": (1, 2, 5000, 32),
    "many sentences": (300, 4, 20, 64),
}
MASKS = {
    "nothing": lambda batch, keys: None,
    "padding": lambda batch, keys: torch.rand(batch, keys) < 0.4,
    "all masked in one": lambda batch, keys: (torch.arange(batch) == 0)[:, None].expand(-1, keys),
    "transposed": lambda batch, keys: (torch.rand(keys, batch) < 0.4).T,
}


def inputs(batch, heads, keys, width):
    """Return query, key and value, in the memory layout of a module."""
    return [
        logits(time, batch, heads, width, dtype=torch.float32).permute(1, 2, 0, 3)
        for time in (1, keys, keys)
    ]


def compiled(tensors, weights, scale=1.0, masked=None, need_weights=True):
    return attention_step(*tensors, masked, alpha_of(weights), scale, need_weights)


def by_pytorch(tensors, weights, dtype, **arguments):
    with backends.use("reference"), torch.no_grad():
        tensors = [x.to(dtype) for x in tensors]
        return attend(*tensors, weights, sums_to_one=False, need_weights=True, **arguments)


@pytest.mark.pairwise
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@each_weights
def test_agrees_with_pytorch(weights, sizes, mask):
    """The error is at most a few times that of PyTorch in single precision."""
    batch, _, keys, width = sizes
    tensors = inputs(*sizes)
    options = {"scale": width**-0.5, "masked": mask(batch, keys)}
    found = compiled(tensors, weights, **options)
    exact = by_pytorch(tensors, weights, torch.float64, **options)
    rough = by_pytorch(tensors, weights, torch.float32, **options)
    for actual, expected, other in zip(found, exact, rough, strict=True):
        assert actual.dtype == torch.float32 and actual.shape == expected.shape
        fair = 5 * float((other - expected).abs().max()) + 1e-6 * float(expected.abs().max())
        assert float((actual - expected).abs().max()) <= fair + 1e-30
    sums, shares = found
    if options["masked"] is not None:
        masked = options["masked"][:, None, None].expand_as(shares)
        assert (shares[masked] == 0).all()
        assert (sums[options["masked"].all(1)] == 0).all()


@each_weights
def test_any_layout_and_number_of_threads(weights):
    query, key, value = inputs(50, 4, 30, 16)
    expected = compiled([query, key, value], weights)
    spread = [torch.stack([x, x], -1)[..., 0] for x in (query, key, value)]
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for layout in ([x.contiguous() for x in (query, key, value)], spread):
                for pair in zip(compiled(layout, weights), expected, strict=True):
                    assert torch.equal(*pair)
    finally:
        torch.set_num_threads(before)


@each_weights
def test_without_weights_the_sums_are_the_same(weights):
    tensors = inputs(2, 3, 20, 16)
    sums, nothing = compiled(tensors, weights, need_weights=False)
    assert nothing.numel() == 0 and torch.equal(sums, compiled(tensors, weights)[0])


@pytest.mark.parametrize("value", [float("nan"), INF])
@each_weights
def test_what_is_not_finite_stays_in_its_head(weights, value):
    tensors = inputs(2, 3, 20, 16)
    expected = compiled(tensors, weights)[0]
    tensors[0][1, 2, 0, 0] = value
    sums = compiled(tensors, weights)[0]
    assert not torch.isfinite(sums[1, 2]).any()
    sums[1, 2] = expected[1, 2] = 0
    assert torch.equal(sums, expected)


@pytest.mark.usefixtures("fast")
@each_weights
def test_attend_hands_over_steps_of_generation(weights):
    tensors = inputs(2, 3, 40, 16)
    options = {"scale": 0.3, "masked": torch.rand(2, 40) < 0.3}
    with torch.no_grad():
        found = attend(*tensors, weights, sums_to_one=False, need_weights=True, **options)
    for pair in zip(found, compiled(tensors, weights, **options), strict=True):
        assert torch.equal(*pair)


def takes(weights=relu, dtype=torch.float32, queries=1, width=16):
    query, key, value = (torch.zeros(2, 3, time, width, dtype=dtype) for time in (queries, 9, 9))
    backends._last.clear()
    with torch.no_grad():
        attend(query, key, value, weights)
    return backends.last_used().get("attention_step") == "cpu"


OTHERS = {
    "softmax": {"weights": softmax},
    "gelu": {"weights": gelu},
    "alpha near 1": {"weights": entmax.with_alpha(1.01)},
    "alpha above 2": {"weights": entmax.with_alpha(2.5)},
    "fp64": {"dtype": torch.float64},
    "two queries": {"queries": 2},
    "narrow heads": {"width": 8},
}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_the_kernel_does_not_take(other):
    assert takes() and not takes(**other)


@pytest.mark.usefixtures("fast")
def test_a_gradient_is_left_to_pytorch():
    tensors = [x.requires_grad_() for x in inputs(2, 3, 40, 16)]
    result, _ = attend(*tensors, relu, sums_to_one=False)
    assert all(x.abs().sum() > 0 for x in torch.autograd.grad(result.sum(), tensors))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("other", [{"dropout": 0.5}, {"bias": torch.full((1, 40), -INF)}])
def test_dropout_and_bias_are_left_to_pytorch(other):
    tensors = inputs(2, 3, 40, 16)
    with torch.no_grad():
        whole, _ = attend(*tensors, relu)
        assert not torch.equal(attend(*tensors, relu, **other)[0], whole)
