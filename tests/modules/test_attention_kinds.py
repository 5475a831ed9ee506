"""Attention weights from scores, and the norms that follow, for every kind of attention."""

from decimal import Context, Decimal

import pytest
import torch
from torch.autograd import gradcheck

import references
from attention_cases import (
    CASES,
    DISTRIBUTIONS,
    FP64,
    INF,
    NORMALISED,
    NULLABLE,
    WEIGHTS,
    learned_alpha,
    weights_function,
)
from fairseq_sparse.modules import attention_norm
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.ops import attention_weights
from op_cases import HALF_DTYPES, logits

each_case = pytest.mark.parametrize("case", WEIGHTS)
each_normalised_kind = pytest.mark.parametrize("kind", NORMALISED)
# The masked keys of the tests' rows of scores; the last row has no visible key.
HIDDEN = torch.tensor(
    [[0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]]
).bool()


def scores(dtype=FP64, scale=2.0):
    """Return scores ``[batch, heads, queries, keys]``; masked ones are -inf."""
    return logits(3, 2, 4, 6, dtype=dtype, scale=scale).masked_fill(HIDDEN, -INF)


@each_case
def test_agrees_with_the_naive_version(case):
    z, alpha = scores(), learned_alpha(case)
    weights = weights_function(case)(z, *alpha)
    kind = CASES[case]["attention"]
    assert weights.dtype == FP64 and (weights[HIDDEN.expand_as(weights)] == 0).all()
    for head in range(2):
        a = alpha[0][head].item() if alpha else CASES[case].get("alpha", 1.5)
        for row in range(3):
            seen = ~HIDDEN[row]
            expected = references.attention_weights(z[:, head, row, seen], kind, a)
            actual = weights[:, head, row, seen]
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
            assert torch.equal(actual == 0, expected == 0)


@each_case
def test_weights_of_a_distribution_sum_to_1(case):
    weights = weights_function(case)(scores(scale=5.0), *learned_alpha(case))
    total = weights[..., :3, :].sum(-1)
    assert torch.allclose(total, torch.ones_like(total)) == (case in DISTRIBUTIONS)


@pytest.mark.parametrize("case", NULLABLE)
def test_rectified_weights_of_negative_scores_are_zero(case):
    z = scores()
    weights = weights_function(case)(z)
    assert torch.equal(weights != 0, z > 0)
    assert (weights_function(case)(-z.abs()) == 0).all()  # null attention


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES], ids=str)
@each_case
def test_weights_are_computed_in_fp32(case, dtype):
    z = scores(dtype).requires_grad_()
    alpha = [x.detach().float() for x in learned_alpha(case)]
    weights = weights_function(case)(z, *alpha)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, weights_function(case)(z.float(), *alpha))
    weights.square().sum().backward()
    assert z.grad.dtype == dtype and torch.isfinite(z.grad).all()


@each_case
def test_extreme_scores(case):
    z = torch.tensor(
        [[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4], [0.0, 0.0, 0.0], [-INF, -1e4, -INF]]
    ).requires_grad_()
    alpha = [torch.tensor(1.2, requires_grad=True)] if learned_alpha(case) else []
    weights = weights_function(case)(z, *alpha)
    weights.sum().backward()
    assert all(torch.isfinite(x).all() for x in (weights, *(x.grad for x in (z, *alpha))))
    if case in DISTRIBUTIONS:
        third = [1 / 3] * 3
        expected = [[1.0, 0.0, 0.0], third, third, third, [0.0, 1.0, 0.0]]
        torch.testing.assert_close(weights, torch.tensor(expected))


@each_case
def test_a_nan_is_not_taken_for_a_hidden_key(case):
    z = scores()
    z[0, 0, 0, 2] = float("nan")
    weights = weights_function(case)(z, *learned_alpha(case))
    assert weights[0, 0, 0, 2].isnan()
    assert torch.isfinite(weights[1:]).all() and torch.isfinite(weights[0, 1]).all()


def test_softpick_is_exact_for_any_scores():
    """Also where exp(s) overflows, and where exp(s) - 1 would lose the digits of a small s."""
    z = torch.tensor(
        [[1e-5, -3e-5, 0.0], [300.0, 299.0, -300.0], [89.0, 88.0, 1e-6], [5e4, 1e4, 0]]
    )
    weights = attention_weights.softpick(z)
    expected = []
    for row in z.tolist():
        exact = [Decimal(score).exp(Context(prec=60)) - 1 for score in row]
        largest = max(Decimal(0), *map(Decimal, row)).exp(Context(prec=60))
        total = sum(map(abs, exact)) + Decimal("1e-8") * largest
        expected.append([float(max(x, Decimal(0)) / total) for x in exact])
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", ["relu_length", "sigmoid", "relu_centred", "alpha_relu"])
def test_the_length_is_the_number_of_visible_keys(case):
    """Each query has its own number: padding and the future do not count."""
    z = scores()
    weights = weights_function(case)(z)
    for row, seen in enumerate(~HIDDEN[:3]):
        alone = weights_function(case)(z[:, :, row, seen])
        torch.testing.assert_close(weights[:, :, row, seen], alone)
    z = torch.zeros(7)
    assert weights_function("sigmoid")(z).tolist() == pytest.approx([1 / 8] * 7)
    assert weights_function("relu_length")(z + 14).tolist() == [2.0] * 7


@pytest.mark.parametrize("case", [*DISTRIBUTIONS, "relu_centred"])
def test_a_threshold_that_follows_the_scores_is_blind_to_a_shift(case):
    z, alpha = scores(), learned_alpha(case)
    weights = weights_function(case)
    torch.testing.assert_close(weights(z - 3, *alpha), weights(z, *alpha))


@pytest.mark.parametrize("keys", [1, 7, 300])
def test_1_5_relu_of_scores_before_training_sums_to_1_on_average(keys):
    weights = attention_weights.alpha_relu(logits(20_000 // keys + 3000, keys) / 2)
    total = weights.sum(-1)
    assert abs(total.mean() - 1) < 5 * total.std() / len(total) ** 0.5


@pytest.mark.parametrize("case", WEIGHTS)
def test_queries_without_keys_have_no_weights(case):
    weights = weights_function(case)(torch.zeros(3, 2, 4, 0), *learned_alpha(case))
    assert weights.shape == (3, 2, 4, 0)


def test_only_weights_that_are_signed_fall_below_0():
    for case in WEIGHTS:
        signed = ATTENTION_KINDS[CASES[case]["attention"]].weights.signed
        assert (weights_function(case)(scores(), *learned_alpha(case)) < 0).any() == signed


def test_every_kind_of_the_papers_has_its_norm():
    norms = {kind: entry.norm for kind, entry in ATTENTION_KINDS.items()}
    gated = attention_norm.GatedRMSNorm
    assert norms == {
        **dict.fromkeys(["softmax", "sparsemax", "entmax15", "entmax", "relu"]),
        **dict.fromkeys(["relu_length", "relu_l1", "alpha_relu", "softpick", "sigmoid"]),
        **dict.fromkeys(["relu_centred", "alpha_relu_rmsnorm_gated"], gated),
        "softmax_gated": attention_norm.Gate,
        "softmax_rmsnorm_gated": gated,
        "relu_rmsnorm": attention_norm.RMSNorm,
        "rela_i": attention_norm.RMSNormUniformGain,
        **dict.fromkeys(["rela_g", "rela_g_gelu", "rela_g_leaky_relu"], gated),
        "rela_g_layernorm": attention_norm.GatedLayerNorm,
    }


@each_normalised_kind
def test_norms_agree_with_the_naive_version(kind):
    norm = ATTENTION_KINDS[kind].norm(16, 4).double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    z = logits(5, 3, 16)
    parameters = {f"norm.{name}": value for name, value in norm.named_parameters()}
    expected = references.attention_norm(z, kind, parameters)
    torch.testing.assert_close(norm(z), expected, rtol=1e-10, atol=1e-12)
    assert gradcheck(norm, z[0].clone().requires_grad_())


@each_normalised_kind
def test_norms_give_fp32_and_keep_rows_of_zeros(kind):
    norm = ATTENTION_KINDS[kind].norm(16, 4)
    for dtype in HALF_DTYPES:
        z = 6e4 * logits(5, 16).sign().to(dtype)
        z[1] = 0
        z.requires_grad_()
        result = norm.to(dtype)(z)
        assert result.dtype == torch.float32 and torch.isfinite(result).all()
        assert (result[1] == 0).all()  # the offset of LayerNorm is 0 before it is trained
        result.sum().backward()
        assert all(torch.isfinite(x.grad).all() for x in (z, *norm.parameters()))


@each_normalised_kind
def test_initial_values_are_those_of_the_papers(kind):
    width, head_width = 300, 12
    norm = ATTENTION_KINDS[kind].norm(width, head_width)
    values = dict(norm.named_parameters())
    if kind == "rela_i":
        assert_uniform(values.pop("weight"), 0.5)  # sqrt(3 / 12)
    elif kind != "softmax_gated":
        assert (values.pop("weight") == 1).all()
    if kind == "rela_g_layernorm":
        assert (values.pop("bias") == 0).all()
    if kind.startswith("rela_g") or kind.endswith("gated") or kind == "relu_centred":
        assert_uniform(values.pop("gate"), 0.1)  # sqrt(3 / 300)
    assert not values


def assert_uniform(values, bound):
    assert values.shape == (300,) and values.abs().max() <= bound
    # Five standard deviations of the mean and of the variance of 300 values
    assert values.mean().abs() < 5 * bound * (1 / 3 / 300) ** 0.5
    assert abs(values.var() / (bound**2 / 3) - 1) < 5 * (0.8 / 300) ** 0.5
