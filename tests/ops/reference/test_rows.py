"""The search for tau on hard rows, in PyTorch and by the backend that is chosen."""

import math

import pytest
import torch

from fairseq_sparse.ops import alpha_relu, backends
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.mappings import entmax_and_threshold
from fairseq_sparse.ops.reference.powers import positive_power
from fairseq_sparse.ops.reference.rows import (
    CUT,
    SCALE,
    SHIFT,
    TAU,
    probabilities,
    row_loss,
    solve_entmax,
)
from references import assert_close_to_naive, entmax, entmax_threshold

INF = float("inf")
NAN = float("nan")
# Before the search the kernels thin out long rows only; 517 is no multiple of a vector's size.
SIZES = (60, 517)
ALPHAS = (1.001, 1.25, 1.5, 1.75, 2.0, 2.1, 3.0, 5.0)


def hard_rows(size=60, rows=12):
    """Return fp64 rows with maximum 0, so that tau is as exact as its own dtype allows."""
    scale = torch.logspace(-9, 3, rows, dtype=torch.float64)[:, None]
    near_edge = (scale.clamp(max=1) - 1) * 2
    zeros = torch.zeros(rows, size, dtype=torch.float64)
    halves = torch.arange(size) >= size // 2
    normal = torch.randn(rows, size, dtype=torch.float64)
    z = torch.cat(
        [
            normal * scale,
            normal.round(),
            (normal * scale).masked_fill(normal > 1, -INF),
            -torch.logspace(-12, 2, size, dtype=torch.float64) * scale,  # each far below the last
            zeros.masked_fill(halves, -1.0) * scale,  # many ties at two values
            zeros.masked_fill(torch.arange(size) > 0, -1.0) * scale,  # one above many ties
            zeros.masked_fill(torch.arange(size) > 0, 1.0) * near_edge,
            zeros[:1],
            zeros[:1].masked_fill(torch.arange(size) > 0, -INF),
        ]
    )
    z[::2] = z[::2].flip(-1)
    return z - z.amax(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_tau_is_exact_to_rounding(size, alpha, dtype):
    z = hard_rows(size).to(dtype)
    exact = entmax_threshold(z.double(), alpha)
    # A few roundings: of (alpha - 1) z, of the powers and of their sum.
    allowed = 16 * torch.finfo(dtype).eps * exact.abs()
    for backend in ("auto", "reference"):
        with backends.use(backend):
            tau = entmax_and_threshold(z, alpha)[1]
        assert tau.dtype == dtype and tau.shape == z.shape[:1]
        assert ((tau.double() - exact).abs() <= allowed).all()


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_probabilities_of_both_paths_are_those_of_the_naive_version(size, alpha, dtype):
    z = (hard_rows(size) + 3).to(dtype)
    for backend in ("auto", "reference"):
        with backends.use(backend):
            p = entmax_and_threshold(z, alpha)[0]
        assert p.dtype == dtype
        # Ties share the rounding error of tau, so the error of their sum grows with their number.
        # The CPU kernels take the last steps in fp64.
        ties = size * torch.finfo(dtype).eps
        compiled = backend == "auto" and build.library() is not None and 1.05 <= alpha <= 2
        exact = compiled and dtype == torch.float32
        assert_close_to_naive(p, lambda z: entmax(z, alpha), z, atol=0.0 if exact else ties)
        assert ((p.double().sum(-1) - 1).abs() <= ties).all()


def test_an_alpha_for_each_row_is_that_alpha_alone():
    z = hard_rows()
    alpha = torch.tensor(ALPHAS, dtype=torch.float64).repeat(len(z))[: len(z), None]
    solution, together = solve_entmax(z, alpha)
    assert_close_to_naive(together, entmax, z, alpha)
    for alone in ALPHAS:
        rows = (alpha == alone).squeeze(-1)
        expected, p = solve_entmax(z[rows], alone)
        torch.testing.assert_close(solution[TAU, rows], expected[TAU], rtol=1e-13, atol=0)
        if alone <= 2:
            torch.testing.assert_close(together[rows], p, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("tau", [None, 0.3])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_a_solution_gives_the_probabilities(alpha, tau, backend):
    z = torch.randn(20, 300) * torch.logspace(-2, 2, 20)[:, None]
    z[3], z[4, 4] = -INF, NAN
    target, threshold = torch.zeros(20).long(), None if tau is None else torch.tensor(tau)
    with backends.use(backend):
        _, solution = row_loss(z, target, threshold, alpha, 0.0, -100, "newton", 0)
        expected = entmax_and_threshold(z, alpha)[0] if tau is None else alpha_relu(z, tau, alpha)
    assert solution.dtype == torch.float64 and solution.shape == (4, 20)
    found = probabilities(z, solution, alpha)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert (expected[z <= solution[CUT].unsqueeze(-1)] == 0).all()
    if tau is None:
        assert torch.equal(solution[SHIFT, :3], z[:3].amax(-1).double())
    else:
        assert (solution[SHIFT] == 0).all() and (solution[SCALE] == 1).all()


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 2.5])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_positive_power(exponent, as_tensor):
    x = torch.tensor([0.0, 1e-3, 0.3, 1.0, 7.0, NAN], dtype=torch.float64)
    power = positive_power(x, torch.tensor(exponent).double() if as_tensor else exponent)
    expected = [0.0] + [math.pow(value, exponent) for value in (1e-3, 0.3, 1.0, 7.0)]
    torch.testing.assert_close(power[:5], torch.tensor(expected, dtype=torch.float64))
    assert power[5].isnan()
