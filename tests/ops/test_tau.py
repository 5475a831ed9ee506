import math
from statistics import NormalDist

import pytest
import torch

import references
from fairseq_sparse.ops import (
    alpha_relu,
    entmax_threshold,
    tau_from_formula,
    tau_from_logits,
    tau_from_weights,
)
from fairseq_sparse.ops.tau import expected_support_share, mean_field_tau

NORMAL = NormalDist()
NAN = float("nan")
INF = float("inf")
# The logits' standard deviation by V, with Xavier-uniform weights at d = 512.
XAVIER = {size: math.sqrt(2 * 512 / (512 + size)) for size in (10_000, 40_000, 60_000)}


def upper_tail(t):
    return NORMAL.cdf(-t)


# --- formula -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vocab_size, p_star, tau",
    [(10_000, 0.0184, 0.33), (40_000, 0.0171, 0.17), (60_000, 0.0170, 0.14)],
)
def test_table_3_of_speeding_up_entmax(vocab_size, p_star, tau):
    share = expected_support_share(vocab_size, XAVIER[vocab_size] ** 2)
    assert round(share, 4) == p_star
    assert round(tau_from_formula(512, vocab_size), 2) == tau


@pytest.mark.parametrize(
    "vocab_size, sigma2, tau",
    [
        (10_000, None, 0.3258),
        (40_000, None, 0.1683),
        (60_000, None, 0.1379),
        (10_000, 1.0, 1.365),
        (40_000, 1.0, 1.556),
        (60_000, 1.0, 1.609),
    ],
)
def test_more_digits_of_the_formula(vocab_size, sigma2, tau):
    digits = 4 if sigma2 is None else 3
    assert round(tau_from_formula(512, vocab_size, sigma2), digits) == tau


@pytest.mark.parametrize("vocab_size, sigma2", [(100, 4.0), (10_000, 0.1), (60_000, 1.0)])
def test_share_solves_the_equation_of_the_lemma(vocab_size, sigma2):
    p = expected_support_share(vocab_size, sigma2)
    t, top = NORMAL.inv_cdf(1 - p), NORMAL.inv_cdf(1 - 1 / vocab_size)
    # E[(g - t)^2 | t < g < top] by the midpoint rule.
    steps = 20_000
    width = (top - t) / steps
    nodes = [t + (step + 0.5) * width for step in range(steps)]
    density = [NORMAL.pdf(g) for g in nodes]
    square = sum((g - t) ** 2 * weight for g, weight in zip(nodes, density, strict=True))
    square /= sum(density)
    assert p * vocab_size * sigma2 / 4 * square == pytest.approx(1, rel=1e-6)
    assert tau_from_formula(1, vocab_size, sigma2) == pytest.approx(math.sqrt(sigma2) / 2 * t)


def test_formula_is_for_alpha_15_alone():
    assert tau_from_formula(512, 10_000, alpha=1.5) == tau_from_formula(512, 10_000)
    for alpha in (1.0, 1.25, 2.0, 1.5001):
        with pytest.raises(ValueError, match="alpha = 1.5 alone.*--output-tau weights"):
            tau_from_formula(512, 10_000, alpha=alpha)


def test_formula_without_an_answer_names_the_next():
    for vocab_size, sigma2 in ((3, 1e-4), (1000, 1e-9)):
        with pytest.raises(ValueError, match="no solution for .*--output-tau weights"):
            tau_from_formula(512, vocab_size, sigma2)


def test_bad_arguments_of_the_formula():
    for d_model, vocab_size in ((0, 100), (-1, 100), (512, 2), (512, 0)):
        with pytest.raises(ValueError, match="need d_model >= 1 and vocab_size >= 3, got"):
            tau_from_formula(d_model, vocab_size)
    for sigma2 in (0.0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="sigma2 must be a positive number, got"):
            tau_from_formula(512, 10_000, sigma2)


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("vocab_size", [2, 100, 10_000, 250_000])
def test_mean_field_equation_in_closed_form(vocab_size, sigma):
    # sparsemax: E[s g - tau]_+
    tau = mean_field_tau(sigma, vocab_size, alpha=2.0)
    t = tau / sigma
    mass = sigma * (NORMAL.pdf(t) - t * upper_tail(t))
    assert vocab_size * mass == pytest.approx(1, rel=1e-7)
    # 1.5-entmax: E[(s / 2) g - tau]_+^2
    tau = mean_field_tau(sigma, vocab_size, alpha=1.5)
    s = sigma / 2
    t = tau / s
    mass = s * s * ((1 + t * t) * upper_tail(t) - t * NORMAL.pdf(t))
    # The closed form loses digits by cancellation: t^2 is up to 1e4 where sigma is small.
    assert vocab_size * mass == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    "sigma, vocab_size, tau",
    [
        (XAVIER[size], size, tau)
        for size, tau in ((10_000, 0.3299), (40_000, 0.169), (60_000, 0.1384))
    ]
    + [(1.0, 10_000, 1.408), (1.0, 40_000, 1.593), (1.0, 60_000, 1.644)],
)
def test_known_thresholds(sigma, vocab_size, tau):
    assert mean_field_tau(sigma, vocab_size) == pytest.approx(tau, abs=6e-4 if sigma == 1 else 6e-5)


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("vocab_size, sigma", [(50, 2.0), (1000, 1.0), (5000, 0.3)])
def test_weights_sum_to_1_on_average_over_drawn_logits(vocab_size, sigma, alpha):
    tau = mean_field_tau(sigma, vocab_size, alpha)
    sums = alpha_relu(sigma * torch.randn(400, vocab_size).double(), tau, alpha).sum(-1)
    standard_error = float(sums.std()) / math.sqrt(len(sums))
    assert abs(float(sums.mean()) - 1) < 4 * standard_error
    assert standard_error < 0.25


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("vocab_size, sigma", [(200, 0.5), (2000, 1.0), (10_000, 0.3)])
def test_weights_agree_with_the_thresholds_of_drawn_logits(vocab_size, sigma, alpha):
    width, rows = 64, 50
    weight = torch.randn(vocab_size, width).double() * sigma / math.sqrt(width)
    features = torch.randn(rows, width).double()
    features = features / features.pow(2).mean(-1, keepdim=True).sqrt()
    logits = features @ weight.t()
    thresholds = entmax_threshold(logits, alpha)
    drawn = float(tau_from_logits(logits, alpha))
    assert drawn == pytest.approx(float(thresholds.mean()), rel=1e-12)
    spread = float(thresholds.std())
    # A row's sum is convex in its threshold, so the mean of the thresholds differs from the
    # threshold of the mean by the square of their spread; the rest is sampling error.
    slope = max(1.0, 1 / (alpha - 1)) / max(1e-9, sigma * (alpha - 1)) * 4
    allowed = 4 * spread / math.sqrt(rows) + slope * spread**2
    assert abs(tau_from_weights(weight, alpha) - drawn) < allowed


def test_weights_are_seen_through_their_rows_norms():
    weight = torch.randn(300, 16)
    sigma = math.sqrt(float(weight.double().pow(2).sum(-1).mean()))
    for alpha in (1.3, 1.5, 2.0):
        assert tau_from_weights(weight, alpha) == mean_field_tau(sigma, 300, alpha)
        small = tau_from_weights(weight, alpha, mean_square=0.01)
        assert small == pytest.approx(mean_field_tau(sigma / 10, 300, alpha))
    assert tau_from_weights(weight.requires_grad_()) == tau_from_weights(weight.t().detach().t())
    for dtype in (torch.float16, torch.bfloat16):
        # These dtypes cannot add up 300 x 16 squares.
        near = tau_from_weights(weight.detach().to(dtype))
        assert near == pytest.approx(tau_from_weights(weight), rel=0.01)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("vocab_size", [1, 7, 1000])
def test_flat_weights_give_the_threshold_of_a_flat_row(vocab_size, alpha):
    tau = tau_from_weights(torch.zeros(vocab_size, 8), alpha)
    assert tau == pytest.approx(-(vocab_size ** (1 - alpha)), rel=1e-9)
    nearly = tau_from_weights(torch.full((vocab_size, 8), 1e-16), alpha)
    assert nearly == pytest.approx(tau, rel=1e-4)


@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0, 5.0])
def test_tau_rises_with_the_vocabulary_and_is_finite(alpha):
    taus = [mean_field_tau(1.0, size, alpha) for size in (2, 10, 100, 10_000, 1_000_000)]
    assert taus == sorted(taus) and all(map(math.isfinite, taus))
    for sigma in (1e-6, 1e-2, 1e2, 1e4):
        assert math.isfinite(mean_field_tau(sigma, 10_000, alpha))


def test_tau_of_weights_near_alpha_1_is_that_of_softmax():
    # [1 + (alpha - 1) (z - c)]^(1 / (alpha - 1)) -> exp(z - c), c = log V + sigma^2 / 2.
    alpha, sigma, vocab_size = 1.0001, 0.5, 1000
    tau = mean_field_tau(sigma, vocab_size, alpha)
    c = (tau + 1) / (alpha - 1)
    assert c == pytest.approx(math.log(vocab_size) + sigma**2 / 2, rel=1e-2)


def test_bad_arguments_of_the_weights():
    weight = torch.randn(10, 4)
    for alpha in (1.0, 0.5, NAN, INF):
        with pytest.raises(ValueError, match="alpha must be a finite number above 1"):
            tau_from_weights(weight, alpha)
    for wrong in (weight[0], weight[None], torch.zeros(0, 4), torch.zeros(4, 0)):
        with pytest.raises(ValueError, match=r"weight must be a matrix \[V, d\], got shape"):
            tau_from_weights(wrong)
    for value in (NAN, INF):
        bad = weight.clone()
        bad[3, 2] = value
        with pytest.raises(ValueError, match="weight or mean_square holds values"):
            tau_from_weights(bad)


# --- logits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_logits_give_their_mean_threshold(alpha, dtype):
    z = torch.randn(3, 4, 50).to(dtype).requires_grad_()
    tau = tau_from_logits(z, alpha)
    assert tau.shape == () and not tau.requires_grad
    assert tau.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    references.assert_close_to_naive(
        tau, lambda z: references.entmax_threshold(z, alpha).mean(), z.detach(), slack=4
    )


def test_half_precision_does_not_lose_rows():
    # A mean over 5,000 rows in fp16 would stop counting at 2,048.
    z = torch.randn(1, 20).half().expand(5000, 20)
    expected = references.entmax_threshold(z[:1].double(), 1.5)[0]
    torch.testing.assert_close(tau_from_logits(z).double(), expected, rtol=1e-5, atol=1e-6)


def test_logits_with_nan_or_a_bad_alpha():
    z = torch.randn(3, 5)
    with pytest.raises(ValueError, match="alpha must be a finite number above 1"):
        tau_from_logits(z, 1.0)
    z[1, 2] = NAN
    assert tau_from_logits(z).isnan()
