"""computed_again: the same gradients, with one tensor fewer in memory."""

import weakref

import pytest
import torch
import torch.nn.functional as F

from fairseq_sparse.ops.recomputation import computed_again
from op_cases import logits


def test_the_gradient_is_that_of_what_was_kept():
    x, weight, bias = (logits(*shape).requires_grad_() for shape in ((2, 3, 4), (5, 4), (5,)))
    grad = logits(2, 3, 5)
    expected = torch.autograd.grad(F.linear(x.sin(), weight, bias), (x, weight, bias), grad)
    with computed_again(x.sin(), lambda: x.detach().sin(), [x]) as known:
        result = F.linear(known, weight, bias)
    actual = torch.autograd.grad(result, (x, weight, bias), grad)
    assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))


def test_it_is_computed_for_the_gradient_and_no_earlier():
    x, weight = logits(3, 4).requires_grad_(), logits(5, 4).requires_grad_()
    calls = []

    def compute():
        calls.append(torch.is_grad_enabled())
        return x.detach().exp()

    with computed_again(x.exp(), compute, [x]) as known:
        result = F.linear(known, weight)
    assert calls == []
    result.sum().backward()
    assert calls == [False]


def test_it_does_not_stay_in_memory():
    x, weight = logits(3, 4), logits(5, 4).requires_grad_()
    known = x + 1
    gone = weakref.ref(known)
    with computed_again(known, lambda: x + 1, [x]):
        result = F.linear(known, weight)
    del known
    assert gone() is None
    result.sum().backward()
    torch.testing.assert_close(weight.grad, (x + 1).sum(0).expand(5, 4))


@pytest.mark.parametrize("shape", [(3, 4), (12,)], ids=str)
def test_other_tensors_are_kept(shape):
    """Also those of the same size."""
    x, other = logits(*shape).requires_grad_(), logits(*shape).requires_grad_()
    with computed_again(x.exp(), lambda: x.detach().exp(), [x]) as known:
        result = known * other
    actual = torch.autograd.grad(result.sum(), (x, other))
    expected = torch.autograd.grad((x.exp() * other).sum(), (x, other))
    assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))
