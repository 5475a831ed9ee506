"""The ops against 50-digit arithmetic, within the bounds that docs/results/numerics.md gives."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.ops import alpha_relu, backends, entmax, entmax_loss
from numerics import exact, measures
from op_cases import DTYPES

ALPHAS = (1.3, 1.5, 1.75, 2.0)

each_alpha = pytest.mark.parametrize("alpha", ALPHAS)

rows = st.one_of(
    st.lists(st.floats(-8, 8), min_size=1, max_size=8),
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, -0.5, -1.0, -2.0, -1 - 2.0**-23, 1e4, 5e-324, -float("inf")]),
             min_size=1, max_size=8),
)  # fmt: skip


def solved(z, alpha, tau=None):
    op = measures.Entmax(alpha) if tau is None else measures.AlphaReLU(alpha, tau)
    return measures.Exact(z, op, np.random.default_rng(1), of_alpha=False)


def difference(actual, expected):
    return np.abs(measures.numbers(actual) - expected)


# --- the ops -------------------------------------------------------------------------------------


@given(rows, st.sampled_from(ALPHAS), st.sampled_from(DTYPES))
def test_probabilities_and_loss(row, alpha, dtype):
    z = torch.tensor([row], dtype=torch.float64).to(dtype)
    truth = solved(z, alpha)
    p = entmax(z, alpha)
    if truth.empty.any():
        assert (p == 0).all()
        return
    eps = torch.finfo(dtype).eps
    # In half precision p is rounded once, and the other errors are negligible.
    allowed = (0.51 if dtype.itemsize == 2 else 4) * eps
    assert (difference(p, truth.p) <= allowed).all()
    gradient = z.clone().requires_grad_()
    loss = entmax_loss(gradient, torch.from_numpy(truth.label), alpha, reduction="none")
    loss.sum().backward()
    assert (difference(gradient.grad, truth.p - truth.target(0.0)) <= allowed).all()
    expected = truth.losses[0.0]
    if np.isinf(expected).all():
        assert (loss == float("inf")).all()
    else:
        unit = torch.finfo(loss.dtype).eps * np.maximum(1, np.maximum(expected, truth.largest))
        assert (difference(loss, expected) <= 8 * unit).all()


@given(rows, st.sampled_from(ALPHAS), st.sampled_from(DTYPES), st.sampled_from([-0.7, 0.3, 1.35]))
def test_alpha_relu(row, alpha, dtype, tau):
    z = torch.tensor([row], dtype=torch.float64).clamp(max=8).to(dtype)
    expected = solved(z, alpha, tau).p
    allowed = (0.51 if dtype.itemsize == 2 else 16) * torch.finfo(dtype).eps
    assert (difference(alpha_relu(z, tau, alpha), expected)
            <= allowed * np.maximum(1, expected)).all()  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [300, 40000])
@each_alpha
def test_the_largest_does_not_pay_for_a_wide_support(alpha, size, dtype):
    """One logit above many: each of the others has the threshold's rounding error."""
    z = torch.full((1, size), -0.3 / (alpha - 1), dtype=dtype)
    z[0, size // 2] = 0
    expected = solved(z, alpha).p
    found = [entmax(z, alpha)]
    with backends.use("reference"):
        found.append(entmax(z, alpha))
    for p in found:
        assert difference(p, expected).max() <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("algorithm", ["sort", "partial", "bisect"])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("top", [1.8, 1.99])
def test_another_algorithm_is_nearly_as_exact_in_a_wide_support(algorithm, alpha, top):
    """The variance of such a row is the difference of two numbers that are nearly equal."""
    z = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(1)) * 1e-3
    z[0, 7] = top / (2 * alpha - 2)
    p = entmax(z, alpha, algorithm=algorithm)
    # Only Newton's threshold is corrected for its own rounding, which each entry has.
    assert difference(p, solved(z, alpha).p).max() <= 3e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [2e-4, 0.0055])
@pytest.mark.parametrize("size", [32_000, 262_144])
@each_alpha
def test_a_wide_support_just_above_the_threshold_is_not_lost(alpha, size, distance, dtype):
    """Each entry is about as far from the threshold as the threshold's rounding error."""
    z = torch.full((1, size), (distance - 1) / (alpha - 1), dtype=dtype)
    z[0, 0] = 0
    expected = solved(z, alpha).p
    for backend in ("auto", "reference"):
        with backends.use(backend):
            assert difference(entmax(z, alpha), expected).max() <= 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_on_the_threshold_stay_there(dtype):
    """Newton's last step may end exactly on them; they are then not in its support."""
    eps = torch.finfo(dtype).eps
    for steps in range(-3, 4):
        z = -1 + torch.arange(-4, 12, dtype=dtype) * eps / 2 + steps * eps / 4
        z = torch.cat([z.new_zeros(1), z])[None] + 0.0193605423
        with backends.use("reference"):
            p = entmax(z, 2.0)
        assert difference(p, solved(z, 2.0).p).max() <= 4 * eps


# --- the 50 digits -------------------------------------------------------------------------------


def digits(actual, expected):
    """Return how many digits of two numbers agree."""
    error = abs(actual - expected) / max(abs(exact.real(1)), abs(expected))
    return 1000 if error == 0 else -int(exact.log10(error))


def test_sparsemax_is_that_of_fractions():
    row = [0.75, 0.7, 0.5, 0.1, -3.0]
    found = exact.entmax(row, [1, 2, 1, 1, 1], 2.0)
    z = [Fraction(v) for v in row]
    # The support has four entries: 0.75, 0.7 twice and 0.5.
    tau = (z[0] + 2 * z[1] + z[2] - 1) / 4
    assert z[2] > tau > z[3]
    assert len(found.p) == 3
    for p, v in zip(found.p, z, strict=False):
        assert digits(p, exact.real((v - tau).numerator) / (v - tau).denominator) >= exact.DIGITS
    assert digits(found.tau + found.shift, exact.real(tau.numerator) / tau.denominator) >= 50


def test_entmax15_of_two_logits_is_the_closed_form():
    # (0 - tau) ** 2 + (-d / 2 - tau) ** 2 = 1
    d = 0.7
    found = exact.entmax([0.0, -d], [1, 1], 1.5)
    half = exact.real(d) / 4
    root = (exact.real("0.5") - half**2) ** exact.real("0.5")
    assert digits(found.p[0], (half + root) ** 2) >= exact.DIGITS
    assert digits(found.p[1], (root - half) ** 2) >= exact.DIGITS


@pytest.mark.parametrize("alpha", [1.001, 1.3, 1.5, 2.0, 3.0])
def test_a_row_of_one_value_is_uniform(alpha):
    found = exact.entmax([-1e4], [262144], alpha)
    assert digits(found.p[0] * 262144, exact.real(1)) >= exact.DIGITS


@pytest.mark.parametrize("alpha", [1.3, 1.75, 3.0])
def test_gradients_are_difference_quotients(alpha):
    values, counts, grads = [1.25, 1.0, 0.5], [1, 2, 1], [0.5, -1.0, 2.0]
    row = exact.entmax(values, counts, alpha)
    step = 2.0**-40

    def weighted(moved):
        return sum(g * p for g, p in zip(grads, moved.p, strict=False))

    quotient = weighted(exact.entmax(values, counts, alpha + step))
    quotient = (quotient - weighted(exact.entmax(values, counts, alpha - step))) / (2 * step)
    found, _ = exact.alpha_gradient(row, counts, grads)
    assert abs(found - quotient) <= 1e-18

    # The loss of the first logit as its target, and its gradient p - q.
    def loss(first):
        moved = exact.entmax([first, *values[1:]], counts, alpha)
        return exact.loss(moved, first, None, 4, 0.0, True)

    quotient = (loss(values[0] + step) - loss(values[0] - step)) / (2 * step)
    assert abs(row.p[0] - 1 - quotient) <= 1e-18


def test_mean_of_has_no_rounding():
    values = np.array([1e308, 1e308, 1.0, -1e308, -1e308, 2.0**-60])
    assert digits(exact.mean_of(values) * 6, 1 + exact.real(2.0**-60)) >= exact.DIGITS
