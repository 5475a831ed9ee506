"""The compiled kernels for rows of logits, against the naive versions and the PyTorch path."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import references
from fairseq_sparse.ops import backends, cpu, entmax, reference
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.rows import (
    entmax_gradient,
    log_probabilities,
    solve_alpha_relu,
    solve_entmax,
)
from fairseq_sparse.ops.cpu.screen import PackedRows
from fairseq_sparse.ops.reference.alpha_relu import weights_and_base

pytestmark = pytest.mark.usefixtures("compiled")

INF = float("inf")
NAN = float("nan")
EPS = torch.finfo(torch.float32).eps
ALPHAS = (1.05, 1.1, 1.25, 1.5, 1.75, 1.99, 2.0)
# 16 logits are compared and 256 added at once; above 128, a first bound comes from maxima of 16.
SIZES = (1, 2, 15, 16, 17, 33, 255, 256, 257, 287, 1000)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)
each_size = pytest.mark.parametrize("size", SIZES)


def rows_of(size, alpha=1.5):
    """Return fp32 rows of many kinds; all have a finite maximum."""
    normal = torch.randn(8, size)
    scale = torch.logspace(-2, 4, 8)[:, None]
    first = torch.arange(size) == 0
    zeros = torch.zeros(1, size)
    kinds = [
        normal * scale,
        (normal * 2).round(),  # ties
        normal + torch.logspace(0, 6, 8)[:, None],  # a shift
        (normal * scale).masked_fill(normal > 0.5, -INF).masked_fill(first, 0.0),
        # Many entries near the threshold.
        (normal * torch.logspace(-7, -2, 8)[:, None] - 1).masked_fill(first, 0.0) / (alpha - 1),
        -torch.logspace(-12, 2, size) * scale,
        zeros,
        zeros - 1e4,
        zeros.masked_fill(~first, -INF),
        zeros.masked_fill(~first, -3e38) + 3e38 * first,
        zeros - 3e38,
        zeros + 1e-40 * torch.arange(size),
    ]
    z = torch.cat(kinds)
    z[1::2] = z[1::2].flip(-1)
    return z


def packed(z, kept):
    """Return the logits of each row that are kept."""
    count = kept.sum(-1)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
    return PackedRows(z[kept], start, kept.nonzero()[:, 1].int(), z.size(1))


def dense(sparse):
    """Return the matrix of a SparseRows in fp64, added up entry by entry."""
    rows = len(sparse.start) - 1
    matrix = torch.zeros(rows, sparse.size, dtype=torch.float64)
    row = torch.arange(rows).repeat_interleave(sparse.start.diff())
    return matrix.index_put_((row, sparse.columns.long()), sparse.values.double(), accumulate=True)


def assert_probabilities(p, exact, alpha):
    """Assert that p is as exact as fp32 logits allow: within beta roundings of [x - tau]_+."""
    p = p.double()
    largest = torch.maximum(p, exact)
    slope = torch.where(largest > 0, largest ** (2 - alpha), largest)
    allowed = 4 * EPS * (slope / (alpha - 1) + exact) + 1e-37
    worst = float(((p - exact).abs() / allowed).max())
    assert worst <= 1, f"{worst:.3g} times the error that is fair"


# --- alpha-entmax --------------------------------------------------------------------------------


@pytest.mark.each_value
@each_size
@each_alpha
def test_probabilities_are_those_of_the_naive_version(alpha, size):
    z = rows_of(size, alpha)
    p = solve_entmax(z, alpha).probabilities()
    exact = references.entmax(z.double(), alpha)
    assert_probabilities(p, exact, alpha)
    assert (p[z == -INF] == 0).all()
    # Also where a power multiplies one rounding, the same in all entries, by beta.
    assert ((p.double().sum(-1) - 1).abs() <= 2 * EPS).all()


@pytest.mark.each_value
@each_size
@each_alpha
def test_logarithms_are_those_of_the_probabilities(alpha, size):
    z = rows_of(size, alpha)
    p = solve_entmax(z, alpha).probabilities()
    torch.testing.assert_close(log_probabilities(z, alpha, None), p.log(), rtol=1e-6, atol=1e-6)


@pytest.mark.each_value
@each_size
@each_alpha
def test_threshold_conjugate_and_count(alpha, size):
    z = rows_of(size, alpha)
    solved = solve_entmax(z, alpha)
    maximum = z.amax(-1)
    assert torch.equal(solved.shift, maximum.double())
    x = z.double() - solved.shift[:, None]
    tau = references.entmax_threshold(x, alpha)
    assert ((solved.tau - tau).abs() <= 6 * EPS * tau.abs()).all()
    p = references.entmax(x, alpha)
    value = torch.where(p > 0, p * x, p).sum(-1) + references.tsallis_entropy(p, alpha)
    allowed = 4 * EPS * (1 + value.abs() + 1 / (alpha - 1))
    assert ((solved.conjugate - value).abs() <= allowed).all()
    # Exact zeros off the support, except for entries within a rounding of its edge.
    nonzero = (solved.probabilities() > 0).sum(-1)
    assert (nonzero <= solved.count).all()
    rounding = 8 * EPS * (tau.abs() + (alpha - 1) * maximum.double().abs())
    near = ((alpha - 1) * x >= (tau - rounding)[:, None]).sum(-1)
    assert (solved.count <= near).all()


@each_alpha
def test_an_alpha_for_each_row_is_that_alpha_alone(alpha):
    z = rows_of(300)
    others = torch.rand(len(z), 1, dtype=torch.float64) * 0.95 + 1.05
    others[::3] = alpha
    together = solve_entmax(z, others)
    alone = solve_entmax(z[::3].contiguous(), alpha)
    assert torch.equal(together.tau[::3], alone.tau)
    assert torch.equal(together.probabilities()[::3], alone.probabilities())
    assert_probabilities(
        together.probabilities(), references.entmax(z.double(), others), others.expand_as(z)
    )


@pytest.mark.each_value
@pytest.mark.parametrize("size", [1, 16, 40, 300])
@each_alpha
def test_rows_without_an_answer_do_not_touch_the_others(alpha, size):
    z = torch.randn(6, size)
    good = solve_entmax(z, alpha).probabilities()[[0, 5]]
    z[1] = -INF
    z[2, size - 1] = NAN
    z[3, 0] = INF
    z[4] = NAN
    solved = solve_entmax(z, alpha)
    p, log_p = solved.probabilities(), log_probabilities(z, alpha, None)
    assert torch.equal(p[[0, 5]], good)
    assert (p[1] == 0).all() and (log_p[1] == -INF).all()
    assert solved.count[1] == 0 and solved.conjugate[1] == 0 and solved.shift[1] == 0
    assert p[2:5].isnan().all() and log_p[2:5].isnan().all()
    assert solved.tau[2:5].isnan().all() and solved.conjugate[2:5].isnan().all()
    residual = dense(solved.residual(torch.zeros(6).long(), 1.0, torch.ones(6).bool()))
    assert residual[2:5].isnan().all()
    expected = torch.zeros(size, dtype=torch.float64)
    expected[0] = -1
    assert torch.equal(residual[1], expected)


@given(
    rows=st.lists(
        st.lists(st.floats(width=32, allow_nan=False), min_size=7, max_size=7),
        min_size=1,
        max_size=4,
    ),
    alpha=st.floats(1.05, 2),
)
def test_any_logits(rows, alpha):
    z = torch.tensor(rows)
    solved = solve_entmax(z, alpha)
    p = solved.probabilities()
    infinite = (z == INF).any(-1)
    assert p[infinite].isnan().all()
    if not infinite.all():
        finite = z[~infinite].double()
        assert_probabilities(p[~infinite], references.entmax(finite, alpha), alpha)
    target = torch.zeros(len(z), dtype=torch.int64)
    residual = solved.residual(target, 1.0, torch.ones(len(z)).bool())
    assert torch.equal(residual.start.diff(), solved.count.long() + 1)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_rows(threads):
    z = torch.randn(70, 300) * 3
    target = torch.randint(300, (70,))
    expected = solve_entmax(z, 1.5)
    try:
        torch.set_num_threads(threads)
        solved = solve_entmax(z, 1.5)
        p, log_p = solved.probabilities(), log_probabilities(z, 1.5, None)
        residual = solved.residual(target, 1.0, torch.ones(70).bool())
        gradient = entmax_gradient(p, z, 1.5)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(solved.conjugate, expected.conjugate)
    assert torch.equal(p, expected.probabilities())
    assert torch.equal(log_p, log_probabilities(z, 1.5, None))
    assert torch.equal(gradient, entmax_gradient(p, z, 1.5))
    one = expected.residual(target, 1.0, torch.ones(70).bool())
    assert all(torch.equal(a, b) for a, b in zip(residual[:3], one[:3], strict=True))


@pytest.mark.parametrize("alpha", [1.0, 1.04, 2.001, 3.0, NAN])
def test_alpha_out_of_range(alpha):
    z = torch.zeros(2, 3)
    for outside in (alpha, torch.tensor([[1.5], [alpha]])):
        assert backends.choose("entmax", (z,), alpha=outside) is reference
    for inside in (1.05, 2, torch.tensor([[1.05], [2.0]])):
        assert backends.choose("entmax", (z,), alpha=inside) is cpu


# --- alpha-ReLU ----------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("tau", [-50.0, -0.3, 0.0, 1e-40, 0.3, 40.0])
@each_alpha
def test_alpha_relu_is_that_of_pytorch(alpha, tau):
    z = torch.cat([rows_of(300, alpha).clamp(max=1e6), torch.full((1, 300), tau / (alpha - 1))])
    z[-1] += torch.arange(-150, 150) * EPS * z[-1].abs()
    solved = solve_alpha_relu(z, tau, alpha)
    p = solved.probabilities()
    expected, above = weights_and_base(z, tau, alpha)
    assert torch.equal(p.isinf(), expected.isinf())
    torch.testing.assert_close(p, expected, rtol=3e-6 / (alpha - 1), atol=1e-37)
    assert (p[(alpha - 1) * z <= torch.tensor(tau)] == 0).all()
    assert ((p > 0).sum(-1) <= solved.count).all()
    torch.testing.assert_close(
        log_probabilities(z, alpha, tau), p.log(), rtol=1e-6, atol=1e-6, equal_nan=True
    )
    conjugate = (expected.double() * above).sum(-1) / alpha
    fits = conjugate < 1e37
    torch.testing.assert_close(
        solved.conjugate[fits], conjugate[fits], rtol=3e-6 / (alpha - 1), atol=1e-37
    )


@each_alpha
def test_alpha_relu_of_logits_that_are_too_large(alpha):
    z = torch.logspace(-40, 38.4, 400)[None]
    z = torch.cat([z, z.flip(-1), -z, z, z])
    z[3, 7], z[4, 9] = INF, NAN
    solved = solve_alpha_relu(z, 0.3, alpha)
    p, expected = solved.probabilities(), weights_and_base(z, 0.3, alpha)[0]
    torch.testing.assert_close(p, expected, rtol=6e-6 / (alpha - 1), atol=1e-37, equal_nan=True)
    assert (solved.conjugate[[0, 1, 3]] >= 3e38).all()
    assert solved.conjugate[2] == 0 and solved.conjugate[4].isnan()


# --- p less the target ---------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("gold", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("size", [1, 2, 16, 300])
@pytest.mark.parametrize("mapping", ["entmax", "alpha_relu"])
def test_residual_is_p_less_the_target(mapping, size, gold):
    z = rows_of(size).clamp(max=1e4)
    solved = solve_entmax(z, 1.5) if mapping == "entmax" else solve_alpha_relu(z, 0.3, 1.5)
    target = torch.randint(size, (len(z),))
    target[::4], target[1::4] = 0, size - 1
    counts = torch.rand(len(z)) < 0.7
    counts[:2] = torch.tensor([True, False])
    target[~counts] = -100
    residual = solved.residual(target, gold, counts)
    expected = solved.probabilities().double()
    expected[counts, target[counts]] -= gold
    expected[~counts] = 0
    torch.testing.assert_close(dense(residual), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(residual.start.diff(), ((solved.count + 1) * counts).long())
    assert residual.columns.dtype == torch.int32 and residual.size == size


def test_no_row_counts():
    solved = solve_entmax(torch.randn(3, 40), 1.5)
    residual = solved.residual(torch.full((3,), -100), 1.0, torch.zeros(3).bool())
    assert torch.equal(residual.start, torch.zeros(4, dtype=torch.int64))
    assert residual.columns.numel() == residual.values.numel() == 0


@pytest.mark.each_value
@pytest.mark.parametrize("size", [1, 17, 300, 700])
@each_alpha
def test_packed_rows_give_what_dense_rows_give(alpha, size):
    z = rows_of(size, alpha)
    exact = references.entmax(z.double(), alpha)
    kept = (exact > 0) | (torch.rand(z.shape) < 0.1) | (z == z.amax(-1, keepdim=True))
    whole, some = solve_entmax(z, alpha), solve_entmax(packed(z, kept), alpha)
    assert torch.equal(some.shift, whole.shift)
    torch.testing.assert_close(some.tau, whole.tau, rtol=1e-6, atol=0)
    torch.testing.assert_close(some.conjugate, whole.conjugate, rtol=1e-6, atol=1e-6 / (alpha - 1))
    target, counts = torch.randint(size, (len(z),)), torch.rand(len(z)) < 0.8
    residual = some.residual(target, 0.9, counts)
    assert residual.size == size
    p = dense(residual)[counts]
    p[range(len(p)), target[counts]] += 0.9
    # The target's p has lost digits, because 0.9 was subtracted and added again.
    exact = exact[counts]
    p[(p - exact).abs() <= 2e-7] = exact[(p - exact).abs() <= 2e-7]
    assert_probabilities(p, exact, alpha)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_packed_rows_may_have_no_logits(rows):
    z = torch.randn(rows, 40)
    kept = torch.zeros(rows, 40).bool()
    kept[2:] = z[2:] > 0
    target = torch.arange(rows)
    for solved in (
        solve_entmax(packed(z, kept), 1.5),
        solve_alpha_relu(packed(z, kept), 0.1, 1.5),
    ):
        assert (solved.count[:2] == 0).all() and (solved.conjugate[:2] == 0).all()
        residual = dense(solved.residual(target, 1.0, torch.ones(rows).bool()))
        only_target = torch.zeros(rows, 40, dtype=torch.float64)
        only_target[range(rows), target] = -1
        assert torch.equal(residual[:2], only_target[:2])


# --- the gradient --------------------------------------------------------------------------------


@pytest.mark.each_value
@each_size
@each_alpha
def test_gradient_of_entmax_is_that_of_pytorch(alpha, size):
    z = rows_of(size, alpha).requires_grad_()
    grad = torch.randn(z.shape)
    with mock.patch.object(build, "library", return_value=None):
        p = entmax(z, alpha)
        (expected,) = torch.autograd.grad(p, z, grad)
    actual = entmax_gradient(p.detach(), grad, alpha)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    assert (actual[p == 0] == 0).all()


@each_alpha
def test_gradient_of_entmax_is_the_naive_one(alpha):
    z = torch.randn(20, 40, dtype=torch.float64) * torch.logspace(-1, 1, 20)[:, None]
    p, grad = references.entmax(z, alpha).float(), torch.randn(20, 40)
    exact = references.entmax_gradient(p.double(), grad.double(), alpha)
    torch.testing.assert_close(
        entmax_gradient(p, grad, alpha).double(), exact, rtol=1e-5, atol=1e-6
    )
    row_alpha = torch.full((20, 1), alpha)
    torch.testing.assert_close(
        entmax_gradient(p, grad, row_alpha), entmax_gradient(p, grad, alpha), rtol=1e-6, atol=1e-7
    )
    # Neither argument need be contiguous, and gradients where p is 0 are not read.
    strided = entmax_gradient(p.t().contiguous().t(), grad.masked_fill(p == 0, NAN), alpha)
    assert torch.equal(strided, entmax_gradient(p, grad, alpha))


def test_gradient_of_rows_without_an_answer():
    p = torch.stack([torch.zeros(40), torch.full((40,), NAN), torch.full((40,), 1 / 40)])
    gradient = entmax_gradient(p, torch.randn(3, 40), 1.5)
    assert (gradient[0] == 0).all() and gradient[1].isnan().all() and gradient[2].isfinite().all()
