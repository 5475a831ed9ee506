"""The compiled kernels for rows of logits, against the naive versions and the PyTorch path."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import references
from fairseq_sparse.ops import alpha_relu, backends, entmax
from fairseq_sparse.ops.cpu import build, rows
from fairseq_sparse.ops.cpu.rows import SolvedRows, entmax_backward
from fairseq_sparse.ops.cpu.screen import PackedRows
from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.reference.rows import TAU

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


def solved_rows(z, alpha, tau=None, label_smoothing=0.0):
    tau = None if tau is None else torch.tensor(tau, dtype=torch.float64)
    return SolvedRows(z, RowLoss(alpha, tau, label_smoothing, -100))


def solved_tau(solved):
    return solved.solution[TAU]


def probabilities(z, alpha, tau=None, log=False):
    """Return alpha-entmax of the kernel, or alpha-ReLU if there is a tau, or its logarithm."""
    if tau is not None:
        return rows.alpha_relu(z, torch.tensor(tau, dtype=torch.float64), alpha, log)
    row_alpha, alpha = (alpha, 0.0) if torch.is_tensor(alpha) else (None, alpha)
    return rows.entmax(z, row_alpha, alpha, "newton", 0, log)[0]


def packed(z, kept):
    """Return the logits of each row that are kept."""
    count = kept.sum(-1)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
    return PackedRows(z[kept], start, kept.nonzero()[:, 1].int(), z.size(1))


def dense(sparse, size):
    """Return the matrix of a SparseRows in fp64, added up entry by entry."""
    count = len(sparse.start) - 1
    matrix = torch.zeros(count, size, dtype=torch.float64)
    row = torch.arange(count).repeat_interleave(sparse.start.diff())
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
    p = probabilities(z, alpha)
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
    p = probabilities(z, alpha)
    torch.testing.assert_close(probabilities(z, alpha, log=True), p.log(), rtol=1e-6, atol=1e-6)


@pytest.mark.each_value
@each_size
@each_alpha
def test_threshold_conjugate_and_count(alpha, size):
    z = rows_of(size, alpha)
    solved = solved_rows(z, alpha)
    maximum = z.amax(-1)
    assert torch.equal(solved.shift, maximum.double())
    x = z.double() - solved.shift[:, None]
    tau = references.entmax_threshold(x, alpha)
    assert ((solved_tau(solved) - tau).abs() <= 6 * EPS * tau.abs()).all()
    p = references.entmax(x, alpha)
    value = torch.where(p > 0, p * x, p).sum(-1) + references.tsallis_entropy(p, alpha)
    allowed = 4 * EPS * (1 + value.abs() + 1 / (alpha - 1))
    assert ((solved.conjugate - value).abs() <= allowed).all()
    # Exact zeros off the support, except for entries within a rounding of its edge.
    nonzero = (probabilities(z, alpha) > 0).sum(-1)
    assert (nonzero <= solved.count).all()
    rounding = 8 * EPS * (tau.abs() + (alpha - 1) * maximum.double().abs())
    near = ((alpha - 1) * x >= (tau - rounding)[:, None]).sum(-1)
    assert (solved.count <= near).all()


@each_alpha
def test_an_alpha_for_each_row_is_that_alpha_alone(alpha):
    z = rows_of(300)
    others = torch.rand(len(z), 1, dtype=torch.float64) * 0.95 + 1.05
    others[::3] = alpha
    together = probabilities(z, others)
    assert torch.equal(together[::3], probabilities(z[::3].contiguous(), alpha))
    assert_probabilities(together, references.entmax(z.double(), others), others.expand_as(z))


@pytest.mark.each_value
@pytest.mark.parametrize("size", [1, 16, 40, 300])
@each_alpha
def test_rows_without_an_answer_do_not_touch_the_others(alpha, size):
    z = torch.randn(6, size)
    good = probabilities(z, alpha)[[0, 5]]
    z[1] = -INF
    z[2, size - 1] = NAN
    z[3, 0] = INF
    z[4] = NAN
    solved = solved_rows(z, alpha)
    p, log_p = probabilities(z, alpha), probabilities(z, alpha, log=True)
    assert torch.equal(p[[0, 5]], good)
    assert (p[1] == 0).all() and (log_p[1] == -INF).all()
    assert solved.count[1] == 0 and solved.conjugate[1] == 0 and solved.shift[1] == 0
    assert p[2:5].isnan().all() and log_p[2:5].isnan().all()
    assert solved_tau(solved)[2:5].isnan().all() and solved.conjugate[2:5].isnan().all()
    residual = solved.sparse_residual(torch.zeros(6).long(), torch.ones(6).bool())
    residual = dense(residual, size)
    assert residual[2:5].isnan().all()
    expected = torch.zeros(size, dtype=torch.float64)
    expected[0] = -1
    assert torch.equal(residual[1], expected)


@given(
    values=st.lists(
        st.lists(st.floats(width=32, allow_nan=False), min_size=7, max_size=7),
        min_size=1,
        max_size=4,
    ),
    alpha=st.floats(1.05, 2),
)
def test_any_logits(values, alpha):
    z = torch.tensor(values)
    solved = solved_rows(z, alpha)
    p = probabilities(z, alpha)
    infinite = (z == INF).any(-1)
    assert p[infinite].isnan().all()
    if not infinite.all():
        finite = z[~infinite].double()
        assert_probabilities(p[~infinite], references.entmax(finite, alpha), alpha)
    target = torch.zeros(len(z), dtype=torch.int64)
    residual = solved.sparse_residual(target, torch.ones(len(z)).bool())
    assert torch.equal(residual.start.diff(), solved.count.long() + 1)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_rows(threads):
    z = torch.randn(70, 300) * 3
    target = torch.randint(300, (70,))
    expected = solved_rows(z, 1.5)
    try:
        torch.set_num_threads(threads)
        solved = solved_rows(z, 1.5)
        p, log_p = probabilities(z, 1.5), probabilities(z, 1.5, log=True)
        residual = solved.sparse_residual(target, torch.ones(70).bool())
        whole = solved.residual(target)
        gradient = entmax_backward(p, z, 1.5)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(solved.conjugate, expected.conjugate)
    assert torch.equal(p, probabilities(z, 1.5))
    assert torch.equal(whole, expected.residual(target))
    assert torch.equal(log_p, probabilities(z, 1.5, log=True))
    assert torch.equal(gradient, entmax_backward(p, z, 1.5))
    one = expected.sparse_residual(target, torch.ones(70).bool())
    assert all(map(torch.equal, residual, one))


@pytest.mark.parametrize("alpha", [1.0, 1.04, 2.001, 3.0, NAN])
def test_alpha_out_of_range(alpha):
    z = torch.zeros(2, 3)
    for outside in (alpha, torch.tensor([[1.5], [alpha]])):
        if not torch.is_tensor(outside):
            assert not rows.fits_rows(z, outside)
        elif alpha > 1:
            entmax(z, outside)
            assert backends.last_used()["entmax"] == "reference"
    for inside in (1.05, 2, torch.tensor([[1.05], [2.0]])):
        entmax(z, inside)
        assert backends.last_used()["entmax"] == "cpu"


# --- alpha-ReLU ----------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("tau", [-50.0, -0.3, 0.0, 1e-40, 0.3, 40.0])
@each_alpha
def test_alpha_relu_is_that_of_pytorch(alpha, tau):
    z = torch.cat([rows_of(300, alpha).clamp(max=1e6), torch.full((1, 300), tau / (alpha - 1))])
    z[-1] += torch.arange(-150, 150) * EPS * z[-1].abs()
    solved, p = solved_rows(z, alpha, tau), probabilities(z, alpha, tau)
    with backends.use("reference"):
        expected = alpha_relu(z, tau, alpha)
    above = ((alpha - 1) * z - tau).clamp(min=0)
    assert torch.equal(p.isinf(), expected.isinf())
    torch.testing.assert_close(p, expected, rtol=3e-6 / (alpha - 1), atol=1e-37)
    assert (p[(alpha - 1) * z <= torch.tensor(tau)] == 0).all()
    assert ((p > 0).sum(-1) <= solved.count).all()
    torch.testing.assert_close(
        probabilities(z, alpha, tau, log=True), p.log(), rtol=1e-6, atol=1e-6, equal_nan=True
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
    solved, p = solved_rows(z, alpha, 0.3), probabilities(z, alpha, 0.3)
    with backends.use("reference"):
        expected = alpha_relu(z, 0.3, alpha)
    torch.testing.assert_close(p, expected, rtol=6e-6 / (alpha - 1), atol=1e-37, equal_nan=True)
    assert (solved.conjugate[[0, 1, 3]] >= 3e38).all()
    assert solved.conjugate[2] == 0 and solved.conjugate[4].isnan()


# --- p less the target ---------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("size", [1, 2, 16, 300])
@pytest.mark.parametrize("tau", [None, 0.3])
def test_residual_is_p_less_the_target(tau, size, label_smoothing):
    z = rows_of(size).clamp(max=1e4)
    solved = solved_rows(z, 1.5, tau, label_smoothing)
    target = torch.randint(size, (len(z),))
    target[::4], target[1::4] = 0, size - 1
    counts = torch.rand(len(z)) < 0.7
    counts[:2] = torch.tensor([True, False])
    target[~counts] = -100
    residual = solved.sparse_residual(target, counts)
    expected = probabilities(z, 1.5, tau).double()
    expected[counts, target[counts]] -= 1 - label_smoothing
    expected[~counts] = 0
    torch.testing.assert_close(dense(residual, size), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(residual.start.diff(), ((solved.count + 1) * counts).long())
    assert residual.columns.dtype == torch.int32
    expected[counts] -= label_smoothing / size
    torch.testing.assert_close(solved.residual(target).double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("label", [-1, 40, 1 << 40])
def test_a_target_that_is_no_class_gets_no_gradient_and_nothing_is_written_there(label):
    z, target = torch.randn(3, 40), torch.tensor([4, label, 5])
    gradient = solved_rows(z, 1.5).residual(target)
    assert (gradient[1] == 0).all() and (gradient[::2] != 0).any()


def test_no_row_counts():
    solved = solved_rows(torch.randn(3, 40), 1.5)
    residual = solved.sparse_residual(torch.full((3,), -100), torch.zeros(3).bool())
    assert torch.equal(residual.start, torch.zeros(4, dtype=torch.int64))
    assert residual.columns.numel() == residual.values.numel() == 0


@pytest.mark.each_value
@pytest.mark.parametrize("size", [1, 17, 300, 700])
@each_alpha
def test_packed_rows_give_what_dense_rows_give(alpha, size):
    z = rows_of(size, alpha)
    exact = references.entmax(z.double(), alpha)
    kept = (exact > 0) | (torch.rand(z.shape) < 0.1) | (z == z.amax(-1, keepdim=True))
    whole = solved_rows(z, alpha, label_smoothing=0.1)
    some = solved_rows(packed(z, kept), alpha, label_smoothing=0.1)
    assert torch.equal(some.shift, whole.shift)
    torch.testing.assert_close(solved_tau(some), solved_tau(whole), rtol=1e-6, atol=0)
    torch.testing.assert_close(some.conjugate, whole.conjugate, rtol=1e-6, atol=1e-6 / (alpha - 1))
    target, counts = torch.randint(size, (len(z),)), torch.rand(len(z)) < 0.8
    p = dense(some.sparse_residual(target, counts), size)[counts]
    p[range(len(p)), target[counts]] += 0.9
    # The target's p has lost digits, because 0.9 was subtracted and added again.
    exact = exact[counts]
    p[(p - exact).abs() <= 2e-7] = exact[(p - exact).abs() <= 2e-7]
    assert_probabilities(p, exact, alpha)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_packed_rows_may_have_no_logits(count):
    z = torch.randn(count, 40)
    kept = torch.zeros(count, 40).bool()
    kept[2:] = z[2:] > 0
    target = torch.arange(count)
    for tau in (None, 0.1):
        solved = solved_rows(packed(z, kept), 1.5, tau)
        assert (solved.count[:2] == 0).all() and (solved.conjugate[:2] == 0).all()
        residual = dense(solved.sparse_residual(target, torch.ones(count).bool()), 40)
        only_target = torch.zeros(count, 40, dtype=torch.float64)
        only_target[range(count), target] = -1
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
    actual = entmax_backward(p.detach(), grad, alpha)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    assert (actual[p == 0] == 0).all()


@each_alpha
def test_gradient_of_entmax_is_the_naive_one(alpha):
    z = torch.randn(20, 40, dtype=torch.float64) * torch.logspace(-1, 1, 20)[:, None]
    p, grad = references.entmax(z, alpha).float(), torch.randn(20, 40)
    exact = references.entmax_gradient(p.double(), grad.double(), alpha)
    torch.testing.assert_close(
        entmax_backward(p, grad, alpha).double(), exact, rtol=1e-5, atol=1e-6
    )
    # Neither argument need be contiguous, and gradients where p is 0 are not read.
    strided = entmax_backward(p.t().contiguous().t(), grad.masked_fill(p == 0, NAN), alpha)
    assert torch.equal(strided, entmax_backward(p, grad, alpha))


def test_gradient_of_rows_without_an_answer():
    p = torch.stack([torch.zeros(40), torch.full((40,), NAN), torch.full((40,), 1 / 40)])
    gradient = entmax_backward(p, torch.randn(3, 40), 1.5)
    assert (gradient[0] == 0).all() and gradient[1].isnan().all() and gradient[2].isfinite().all()
