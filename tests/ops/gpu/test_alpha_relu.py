"""The kernels of alpha-ReLU.

Without a GPU they run in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import references
from fairseq_sparse.ops import alpha_relu
from fairseq_sparse.ops.gpu.alpha_relu import alpha_relu_weights
from fairseq_sparse.ops.gpu.gradients import alpha_relu_gradient
from op_cases import DTYPES, TAU, logits
from references import INF, assert_close_to_naive

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
each_alpha = pytest.mark.parametrize("alpha", (1.1, 1.5, 2.0, 3.0))
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@each_dtype
@each_alpha
def test_agrees_with_the_definition(alpha, dtype):
    z = logits(3, 700, dtype=dtype, scale=2.0)
    for tau in (-0.5, torch.tensor(TAU), torch.tensor([[0.0]], dtype=torch.float64)):
        p = alpha_relu_weights(z.to(DEVICE), tau, alpha).cpu()
        assert p.dtype == dtype
        assert_close_to_naive(
            p, lambda z, tau=tau: references.alpha_relu(z, float(tau), alpha), z, slack=8
        )
        assert torch.equal(p == 0, alpha_relu(z, float(tau), alpha) == 0)


@each_dtype
@each_alpha
def test_gradient_is_that_of_the_pytorch_op(alpha, dtype):
    z = logits(3, 700, dtype=dtype, scale=2.0).requires_grad_()
    grad = logits(3, 700, dtype=dtype)
    grad[0, ::2] = INF  # harmless off the support
    expected = alpha_relu(z, TAU, alpha)
    (expected_grad,) = torch.autograd.grad(expected, z, grad)
    found = alpha_relu_gradient(expected.detach().to(DEVICE), grad.to(DEVICE), alpha)
    rounding = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu(), expected_grad, rtol=rounding, atol=rounding)


@each_alpha
def test_entries_at_the_edge(alpha):
    z = torch.tensor([-INF, -1e4, TAU / (alpha - 1), 1e4, INF, NAN], device=DEVICE)
    p = alpha_relu_weights(z, TAU, alpha)
    assert (p[:2] == 0).all() and p[2] < 1e-3 and p[5].isnan()
    assert not torch.isfinite(p[4])
    if alpha > 1.1:  # else fp32 overflows
        torch.testing.assert_close(p[3:4], alpha_relu(z[3:4], TAU, alpha), rtol=1e-5, atol=0)


def test_any_layout():
    z = logits(4, 30, dtype=torch.float32).to(DEVICE)
    expected = alpha_relu_weights(z, TAU, 1.5)
    assert torch.equal(alpha_relu_weights(z.t(), TAU, 1.5), expected.t())
    spread = torch.full((4, 60), NAN, device=DEVICE)
    spread[:, ::2] = z
    assert torch.equal(alpha_relu_weights(spread[:, ::2], TAU, 1.5), expected)
    grad = torch.ones(30, 4, device=DEVICE)
    slope = alpha_relu_gradient(expected.t(), grad, 1.5)
    assert torch.equal(slope, alpha_relu_gradient(expected, grad.t(), 1.5).t())
    assert alpha_relu_weights(z[:0], TAU, 1.5).shape == (0, 30)
    assert alpha_relu_gradient(z[:0], z[:0], 1.5).shape == (0, 30)


@pytest.mark.gpu
@each_dtype
@each_alpha
def test_on_a_gpu(alpha, dtype):
    z = logits(50, 10001, dtype=dtype, scale=1.5).requires_grad_()
    on_gpu = z.detach().cuda().requires_grad_()
    grad = logits(50, 10001, dtype=dtype)
    exact, found = alpha_relu(z, TAU, alpha), alpha_relu(on_gpu, TAU, alpha)
    rounding = max(8 * torch.finfo(dtype).eps, 1e-5 * (dtype == torch.float32))
    tolerance = {"rtol": rounding, "atol": rounding}
    torch.testing.assert_close(found.cpu(), exact, **tolerance)
    (expected,) = torch.autograd.grad(exact, z, grad)
    (actual,) = torch.autograd.grad(found, on_gpu, grad.cuda())
    torch.testing.assert_close(actual.cpu(), expected, **tolerance)
