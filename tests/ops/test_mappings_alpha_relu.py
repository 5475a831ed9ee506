import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import references
from fairseq_sparse.ops import alpha_relu, entmax, entmax_threshold, log_alpha_relu
from references import assert_close_to_naive

INF = float("inf")
NAN = float("nan")
HALF_DTYPES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float64, torch.float32, *HALF_DTYPES)
ALPHAS = (1.25, 1.5, 1.75, 2.0, 3.0)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def logits(*shape, dtype=torch.float64, scale=2.0):
    return torch.randn(shape, dtype=torch.float64).mul(scale).to(dtype)


@pytest.mark.parametrize("tau", [0.3, -0.7, torch.tensor(0.3, dtype=torch.float64)])
@each_alpha
def test_gradients(alpha, tau):
    z = logits(4, 6)
    z = z[((alpha - 1) * z - tau).abs() > 0.01].requires_grad_()  # not at the kink
    p = alpha_relu(z, tau, alpha)
    assert (p == 0).any() and (p > 0).any()
    assert gradcheck(lambda z: alpha_relu(z, tau, alpha), z)
    assert gradgradcheck(lambda z: alpha_relu(z, tau, alpha), z)
    masked = z.detach().clone().requires_grad_()
    mask = torch.arange(len(z)) % 3 == 0
    assert gradcheck(lambda z: alpha_relu(z.masked_fill(mask, -INF), tau, alpha), masked)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau", [0.3, 0.0, -0.7])
@each_alpha
def test_agrees_with_the_naive_version(alpha, tau, dtype):
    z = logits(20, 30, dtype=dtype)
    before = z.clone()
    p = alpha_relu(z, tau, alpha)
    assert p.dtype == dtype and p.shape == z.shape
    assert_close_to_naive(p, lambda z: references.alpha_relu(z, tau, alpha), z)
    assert torch.equal(z, before)


@each_alpha
def test_is_entmax_at_the_threshold_of_entmax(alpha):
    z = logits(20, 30)
    tau = entmax_threshold(z, alpha).unsqueeze(-1)
    difference = alpha_relu(z, tau, alpha) - entmax(z, alpha)
    assert difference.abs().max() < (1e-7 if alpha > 2 else 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau_dtype", [torch.float32, torch.float64])
def test_tau_as_a_number_or_a_tensor(dtype, tau_dtype):
    z = logits(2, 3, 5, dtype=dtype)
    expected = alpha_relu(z, 0.375)
    assert torch.equal(alpha_relu(z, torch.tensor(0.375, dtype=tau_dtype)), expected)
    assert torch.equal(alpha_relu(z, torch.full((1,), 0.375, dtype=tau_dtype)), expected)
    assert torch.equal(alpha_relu(z, torch.full((3, 1), 0.375, dtype=tau_dtype)), expected)
    assert expected.dtype == alpha_relu(z, torch.tensor(0.375, dtype=tau_dtype)).dtype == dtype


def test_no_gradient_flows_to_tau():
    z, tau = logits(3, 4).requires_grad_(), torch.tensor(0.1, requires_grad=True)
    alpha_relu(z, tau).sum().backward()
    assert z.grad is not None and tau.grad is None


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@each_alpha
def test_gradient_in_half_precision(alpha, dtype):
    z = logits(20, 30, dtype=dtype).requires_grad_()
    grad = logits(20, 30, dtype=dtype)
    alpha_relu(z, 0.3, alpha).backward(grad)
    assert z.grad.dtype == dtype

    def gradient(z, grad):
        p = references.alpha_relu(z, 0.3, alpha)
        return torch.where(p > 0, p.clamp(min=1e-30) ** (2 - alpha), torch.zeros_like(p)) * grad

    exact = gradient(z.detach().double(), grad.double())
    # p is kept as `dtype` and taken to the power 2 - alpha.
    allowed = 2 * torch.finfo(dtype).eps * (1 + abs(2 - alpha)) * exact.abs()
    large = references.alpha_relu(z.detach().double(), 0.3, alpha) > 1e-4
    assert ((z.grad.double() - exact).abs() <= allowed)[large].all()
    assert (z.grad[exact == 0] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@each_alpha
def test_rows_with_a_known_answer(alpha, dtype):
    def assert_row(row, tau, expected):
        z = torch.tensor(row, dtype=dtype, requires_grad=True)
        p = alpha_relu(z, tau, alpha)
        torch.testing.assert_close(p.float(), torch.tensor(expected), rtol=0.01, atol=1e-6)
        p.sum().backward()
        assert torch.isfinite(z.grad).all()

    unit = 1 / (alpha - 1)  # alpha_relu(unit, 0) = 1
    assert_row([unit, 0.0, -unit], 0.0, [1.0, 0.0, 0.0])
    assert_row([unit] * 4, 0.0, [1.0] * 4)
    assert_row([0.9 * unit], 1.0, [0.0])
    assert_row([-INF, 0.0, -1e4], -1.0, [0.0, 1.0, 0.0])
    assert_row([-INF, -INF], -1.0, [0.0, 0.0])
    assert_row([-1e4] * 3, -1.0, [0.0] * 3)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_large_logits_in_fp32(alpha):
    z = torch.tensor([1e4, -1e4], requires_grad=True)
    p = alpha_relu(z, 1.0, alpha)
    expected = torch.tensor([((alpha - 1) * 1e4 - 1.0) ** (1 / (alpha - 1)), 0.0])
    torch.testing.assert_close(p, expected)
    p.sum().backward()
    assert torch.isfinite(z.grad).all()


@each_alpha
def test_nan_stays_where_it_is(alpha):
    z = logits(3, 5).masked_fill(torch.rand(3, 5) < 0.2, -INF)
    z[1, 2] = NAN
    nan = z.isnan()
    z.requires_grad_()
    p = alpha_relu(z, 0.2, alpha)
    assert torch.equal(p.isnan(), nan)
    p.sum().backward()
    assert torch.equal(z.grad.isnan(), nan)
    assert alpha_relu(z, torch.tensor(NAN), alpha).isnan().all()


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.25])
def test_infinity(alpha):
    assert torch.equal(alpha_relu(torch.tensor([INF, 0.0]), 0.5, alpha), torch.tensor([INF, 0.0]))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 5), (3, 0), (2, 3, 4)])
def test_shapes(shape):
    z = torch.randn(shape, requires_grad=True)
    p = alpha_relu(z, 0.1)
    assert p.shape == shape
    p.sum().backward()
    assert z.grad.shape == shape


def test_autocast():
    layer = torch.nn.Linear(8, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = layer(torch.randn(5, 8))
        p = alpha_relu(z, torch.tensor(0.1))
    assert p.dtype == z.dtype == torch.bfloat16
    assert torch.equal(p, alpha_relu(z, 0.1))
    p.float().sum().backward()
    assert torch.isfinite(layer.weight.grad).all() and (layer.weight.grad != 0).any()


def test_bad_arguments():
    z = torch.zeros(3)
    for alpha in (1.0, 0.9, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="alpha must be a finite number above 1, got"):
            alpha_relu(z, 0.1, alpha)
    for tau in (NAN, INF, -INF):
        with pytest.raises(ValueError, match="tau must be a finite number, got"):
            alpha_relu(z, tau)
    for mapping in (alpha_relu, log_alpha_relu):
        with pytest.raises(ValueError, match=r"tau of shape \(2, 1\) does not broadcast to that"):
            mapping(z, torch.zeros(2, 1))
        assert mapping(z, torch.zeros(1, 1)).shape == mapping(z.double(), torch.zeros(1, 1)).shape


values = st.lists(st.floats(-20, 20), min_size=1, max_size=12)
alphas = st.sampled_from(ALPHAS)


@given(values, st.floats(-3, 3), alphas)
def test_support_and_order(row, tau, alpha):
    z = torch.tensor(row, dtype=torch.float64)
    p = alpha_relu(z, tau, alpha)
    assert torch.equal(p > 0, references.alpha_relu(z, tau, alpha) > 0)
    assert (p[(alpha - 1) * z <= tau] == 0).all()
    assert (p[z.argsort()].diff() >= 0).all()


@given(values, st.floats(-3, 3), alphas, st.floats(-10, 10))
def test_shifting_logits_and_threshold_together_changes_nothing(row, tau, alpha, shift):
    z = torch.tensor(row, dtype=torch.float64)
    p, moved = alpha_relu(z, tau, alpha), alpha_relu(z + shift, tau + (alpha - 1) * shift, alpha)
    beta = 1 / (alpha - 1)
    # The error of u^beta if u is wrong by a rounding of the logits.
    step = 1e-13 * (1 + (alpha - 1) * 50)
    largest = float(p.max()) ** (alpha - 1) + step
    allowed = step**beta if beta < 1 else beta * step * largest ** (beta - 1)
    assert (p - moved).abs().max() <= allowed + 1e-15 * float(p.max())
