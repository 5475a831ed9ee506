"""First and second derivatives of the mappings, also with respect to alpha."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import references
from fairseq_sparse.ops import entmax, entmax15, softmax, sparsemax
from op_cases import ALPHA_OF, HALF_DTYPES, MAPPINGS, logits

INF = float("inf")
NAN = float("nan")
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
each_sparse_mapping = pytest.mark.parametrize("name", ALPHA_OF)


@pytest.mark.pairwise
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
@each_mapping
def test_gradient_along_every_dimension(mapping, dim, masked):
    z = logits(2, 3, 4).requires_grad_()
    mask = torch.rand(2, 3, 4) < (0.4 if masked else 0.0)
    mask[0], mask[:, 0], mask[:, :, 0] = False, False, False  # at least one is left
    assert gradcheck(lambda z: mapping(z.masked_fill(mask, -INF), dim), z)


@pytest.mark.parametrize("masked", [False, True])
@each_mapping
def test_second_derivative(mapping, masked):
    z = logits(4, 6, scale=2.0).requires_grad_()
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, 1:3] = mask[1, 0] = mask[2, 1:] = masked
    p = mapping(z.masked_fill(mask, -INF))
    assert masked or mapping is softmax or (p == 0).any()  # zeros are where it can go wrong
    assert gradgradcheck(lambda z: mapping(z.masked_fill(mask, -INF)), z)


@pytest.mark.parametrize("algorithm", ["sort", "partial", "bisect"])
@pytest.mark.parametrize("mapping", [sparsemax, entmax15])
def test_gradient_of_each_algorithm(mapping, algorithm):
    z = logits(2, 6, 3, scale=0.3).requires_grad_()
    assert gradcheck(lambda z: mapping(z, 1, algorithm, 2), z)
    assert gradgradcheck(lambda z: mapping(z, 1, algorithm, 2), z)


@pytest.mark.parametrize("alpha_shape", [(), (1,), (2, 1, 1), (2, 3, 1), (3, 1), (1, 1, 1)])
def test_gradient_with_respect_to_alpha(alpha_shape):
    z = logits(2, 3, 4).masked_fill(torch.rand(2, 3, 4) < 0.2, -INF)
    z[0, 0] = torch.tensor([-INF, -INF, 0.3, -INF])
    z = z.requires_grad_()
    alpha = (1.1 + 0.8 * torch.rand(alpha_shape, dtype=torch.float64)).requires_grad_()
    finite = torch.isfinite(z.detach())
    values = z.detach().masked_fill(~finite, 0.0).requires_grad_()

    def mapping(values, alpha):
        return entmax(values.masked_fill(~finite, -INF), alpha)

    assert gradcheck(mapping, (values, alpha))
    assert gradgradcheck(mapping, (values, alpha))
    assert gradcheck(lambda alpha: mapping(values.detach(), alpha), alpha)


@pytest.mark.parametrize("value", [1.3, 2.5])
def test_second_derivative_with_respect_to_alpha_of_a_sparse_result(value):
    z = torch.tensor([[1.0, -3.0, -2.0, 0.9]], dtype=torch.float64, requires_grad=True)
    alpha = torch.full((1, 1), value, dtype=torch.float64, requires_grad=True)
    assert (entmax(z, alpha) == 0).sum() == 2
    assert gradgradcheck(entmax, (z, alpha))


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_gradient_with_respect_to_alpha_along_other_dimensions(dim):
    z = logits(4, 3, 5).requires_grad_()
    shape = list(z.shape)
    shape[dim] = 1
    alpha = (1.1 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    assert gradcheck(lambda z, alpha: entmax(z, alpha, dim), (z, alpha))


@pytest.mark.parametrize("value", [1.001, 1.01, 1.1, 1.5, 2.0])
def test_gradient_with_respect_to_alpha_in_fp32(value):
    def gradient(dtype):
        alpha = torch.full((8, 1), value, dtype=dtype, requires_grad=True)
        (entmax(z.to(dtype), alpha) * weight.to(dtype)).sum().backward()
        return alpha.grad.double()

    z, weight = logits(8, 30, dtype=torch.float32), logits(8, 30, dtype=torch.float32)
    exact = gradient(torch.float64)
    # The derivative is a second difference over (alpha - 1)^2, so an error of one rounding over
    # alpha - 1 is unavoidable.
    allowed = torch.finfo(torch.float32).eps * (1 / (value - 1) + 30) * exact.abs().max()
    assert (gradient(torch.float32) - exact).abs().max() < 4 * allowed


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@each_sparse_mapping
def test_gradient_in_half_precision(name, dtype):
    z = logits(20, 40, dtype=dtype, scale=0.5).requires_grad_()
    grad = logits(20, 40, dtype=dtype)
    p = MAPPINGS[name](z)
    p.backward(grad)
    assert z.grad.dtype == dtype
    # Exact for the returned p, except for the rounding to `dtype`.
    exact = references.entmax_gradient(p.detach().double(), grad.double(), ALPHA_OF[name])
    allowed = torch.finfo(dtype).eps * exact.abs() + 1e-5 * exact.abs().max()
    assert ((z.grad.double() - exact).abs() <= allowed).all()
    assert (z.grad[p == 0] == 0).all()
