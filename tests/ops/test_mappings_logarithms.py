"""log_entmax and log_alpha_relu: the logarithms of the mappings, on any backend."""

import pytest
import torch

from fairseq_sparse.ops import alpha_relu, backends, entmax, log_alpha_relu, log_entmax
from op_cases import DTYPES

INF = float("inf")
TAU = 0.3


def logits(dtype=torch.float32):
    z = (torch.randn(2, 3, 40) * 3).to(dtype)
    z[0, 0] = -INF
    z[0, 1, 3:] = -INF
    return z


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_they_are_the_logarithms_of_the_mappings(alpha, dtype):
    z = logits(dtype)
    wide = z if dtype == torch.float64 else z.float()
    with backends.use("reference"):
        expected = entmax(wide, alpha), *[alpha_relu(wide, TAU, alpha)] * 2
    found = (
        log_entmax(z, alpha),
        log_alpha_relu(z, TAU, alpha),
        log_alpha_relu(z, torch.tensor(TAU), alpha),
    )
    for logs, p in zip(found, expected, strict=True):
        assert logs.shape == z.shape and logs.dtype == wide.dtype
        assert (logs[z == -INF] == -INF).all()
        # The distance from the threshold. In a draw, rounding may decide about one entry near it.
        distance, expected_distance = (logs * (alpha - 1)).exp(), p ** (alpha - 1)
        torch.testing.assert_close(distance, expected_distance, rtol=1e-5, atol=2e-6)
        assert ((logs == -INF) != (p == 0)).sum() <= 1


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_dtype_is_that_of_the_logits_whatever_tau_and_alpha_have(backend):
    z, tau = torch.randn(2, 3), torch.zeros(3, dtype=torch.float64)
    alpha = torch.full((2, 1), 1.5, dtype=torch.float64)
    with backends.use(backend):
        found = log_alpha_relu(z, tau), alpha_relu(z, tau), log_entmax(z, alpha), entmax(z, alpha)
    assert all(each.dtype == torch.float32 for each in found)


def test_a_tau_that_is_no_number_gives_none():
    z = torch.tensor([[1.0, 2.0, 3.0]])
    assert log_alpha_relu(z, torch.tensor(float("nan"))).isnan().all()


def test_other_algorithms():
    z = logits()
    # A probability near the threshold has few digits, and its logarithm shows all of them.
    torch.testing.assert_close(log_entmax(z, 1.5, "partial", 2).exp(), entmax(z, 1.5))


def test_alpha_1_is_the_logarithm_of_softmax():
    z = logits()[1:]
    torch.testing.assert_close(log_entmax(z, 1), torch.log_softmax(z, -1))


def test_no_rows_and_no_dimensions():
    assert log_entmax(torch.zeros(0, 5), 1.5).shape == (0, 5)
    assert log_alpha_relu(torch.tensor(2.0), 0.0).item() == 0


@pytest.mark.parametrize(
    "function", [lambda z: log_entmax(z, 1.5), lambda z: log_alpha_relu(z, TAU)]
)
def test_a_gradient_is_that_of_the_probabilities(function):
    z = torch.tensor([1.3, 1.1, 1.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, z)
    z = z.detach().float().requires_grad_()
    assert torch.isfinite(torch.autograd.grad(function(z).sum(), z)[0]).all()


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    ("mapping", "logarithm"),
    [
        (lambda z: entmax(z, 1.5), lambda z: log_entmax(z, 1.5)),
        (lambda z: alpha_relu(z, 0.3), lambda z: log_alpha_relu(z, 0.3)),
    ],
)
def test_a_gradient_can_be_differentiated_off_the_support(mapping, logarithm, backend):
    """As for a product of the Jacobian with a vector by differentiating twice."""
    z = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    v = torch.ones_like(z, requires_grad=True)
    with backends.use(backend):
        (grad,) = torch.autograd.grad(logarithm(z), z, v, create_graph=True)
        (product,) = torch.autograd.grad(grad, v, torch.ones_like(z))
        p = mapping(z)
        weights = torch.where(p > 0, v / torch.where(p > 0, p, 1.0), 0.0)
        (grad,) = torch.autograd.grad(p, z, weights, create_graph=True)
        (expected,) = torch.autograd.grad(grad, v, torch.ones_like(z))
    assert (p == 0).any()
    assert product.isfinite().all() and torch.allclose(product, expected)


# p from the largest to the smallest that fp32 has.
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("alpha", [1.001, 1.02, 1.05, 1.1, 1.5])
@pytest.mark.parametrize("function", [log_entmax, lambda z, alpha: log_alpha_relu(z, TAU, alpha)])
def test_the_gradient_of_a_tiny_probability_is_as_exact_as_the_probability(
    function, alpha, backend
):
    gaps = torch.linspace(0, 1.2 / (alpha - 1), 4001).clamp(max=110)
    zero = torch.zeros_like(gaps)
    z = torch.stack([zero, -gaps, zero - 0.5], dim=1) + (1 + TAU) / (alpha - 1) * (
        function is not log_entmax
    )
    found, expected = [], []
    for dtype, results in ((torch.float32, found), (torch.float64, expected)):
        leaf = z.to(dtype).requires_grad_()
        with backends.use(backend):
            log_p = function(leaf, alpha)[:, 1]
            finite = log_p.isfinite()
            (grad,) = torch.autograd.grad(log_p.masked_fill(~finite, 0.0).sum(), leaf)
        results += [finite, grad.double(), log_p.double()]
    inside = found[0] & (found[2] < -1)
    assert inside.sum() > 100 and found[1].isfinite().all()
    # p, and so its logarithm, has fewer digits below fp32's least normal number, and near tau.
    close = inside & expected[0] & ((found[2] - expected[2]).abs() < 1e-3 * expected[2].abs())
    assert close.sum() > 100
    torch.testing.assert_close(found[1][close], expected[1][close], rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_gradient_with_respect_to_alpha(backend):
    z = torch.tensor([[1.3, 1.1, 1.9], [0.2, 0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[1.3], [1.6]], dtype=torch.float64, requires_grad=True)
    with backends.use(backend):
        assert torch.autograd.gradcheck(log_entmax, (z, alpha))


def test_what_is_refused():
    z = torch.zeros(3)
    with pytest.raises(TypeError, match="floating point"):
        log_entmax(z.long(), 1.5)
    for alpha in (0.5, INF):
        with pytest.raises(ValueError, match="alpha"):
            log_entmax(z, alpha)
    for alpha in (1.0, 0.5, INF):
        with pytest.raises(ValueError, match="alpha"):
            log_alpha_relu(z, TAU, alpha)
    with pytest.raises(ValueError, match="topk"):
        log_entmax(z, 1.5, "partial", -1)
    with pytest.raises(ValueError, match="tau"):
        log_alpha_relu(z, INF)
