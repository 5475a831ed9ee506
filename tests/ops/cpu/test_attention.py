"""The compiled attention gives the values and gradients of PyTorch's in double precision."""

import itertools

import pytest
import torch

from fairseq_sparse.ops import backends, cpu
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import entmax, entmax15, gelu, relu, softmax
from op_cases import (
    SPARSE_WEIGHTS,
    alpha_of,
    attend_by_kernels_at_any_size,
    logits,
    sparse_attention,
)
from references import assert_as_accurate

pytestmark = pytest.mark.usefixtures("compiled")

INF = float("inf")
each_weights = pytest.mark.parametrize("weights", SPARSE_WEIGHTS.values(), ids=SPARSE_WEIGHTS)
# batch, heads, queries, keys, width of a head: smaller, equal and greater than the kernel's blocks.
SIZES = {
    "one query, one key": (1, 1, 1, 1, 16),
    "a few": (2, 3, 5, 9, 16),
    "blocks": (1, 2, 64, 64, 64),
    "one more than blocks": (2, 1, 65, 129, 48),
    "wide heads": (1, 2, 33, 70, 144),
    "few queries, many keys": (1, 2, 3, 2000, 32),
    "many queries, few keys": (1, 1, 300, 2, 32),
    "many keys": (1, 1, 40, 5000, 16),
}


@pytest.fixture(autouse=True)
def any_size(request, monkeypatch):
    """Let the kernels compute any size, unless the test is of what they leave to PyTorch."""
    if "fast" not in request.fixturenames:
        monkeypatch.setattr(backends, "_last", {})
        attend_by_kernels_at_any_size(monkeypatch)


def inputs(batch, heads, queries, keys, width):
    """Return query, key, value and the result's gradient, in the memory layout of a module."""
    return [
        logits(time, batch, heads, width, dtype=torch.float32).permute(1, 2, 0, 3)
        for time in (queries, keys, keys, queries)
    ]


def values_and_gradients(function, tensors, dtype=torch.float32):
    *leaves, grad = (x.detach().to(dtype).requires_grad_() for x in tensors)
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad.detach())]


def by_pytorch(tensors, dtype=torch.float64, **arguments):
    with backends.use("reference"):
        return values_and_gradients(
            lambda q, k, v: attend(q, k, v, sums_to_one=False, **arguments)[0], tensors, dtype
        )


def compiled(tensors, weights, **arguments):
    found = values_and_gradients(
        lambda q, k, v: sparse_attention(q, k, v, alpha_of(weights), **arguments), tensors
    )
    used = backends.last_used()
    assert used["attention"] == used["attention_backward"] == "cpu"
    return found


def assert_right(tensors, weights, **arguments):
    """Check that the errors are at most a few times those of PyTorch in fp32."""
    found = compiled(tensors, weights, **arguments)
    exact = by_pytorch(tensors, weights=weights, **arguments)
    rough = by_pytorch(tensors, torch.float32, weights=weights, **arguments)
    for each in zip(found, rough, exact, strict=True):
        assert_as_accurate(*each)


def causal(queries, keys):
    return torch.full((queries, keys), -INF).triu(1)


MASKS = {
    "nothing": lambda batch, queries, keys: {},
    "padding": lambda batch, queries, keys: {"masked": torch.rand(batch, keys) < 0.4},
    "all masked in one": lambda batch, queries, keys: {
        "masked": torch.arange(batch)[:, None].expand(batch, keys) == 0
    },
    "causal": lambda batch, queries, keys: {"bias": causal(queries, keys)},
    "large numbers for -inf": lambda batch, queries, keys: {
        "bias": causal(queries, keys).clamp(min=-1e4).double()
    },
    "a query without keys, in half precision": lambda batch, queries, keys: {
        "bias": torch.zeros(queries, keys, dtype=torch.bfloat16).index_fill(
            0, torch.tensor(0), -1e4
        )
    },
    "bias and padding": lambda batch, queries, keys: {
        "bias": torch.randn(keys, queries).T + causal(queries, keys),
        "masked": (torch.rand(keys, batch) < 0.4).T,
    },
}


@pytest.mark.pairwise
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@each_weights
def test_agrees_with_pytorch(weights, sizes, masks):
    batch, _, queries, keys, width = sizes
    tensors = inputs(*sizes)
    assert_right(tensors, weights, scale=width**-0.5, **masks(batch, queries, keys))


@pytest.mark.parametrize("shift", [-4.0, 4.0], ids=["few", "most"])
@each_weights
def test_few_nonzeros_and_many(weights, shift):
    """Where few weights are nonzero, products of gradients and values are computed one by one."""
    query, key, value, grad = inputs(1, 2, 70, 150, 32)
    query[..., 0], key[..., 0] = 1, shift
    assert_right([query, key, value, grad], weights, scale=0.2)


@pytest.mark.parametrize("threads", [2, 5])
@each_weights
def test_threads_share_the_heads_and_the_queries_of_one(weights, threads):
    before = torch.get_num_threads()
    tensors = inputs(1, 2, 100, 180, 16)
    try:
        torch.set_num_threads(threads)
        found = compiled(tensors, weights)
        again = compiled(tensors, weights)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    exact = by_pytorch(tensors, weights=weights)
    for each in zip(found, compiled(tensors, weights), exact, strict=True):
        assert_as_accurate(*each)


@each_weights
def test_a_gradient_that_is_one_number_expanded(weights):
    query, key, value, _ = inputs(1, 2, 20, 30, 16)
    one = torch.ones(()).expand(query.shape)
    for pair in zip(
        compiled([query, key, value, one], weights),
        compiled([query, key, value, torch.ones(query.shape)], weights),
        strict=True,
    ):
        assert torch.equal(*pair)


@each_weights
def test_a_query_that_attends_to_nothing(weights):
    tensors = inputs(2, 2, 30, 40, 16)
    masked = torch.tensor([True, False])[:, None].expand(2, 40)
    result, *gradients = compiled(tensors, weights, masked=masked)
    assert (result[0] == 0).all() and (result[1] != 0).any()
    for gradient in gradients:
        assert (gradient[0] == 0).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("value", [float("nan"), INF])
@each_weights
def test_what_is_not_finite_stays_in_its_row(weights, value):
    query, key, other, grad = inputs(1, 1, 40, 50, 16)
    expected = compiled([query, key, other, grad], weights)[0]
    query[0, 0, 7, 0] = value
    result = compiled([query, key, other, grad], weights)[0]
    rows = torch.arange(40) != 7
    assert torch.equal(result[:, :, rows], expected[:, :, rows])
    assert not torch.isfinite(result[0, 0, 7]).any()


def kept_weights(query, key, weights, **arguments):
    """Return the weights that attention uses, ``[batch, heads, queries, keys]``."""
    width = -(-key.size(2) // 16) * 16
    columns = torch.eye(key.size(2), width).expand(*key.shape[:2], -1, -1)
    query, key = (torch.nn.functional.pad(x, (0, width - x.size(3))) for x in (query, key))
    return sparse_attention(query, key, columns, alpha_of(weights), **arguments)[..., : key.size(2)]


@each_weights
def test_dropout_falls_on_single_weights(weights):
    query, key, _, _ = inputs(2, 3, 100, 200, 16)
    query *= 0.1
    whole = kept_weights(query, key, weights)
    torch.manual_seed(1)
    dropped = kept_weights(query, key, weights, dropout=0.3)
    is_kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(is_kept, whole / 0.7, 0.0))
    # The kept share of the nonzero weights is 0.7 in every part, within five deviations.
    count = (whole != 0).float()
    for dims in ([0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]):
        number, share = count.sum(dims), (is_kept * count).sum(dims) / count.sum(dims).clamp(min=1)
        assert ((share - 0.7).abs() <= 5 * (0.21 / number.clamp(min=1)).sqrt()).all()
    # Two weights are dropped independently, also at equal places in different sentences, heads,
    # queries or blocks of 64 keys: their outcomes agree in 0.7 ** 2 + 0.3 ** 2 = 0.58 of the pairs.
    for dim, steps in ((0, (1,)), (1, (1, 2)), (2, (1, 8, 64)), (3, (1, 16, 63, 64, 65, 128))):
        for step in steps:
            length = whole.size(dim) - step
            pairs = [(x.narrow(dim, 0, length), x.narrow(dim, step, length))
                     for x in (whole != 0, is_kept)]  # fmt: skip
            both = pairs[0][0] & pairs[0][1]
            agree = (pairs[1][0] == pairs[1][1])[both].double().mean()
            assert abs(agree - 0.58) <= 5 * (0.58 * 0.42 / both.sum()).sqrt(), (dim, step)


@each_weights
def test_dropout_is_drawn_anew_and_from_the_seed(weights):
    query, key, _, _ = inputs(1, 2, 30, 40, 16)
    torch.manual_seed(1)
    first, second = (kept_weights(query, key, weights, dropout=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(kept_weights(query, key, weights, dropout=0.5), first)
    assert not torch.equal(first, second)


@each_weights
def test_the_gradient_under_dropout_is_that_of_the_weights_that_were_kept(weights):
    tensors = inputs(2, 2, 70, 100, 16)
    tensors[0] *= 0.3
    bias = causal(70, 100)
    torch.manual_seed(3)
    with torch.no_grad():
        is_kept = kept_weights(tensors[0], tensors[1], weights, bias=bias, dropout=0.4) != 0

    def expected(query, key, value):
        scores = query @ key.transpose(2, 3) + bias
        return (weights(scores) * is_kept / 0.6) @ value

    with backends.use("reference"):
        rough, exact = (
            values_and_gradients(expected, tensors, dtype)
            for dtype in (torch.float32, torch.float64)
        )
    # Kernels and reference drop the same weights, so each may continue what the other began.
    for forward, backward in itertools.product(("cpu", "reference"), repeat=2):
        *leaves, grad = (x.detach().requires_grad_() for x in tensors)
        torch.manual_seed(3)
        with backends.use(forward):
            result = sparse_attention(*leaves, alpha_of(weights), bias=bias, dropout=0.4)
        with backends.use(backward):
            found = [result.detach(), *torch.autograd.grad(result, leaves, grad)]
        for each in zip(found, rough, exact, strict=True):
            assert_as_accurate(*each)


def test_the_arguments_are_left_alone():
    tensors = inputs(2, 2, 30, 40, 16)
    masks = {"masked": torch.rand(2, 40) < 0.3, "bias": causal(30, 40)}
    copies = [x.clone() for x in (*tensors, *masks.values())]
    compiled(tensors, relu, **masks)
    assert all(map(torch.equal, (*tensors, *masks.values()), copies))


@each_weights
def test_a_second_derivative_is_refused_rather_than_wrong(weights):
    *tensors, _ = (x.requires_grad_() for x in inputs(1, 1, 4, 5, 16))
    result = sparse_attention(*tensors, alpha_of(weights))
    for loss in (result.square().sum(), result.sum()):
        gradients = torch.autograd.grad(loss, tensors, create_graph=True)
        for gradient in gradients:
            with pytest.raises(RuntimeError, match="no second derivative"):
                torch.autograd.grad(gradient.sum(), tensors, retain_graph=True)


def test_memory_does_not_grow_with_the_square_of_the_length():
    tensors = inputs(1, 1, 3000, 3000, 16)
    with torch.profiler.profile(profile_memory=True) as profiled:
        compiled(tensors, relu)
    most = max(event.self_cpu_memory_usage for event in profiled.events())
    assert 0 < most < 4 * 3000 * 3000 / 8


def takes(weights=entmax15, dtype=torch.float32, sizes=(2, 3, 60, 80, 16), **options):
    """Return whether kernels compute an attention."""
    query, key, value, _ = (x.to(dtype) for x in inputs(*sizes))
    backends._last.clear()
    attend(query, key, value, weights, **options)
    return backends.last_used().get("attention") == "cpu"


@pytest.mark.usefixtures("fast")
@each_weights
def test_attend_hands_over_what_the_kernels_take(weights):
    sizes = (2, 4, 330, 400, 16) if weights is relu else (2, 3, 60, 80, 16)
    tensors, (_, _, queries, keys, _) = inputs(*sizes), sizes
    assert takes(weights, sizes=sizes)
    assert not takes(weights, sizes=sizes, need_weights=True)
    masks = {"masked": torch.rand(2, keys) < 0.3, "bias": causal(queries, keys)}
    options = {"scale": 0.3, **masks}
    whole = values_and_gradients(lambda q, k, v: attend(q, k, v, weights, **options)[0], tensors)
    for pair in zip(whole, compiled(tensors, weights, **options), strict=True):
        assert torch.equal(*pair)


OTHERS = {
    "softmax": {"weights": softmax},
    "gelu": {"weights": gelu},
    "alpha near 1": {"weights": entmax.with_alpha(1.01)},
    "alpha above 2": {"weights": entmax.with_alpha(2.5)},
    "fp64": {"dtype": torch.float64},
    "bf16": {"dtype": torch.bfloat16},
    "a step of generation": {"sizes": (2, 3, 1, 500, 16)},
    "a few scores": {"sizes": (20, 30, 60, 60, 16)},
    "rectified scores that fit into the cache": {"weights": relu, "sizes": (2, 8, 250, 250, 16)},
    "narrow heads": {"sizes": (2, 3, 60, 80, 8)},
    "a bias for each sentence": {"bias": torch.zeros(2, 1, 60, 80)},
    "all dropped": {"dropout": 1.0},
}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_the_kernels_do_not_take(other):
    assert takes() and not takes(**other)


@pytest.mark.parametrize("lanes", [4, 8])
def test_with_short_vectors_pytorch_is_faster(lanes, monkeypatch):
    monkeypatch.setattr(cpu.attention, "_LEAST_LANES", 8)
    monkeypatch.setattr(cpu.build.library(), "attention_lanes", lambda: lanes)
    assert takes() == (lanes == 8)


def test_turned_off_they_take_nothing():
    with backends.use("reference"):
        assert not takes()
