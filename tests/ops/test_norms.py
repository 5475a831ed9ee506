import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import references
from fairseq_sparse.ops import gated_rms_norm, rms_norm
from op_cases import DTYPES, HALF_DTYPES, logits

# name -> (op, naive version, how many vectors it takes)
NORMS = {
    "rms_norm": (rms_norm, lambda z, g: references.rms_norm(z, g), 1),
    "gated_rms_norm": (gated_rms_norm, lambda z, g, w: references.rms_norm(z, g, w), 2),
}
each_norm = pytest.mark.parametrize("op, naive, vectors", NORMS.values(), ids=NORMS)
SHAPES = [(6,), (1,), (4, 6), (2, 3, 6), (2, 1, 3, 5)]


def inputs(*shape, vectors, dtype=torch.float64, scale=1.0):
    """Return ``z`` of a shape, then gain and, for two vectors, gate."""
    z = logits(*shape, dtype=dtype, scale=scale)
    return [z, *(logits(shape[-1], dtype=dtype) for _ in range(vectors))]


def gradients(norm, *arguments):
    """Return the gradients of ``norm``; the last argument is the gradient of its result."""
    *arguments, grad = arguments
    leaves = [x.detach().requires_grad_() for x in arguments]
    return torch.autograd.grad(norm(*leaves), leaves, grad)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_norm
def test_derivative(op, naive, vectors, shape):
    arguments = [x.requires_grad_() for x in inputs(*shape, vectors=vectors)]
    assert gradcheck(op, arguments)
    assert gradgradcheck(op, arguments)
    assert gradcheck(lambda *x: op(*x, 0.5), arguments)  # an eps that is large enough to matter


@each_norm
def test_derivative_with_some_arguments_fixed(op, naive, vectors):
    fixed = inputs(3, 4, vectors=vectors)
    for place in range(1 + vectors):
        arguments = list(fixed)
        arguments[place] = arguments[place].clone().requires_grad_()
        assert gradcheck(op, arguments)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_norm
def test_agrees_with_the_naive_version(op, naive, vectors, dtype, scale):
    arguments = inputs(3, 7, 16, vectors=vectors, dtype=dtype, scale=scale)
    result = op(*arguments)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    references.assert_close_to_naive(result, naive, *arguments)

    arguments.append(logits(3, 7, 16, dtype=result.dtype))
    for place, actual in enumerate(gradients(op, *arguments)):
        assert actual.dtype == dtype
        references.assert_close_to_naive(
            actual, lambda *x, place=place: gradients(naive, *x)[place], *arguments
        )


@each_norm
def test_rows_of_zeros_stay_zero_with_finite_gradients(op, naive, vectors):
    z, *rest = inputs(4, 6, vectors=vectors, dtype=torch.float32)
    z[1] = z[3] = 0
    result = op(z, *rest)
    assert (result[[1, 3]] == 0).all() and (result[[0, 2]] != 0).all()
    grad = torch.ones_like(z)
    of_z, *of_the_rest = gradients(op, z, *rest, grad)
    for actual in (of_z, *of_the_rest):
        assert torch.isfinite(actual).all()
    # 1 / sqrt(eps) times the gradient that comes through a half-open gate
    expected = rest[0] * (1e4 if vectors == 1 else 0.5e4)
    torch.testing.assert_close(of_z[[1, 3]], expected.expand(2, -1))
    # Such rows add nothing to the gradients of the vectors.
    kept = gradients(op, z[[0, 2]], *rest, grad[[0, 2]])[1:]
    torch.testing.assert_close(of_the_rest, list(kept))


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@each_norm
def test_large_half_precision_does_not_overflow(op, naive, vectors, dtype):
    z, *rest = inputs(5, 64, vectors=vectors, dtype=dtype)
    z = 6e4 * z.sign()  # the sum of squares has 12 digits
    result = op(z, *rest)
    assert result.dtype == torch.float32
    # The gate underflows at the smallest normal number.
    atol = 8 * torch.finfo(torch.float32).smallest_normal
    references.assert_close_to_naive(result, naive, z, *rest, slack=4, atol=atol)
    grad = logits(5, 64, dtype=torch.float32)
    for actual in gradients(op, z, *rest, grad):
        assert torch.isfinite(actual).all()


@each_norm
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_vectors_may_have_another_dtype(op, naive, vectors, dtype):
    """This occurs under autocast and in models that keep their norms in fp32."""
    z, *rest = inputs(5, 8, vectors=vectors, dtype=torch.float32)
    z = z.to(dtype).requires_grad_()
    rest = [x.requires_grad_() for x in rest]
    result = op(z, *rest)
    references.assert_close_to_naive(
        result.detach(), naive, z.detach(), *(x.detach() for x in rest)
    )
    result.sum().backward()
    assert z.grad.dtype == dtype and all(x.grad.dtype == torch.float32 for x in rest)


@pytest.mark.parametrize("size", [0, 1, 4, 6])
def test_vectors_of_another_size_are_refused(size):
    """Otherwise the rows would be divided at other places."""
    z, right, wrong = torch.randn(3, 5), torch.ones(5), torch.ones(size)
    with pytest.raises(ValueError, match=rf"gain must be \[5\], got \[{size}\]"):
        rms_norm(z, wrong)
    with pytest.raises(ValueError, match=rf"gate must be \[5\], got \[{size}\]"):
        gated_rms_norm(z, right, wrong)


@pytest.mark.parametrize("shape", [(0, 6), (3, 0, 6)], ids=str)
@each_norm
def test_an_empty_batch(op, naive, vectors, shape):
    z, *rest = (x.requires_grad_() for x in inputs(*shape, vectors=vectors))
    result = op(z, *rest)
    assert result.shape == shape
    result.sum().backward()
    assert z.grad.shape == shape
    assert all(torch.equal(x.grad, torch.zeros_like(x)) for x in rest)


@each_norm
def test_the_argument_is_left_alone(op, naive, vectors):
    arguments = inputs(4, 6, vectors=vectors)
    copies = [x.clone() for x in arguments]
    op(*arguments)
    for x, copy in zip(arguments, copies, strict=True):
        assert torch.equal(x, copy)


@each_norm
def test_a_nan_stays_in_its_row(op, naive, vectors):
    z, *rest = inputs(3, 6, vectors=vectors)
    z[1, 2] = float("nan")
    result = op(z, *rest)
    assert result[1].isnan().all() and torch.isfinite(result[[0, 2]]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_norm
def test_no_value_is_looked_at(op, naive, vectors, dtype):
    """Reading one would stall a GPU; on the meta device, tensors have no values to read."""
    arguments = [
        torch.zeros(x.shape, dtype=dtype, device="meta", requires_grad=True)
        for x in inputs(2, 3, 5, vectors=vectors)
    ]
    result = op(*arguments)
    for x, grad in zip(arguments, torch.autograd.grad(result.sum(), arguments), strict=True):
        assert grad.shape == x.shape and grad.dtype == dtype


@each_norm
def test_autocast_changes_nothing(op, naive, vectors):
    arguments = inputs(5, 16, vectors=vectors, dtype=torch.float32)
    grad = logits(5, 16, dtype=torch.float32)
    expected = op(*arguments), *gradients(op, *arguments, grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = op(*arguments), *gradients(op, *arguments, grad)
    for x, y in zip(actual, expected, strict=True):
        assert torch.equal(x, y)
