"""attend: whole or in parts, values and gradients are those of the definition."""

import re

import pytest
import torch
from torch.autograd import gradcheck

import references
from attention_cases import (
    BOUNDED,
    CASES,
    DISTRIBUTIONS,
    INF,
    WEIGHTS,
    learned_alpha,
    sums_to_one,
    weights_function,
)
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import ATTENTION_WEIGHTS
from fairseq_sparse.ops.reference import attention as reference
from op_cases import HALF_DTYPES, logits

BATCH, HEADS, QUERIES, KEYS, WIDTH = 3, 3, 4, 5, 4
each_case = pytest.mark.parametrize("case", WEIGHTS)
# Limits of a part: scores, and the least number of queries.
WHOLE, QUERY, SOME_QUERIES, SENTENCES = (1 << 20, 1), (1, 1), (10, 3), (120, 1)


def limit_chunks(monkeypatch, scores, queries):
    for device in ("cpu", "other"):
        monkeypatch.setitem(reference._CHUNK_SCORES, device, scores)
    monkeypatch.setattr(reference, "_CHUNK_QUERIES", queries)


def inputs(batch=BATCH, heads=HEADS, queries=QUERIES, keys=KEYS, width=WIDTH):
    query, key, value = (
        logits(batch, heads, length, width).requires_grad_() for length in (queries, keys, keys)
    )
    return query, key, value


def options_of(case):
    """Return the arguments of attend for a case, and its learned alpha, if any."""
    options = {"weights": weights_function(case), "sums_to_one": sums_to_one(case)}
    alpha = learned_alpha(case, HEADS)
    return options | ({"alpha": alpha[0]} if alpha else {}), alpha


def causal(queries=QUERIES, keys=KEYS):
    return torch.full((queries, keys), -INF, dtype=torch.float64).triu(1)


def hidden_keys(*counts, keys=KEYS):
    return torch.arange(keys).flip(0) < torch.tensor(counts)[:, None]


def some(*shape):
    return logits(*shape).masked_fill(torch.rand(shape) < 0.3, -INF)


HIDING = {
    "nothing": lambda: {},
    "padding": lambda: {"masked": hidden_keys(0, 4, KEYS)},
    "causal": lambda: {"bias": causal()},
    "causal, padding": lambda: {"bias": causal(), "masked": hidden_keys(2, 4, 0)},
    "causal, padding on the left": lambda: {
        "bias": causal(),
        "masked": hidden_keys(2, KEYS, 0).flip(1),
    },
    "[queries, keys]": lambda: {"bias": some(QUERIES, KEYS)},
    "[batch, heads, queries, keys]": lambda: {"bias": some(BATCH, HEADS, QUERIES, KEYS)},
    "[batch, 1, queries, keys]": lambda: {"bias": some(BATCH, 1, QUERIES, KEYS)},
    "[1, heads, queries, keys]": lambda: {"bias": some(1, HEADS, QUERIES, KEYS)},
    "[batch, 1, 1, keys]": lambda: {"bias": some(BATCH, 1, 1, KEYS)},
    "[1, heads, queries, 1]": lambda: {"bias": some(1, HEADS, QUERIES, 1)},
}
each_hiding = pytest.mark.parametrize("hiding", HIDING.values(), ids=HIDING)


def full_bias(bias=None, masked=None):
    """Return both kinds of mask as one bias ``[batch, heads, queries, keys]``."""
    full = torch.zeros(BATCH, HEADS, QUERIES, KEYS, dtype=torch.float64)
    if bias is not None:
        full = full + bias
    return full if masked is None else full.masked_fill(masked[:, None, None], -INF)


@pytest.mark.each_value
@each_hiding
@each_case
def test_agrees_with_one_query_at_a_time(case, hiding):
    query, key, value = (x.detach() for x in inputs())
    options, alpha = options_of(case)
    masks = hiding()
    context, weights = attend(query, key, value, **options, **masks, need_weights=True)
    alpha = alpha[0].flatten().tolist() if alpha else CASES[case].get("alpha", 1.5)
    kind = CASES[case]["attention"]
    expected, expected_weights = references.attention(
        query, key, value, kind, full_bias(**masks), alpha
    )
    torch.testing.assert_close(context, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-9, atol=1e-11)
    assert torch.equal(weights == 0, expected_weights == 0)


@pytest.mark.each_value
@each_hiding
@each_case
def test_parts_give_the_values_and_gradients_of_the_whole(case, hiding, monkeypatch):
    tensors = inputs()
    masks = hiding()
    options, alpha = options_of(case)
    grad = logits(BATCH, HEADS, QUERIES, WIDTH)

    def values_and_gradients():
        context, _ = attend(*tensors, **options, **masks)
        return context, *torch.autograd.grad(context, [*tensors, *alpha], grad)

    whole = values_and_gradients()
    for limits in (QUERY, SOME_QUERIES, SENTENCES):
        limit_chunks(monkeypatch, *limits)
        with torch.no_grad():
            context, _ = attend(*tensors, **options, **masks)
        for actual, expected in zip(
            (*values_and_gradients(), context), (*whole, whole[0]), strict=True
        ):
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weights", ["relu", "softmax"])
@pytest.mark.parametrize("length", [8, 40, 600])  # few scores, enough for the kernels, in parts
def test_the_result_may_be_changed_in_place(weights, length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)

    def gradient(double):
        return torch.autograd.grad(double(attend(x, x, x, weights)[0]).sum(), x)[0]

    torch.testing.assert_close(gradient(lambda y: y.mul_(2)), gradient(lambda y: y * 2))


@pytest.mark.parametrize("name", [name for name in ATTENTION_WEIGHTS if name != "entmax"])
def test_alpha_is_for_entmax_alone(name):
    with pytest.raises(ValueError, match=f"{name} takes no alpha, got 1.5"):
        attend(*inputs(), name, alpha=1.5)


def test_entmax_needs_alpha():
    with pytest.raises(ValueError, match="entmax needs alpha, got None"):
        attend(*inputs(), "entmax")


def shaped(*sizes, dtype=torch.float32):
    return torch.zeros(sizes, dtype=dtype)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"masked": shaped(3, 5, dtype=torch.int64)}, "masked must be boolean, [3, 5], got"),
        ({"masked": shaped(5, 3, dtype=torch.bool)}, "masked must be boolean, [3, 5], got"),
        ({"bias": shaped(4, 5, dtype=torch.bool)}, "it must be floating, got torch.bool"),
        ({"bias": shaped(3, 4, 5)}, "got [3, 4, 5]"),
        ({"bias": shaped(5, 1, 4, 5)}, "broadcast to [3, 3, 4, 5], got [5, 1, 4, 5]"),
        ({"bias": shaped(1, 1, 4, 4)}, "got [1, 1, 4, 4]"),
        ({"bias": shaped(1, 1, 4, 5), "causal": True}, "bias must be [4, 5], got [1, 1, 4, 5]"),
        ({"weights": "entmax", "alpha": shaped(2, 1, 1)}, "alpha must be [3, 1, 1], got [2, 1"),
        ({"key": shaped(3, 1, 5, 4)}, "query, key and value must be"),
        ({"key": shaped(3, 3, 5, 3)}, "query, key and value must be"),
        ({"value": shaped(3, 3, 4, 4)}, "query, key and value must be"),
        ({"dropout": -0.1}, "dropout must be a probability, from 0 to 1, got -0.1"),
        ({"dropout": 1.1}, "dropout must be a probability, from 0 to 1, got 1.1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given, message):
    tensors = dict(zip(("query", "key", "value"), inputs(), strict=True))
    with pytest.raises(ValueError, match=re.escape(message)):
        attend(**{"weights": "relu", **tensors, **given})


@pytest.mark.parametrize("shape", [(), (1, 1, 1), (3, 1, 1)], ids=str)
def test_one_alpha_for_all_heads(shape, monkeypatch):
    """Computed whole or in parts, and under a transform of torch.func, which takes no parts."""
    tensors, alpha = inputs(), torch.full(shape, 1.4, dtype=torch.float64)
    expected, _ = attend(*tensors, "entmax", alpha=1.4)

    def total(alpha):
        return attend(*tensors, "entmax", alpha=alpha)[0].square().sum()

    gradients = [torch.func.grad(total)(alpha)]
    for limits in (WHOLE, QUERY):
        limit_chunks(monkeypatch, *limits)
        context, _ = attend(*tensors, "entmax", alpha=alpha.requires_grad_())
        torch.testing.assert_close(context, expected)
        gradients += torch.autograd.grad(total(alpha), alpha)
    for gradient in gradients:
        assert gradient.shape == shape
        torch.testing.assert_close(gradient, gradients[0])


@pytest.mark.parametrize("weights", ["relu", "entmax15"])
def test_an_empty_batch_in_any_layout(weights):
    x = torch.randn(0, 2, 16, 30).transpose(2, 3).requires_grad_()
    context, _ = attend(x, x, x, weights)
    assert context.shape == (0, 2, 30, 16)
    context.sum().backward()


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("alpha", [0.0, 0.5, -1.0, float("nan"), INF])
def test_an_alpha_below_1_is_refused_whatever_computes_it(alpha, queries):
    tensors = [x.detach().float() for x in inputs(queries=queries, keys=70, width=16)]
    with torch.no_grad(), pytest.raises(ValueError, match="alpha"):
        attend(*tensors, "entmax", alpha=alpha)


@pytest.mark.parametrize("queries", [1, 32])
def test_a_function_of_one_s_own_may_have_an_alpha(queries):
    """No kernel takes its alpha for that of entmax, in a step of generation or a sentence."""
    tensors = [x.detach().float() for x in inputs(queries=queries, keys=32, width=16)]

    def weights(scores, alpha):
        return torch.softmax(scores * alpha, -1)

    with torch.no_grad():
        context, _ = attend(*tensors, weights, alpha=1.5)
        expected, _ = attend(*tensors, "softmax", scale=1.5)
    torch.testing.assert_close(context, expected)


@pytest.mark.parametrize("scores, queries", [QUERY, SOME_QUERIES, SENTENCES])
def test_a_part_has_no_more_scores_than_the_limit(scores, queries, monkeypatch):
    """Unless the minimum number of queries has more, in all heads."""
    limit_chunks(monkeypatch, scores, queries)
    seen = []

    def weights(scores):
        seen.append(scores.shape)
        return torch.relu(scores)

    context, _ = attend(*inputs(), weights, sums_to_one=False)
    forward = [shape.numel() for shape in seen]
    assert max(forward) <= max(scores, HEADS * queries * KEYS)
    assert sum(forward) == BATCH * HEADS * QUERIES * KEYS
    context.sum().backward()
    assert max(shape.numel() for shape in seen) == max(forward)


@pytest.mark.parametrize("limits", [WHOLE, SOME_QUERIES], ids=["whole", "parts"])
@pytest.mark.parametrize("case", ["softmax", "rela_g_leaky_relu"])
def test_large_negative_biases_hide_as_minus_infinity_does(case, limits, monkeypatch):
    """fairseq's masks have -1e4 and -1e8."""
    limit_chunks(monkeypatch, *limits)
    tensors = inputs()
    options, _ = options_of(case)
    expected, _ = attend(*tensors, **options, bias=causal())
    for hides in (-1e4, -1e8):
        bias = causal().masked_fill(causal() < 0, hides)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            actual, _ = attend(*tensors, **options, bias=bias.to(dtype))
            assert torch.equal(actual, expected)


def test_weights_are_returned_whatever_the_limit(monkeypatch):
    limit_chunks(monkeypatch, *QUERY)
    options, _ = options_of("relu")
    weights = attend(*inputs(), **options, need_weights=True)[1]
    assert weights.shape == (BATCH, HEADS, QUERIES, KEYS)


@pytest.mark.parametrize("scores", [1 << 20, 20])
def test_weights_are_not_returned_unless_asked_for(scores, monkeypatch):
    limit_chunks(monkeypatch, scores, 1)
    options, _ = options_of("relu")
    assert attend(*inputs(), **options)[1] is None


@each_case
def test_padding_does_not_matter(case, monkeypatch):
    """Each sentence of a batch gets what it gets alone, in parts too."""
    query, key, value = inputs()
    options, _ = options_of(case)
    lengths = (KEYS, 3, 1)
    masked = hidden_keys(*(KEYS - length for length in lengths))
    value = value.detach().masked_fill(masked[:, None, :, None], 1e6)
    key = key.detach().masked_fill(masked[:, None, :, None], 1e6)
    for limits in (WHOLE, SOME_QUERIES):
        limit_chunks(monkeypatch, *limits)
        together, _ = attend(query, key, value, **options, masked=masked)
        for row, length in enumerate(lengths):
            one = slice(row, row + 1)
            alone, _ = attend(query[one], key[one, :, :length], value[one, :, :length], **options)
            torch.testing.assert_close(together[one], alone, rtol=1e-9, atol=1e-11)


@pytest.mark.each_value
@pytest.mark.parametrize("hiding", ["padding", "causal, padding on the left"])
@each_case
def test_rows_without_a_visible_key_are_zero_with_finite_gradients(case, hiding, monkeypatch):
    tensors = inputs()
    options, alpha = options_of(case)
    masks = HIDING[hiding]()
    blind = (full_bias(**masks) == -INF).all(-1)
    assert blind.any() and not blind.all()
    for limits in (WHOLE, SOME_QUERIES):
        limit_chunks(monkeypatch, *limits)
        context, _ = attend(*tensors, **options, **masks)
        assert (context[blind] == 0).all()
        for gradient in torch.autograd.grad(context.square().sum(), [*tensors, *alpha]):
            assert torch.isfinite(gradient).all()


@pytest.mark.each_value
@pytest.mark.parametrize("limits", [WHOLE, (6, 1)], ids=["whole", "parts"])
@each_case
def test_derivative(case, limits, monkeypatch):
    limit_chunks(monkeypatch, *limits)
    tensors = inputs(batch=1, queries=3, keys=3, width=2)
    options, alpha = options_of(case)
    masks = {"bias": causal(3, 3), "masked": hidden_keys(1, keys=3)}

    def result(query, key, value, *alpha):
        given = options | ({"alpha": alpha[0]} if alpha else {})
        return attend(query, key, value, **given, **masks)[0]

    assert gradcheck(result, (*tensors, *alpha))


@pytest.mark.parametrize("limits", [WHOLE, SOME_QUERIES], ids=["whole", "parts"])
@pytest.mark.parametrize("case", ["softmax", "entmax15", "relu", "rela_g_leaky_relu"])
def test_dropout_falls_on_the_weights_and_the_gradient_knows_which(case, limits, monkeypatch):
    """With the identity as values, the result is the weights after dropout, and the gradient of
    the values their transpose times the gradient of the result."""
    limit_chunks(monkeypatch, *limits)
    query, key, _ = inputs(queries=12)
    value = torch.eye(KEYS, dtype=torch.float64).expand(BATCH, HEADS, -1, -1).clone()
    value.requires_grad_()
    options, _ = options_of(case)
    _, weights = attend(query, key, value, **options, need_weights=True)
    dropped, _ = attend(query, key, value, **options, dropout=0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    share = kept[weights != 0].double().mean()
    assert 0.6 < share < 0.9

    grad = logits(*dropped.shape)
    actual = torch.autograd.grad(dropped, value, grad)[0]
    torch.testing.assert_close(actual, dropped.detach().transpose(-2, -1) @ grad)


@pytest.mark.parametrize("limits", [WHOLE, (6, 1)], ids=["whole", "parts"])
@pytest.mark.parametrize("case", ["softmax", "entmax_learned", "relu"])
def test_derivative_under_dropout_is_that_of_the_forward_pass(case, limits, monkeypatch):
    limit_chunks(monkeypatch, *limits)
    tensors = inputs(batch=1, queries=3, keys=3, width=1)
    options, _ = options_of(case)

    def with_one_seed(*tensors):
        torch.manual_seed(4)
        return attend(*tensors, **options, dropout=0.4)[0]

    assert torch.equal(with_one_seed(*tensors), with_one_seed(*tensors))
    assert gradcheck(with_one_seed, tensors)


def test_the_weights_that_are_returned_are_not_dropped():
    tensors = inputs()
    options, _ = options_of("relu")
    dropped, weights = attend(*tensors, **options, dropout=0.5, need_weights=True)
    kept, expected = attend(*tensors, **options, need_weights=True)
    assert torch.equal(weights, expected) and not torch.equal(dropped, kept)


@pytest.mark.each_value
@pytest.mark.parametrize("limits", [WHOLE, (4000, 1)], ids=["whole", "parts"])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@each_case
def test_half_precision_sums_of_many_large_weights_are_finite(case, dtype, limits, monkeypatch):
    limit_chunks(monkeypatch, *limits)
    tensors = [(30 * x.detach()).to(dtype).requires_grad_() for x in inputs(keys=1000)]
    options, _ = options_of(case)
    _, weights = attend(*tensors, **options, need_weights=True)
    assert weights.dtype == torch.float32
    result, _ = attend(*tensors, **options)
    widens = case not in DISTRIBUTIONS and dtype == torch.float16  # fp16 cannot hold the sums
    assert result.dtype == (torch.float32 if widens else dtype)
    weights, value = weights.detach().double(), tensors[-1].detach().double()
    exact, scale = weights @ value, weights.abs() @ value.abs()
    if case not in (*BOUNDED, "relu_length"):
        assert exact.abs().max() > 65504
    error = (result.detach().double() - exact).abs()
    assert (error <= 4 * torch.finfo(dtype).eps * scale).all()
    (result / scale.clamp(min=1)).sum().backward()
    for x in tensors:
        assert x.grad.dtype == dtype and torch.isfinite(x.grad).all()


@pytest.mark.each_value
@pytest.mark.parametrize("limits", [WHOLE, SOME_QUERIES], ids=["whole", "parts"])
@each_case
def test_autocast_rounds_the_arguments_and_nothing_else(case, limits, monkeypatch):
    limit_chunks(monkeypatch, *limits)
    tensors = [x.detach().float().requires_grad_() for x in inputs()]
    options, _ = options_of(case)
    options |= {"bias": causal()}
    grad = logits(BATCH, HEADS, QUERIES, WIDTH, dtype=torch.bfloat16)
    expected, _ = attend(*(x.bfloat16() for x in tensors), **options)
    expected_gradients = torch.autograd.grad(expected, tensors, grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, _ = attend(*tensors, **options)
        gradients = torch.autograd.grad(actual, tensors, grad)
    assert torch.equal(actual, expected)
    for x, y in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(x, y)


@each_case
def test_an_empty_batch(case):
    for batch, queries, keys in ((0, QUERIES, KEYS), (BATCH, 0, KEYS), (BATCH, QUERIES, 0)):
        tensors = inputs(batch=batch, queries=queries, keys=keys)
        options, _ = options_of(case)
        context, _ = attend(*tensors, **options)
        assert context.shape == (batch, HEADS, queries, WIDTH)
        context.sum().backward()
        assert all(torch.equal(x.grad, torch.zeros_like(x)) for x in tensors)


@pytest.mark.parametrize("limits", [WHOLE, (60, 1)], ids=["whole", "parts"])
@pytest.mark.parametrize(
    "case", ["softmax", "relu", "rela_g_gelu", "entmax_learned", "softpick", "sigmoid"]
)
def test_no_value_is_looked_at(case, limits, monkeypatch):
    """Reading one would stall a GPU; on the meta device, tensors have no values to read."""
    limit_chunks(monkeypatch, *limits)
    tensors = [x.detach().float().to("meta") for x in inputs(batch=2, queries=4)]
    masks = {"bias": causal(4).float().to("meta"), "masked": hidden_keys(1, 2).to("meta")}
    options, alpha = options_of(case)
    options |= {"alpha": alpha[0].detach().float().to("meta")} if alpha else {}
    context, _ = attend(*tensors, **options, **masks)
    assert context.shape == (2, HEADS, 4, WIDTH)


def test_the_arguments_are_left_alone(monkeypatch):
    limit_chunks(monkeypatch, *SOME_QUERIES)
    tensors = [x.detach() for x in inputs()]
    masks = HIDING["causal, padding"]()
    copies = [x.clone() for x in (*tensors, *masks.values())]
    options, _ = options_of("relu")
    for need_weights in (False, True):
        attend(*tensors, **options, **masks, need_weights=need_weights)
    for x, copy in zip((*tensors, *masks.values()), copies, strict=True):
        assert torch.equal(x, copy)
