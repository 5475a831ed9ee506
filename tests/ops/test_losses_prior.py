"""Label smoothing with a prior: the target distribution is (1 - eps) e_y + eps u."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

import references
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    entmax,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
)
from op_cases import DTYPES, TAU, batch

SIZE = 12
LOSSES = {
    "softmax": (
        partial(entmax_loss, alpha=1),
        partial(linear_entmax_loss, alpha=1),
        lambda z: z.softmax(-1),
    ),
    "entmax15": (entmax_loss, linear_entmax_loss, lambda z: entmax(z, 1.5)),
    "sparsemax": (
        partial(entmax_loss, alpha=2.0),
        partial(linear_entmax_loss, alpha=2.0),
        lambda z: entmax(z, 2.0),
    ),
    "alpha_relu": (
        partial(alpha_relu_loss, tau=TAU),
        partial(linear_alpha_relu_loss, tau=TAU),
        lambda z: alpha_relu(z, TAU),
    ),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
each_smoothing = pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])


def a_prior():
    counts = torch.randint(50, (SIZE,)).double()
    counts[3] = 0
    return counts / counts.sum()


def target_distribution(target, smoothing, prior):
    return (1 - smoothing) * F.one_hot(target, SIZE) + smoothing * prior


@each_smoothing
@each_loss
def test_the_gradient_is_p_minus_q(name, smoothing):
    loss, _, mapping = LOSSES[name]
    z, target = batch(4, 3, size=SIZE)
    z.requires_grad_()
    prior = a_prior()
    loss(z, target, label_smoothing=smoothing, prior=prior, reduction="sum").backward()
    expected = mapping(z.detach()) - target_distribution(target, smoothing, prior)
    torch.testing.assert_close(z.grad, expected)


@each_smoothing
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@each_loss
def test_value_and_gradient_fit(name, reduction, smoothing):
    z, target = batch(2, 3, size=SIZE)
    target[0, 1] = 7
    options = {"label_smoothing": smoothing, "prior": a_prior(), "ignore_index": 7}
    assert gradcheck(
        lambda z: LOSSES[name][0](z, target, reduction=reduction, **options), z.requires_grad_()
    )


@each_smoothing
def test_the_value_is_that_of_the_defining_formula(smoothing):
    z, target = batch(20, size=SIZE)
    prior = a_prior()
    q = target_distribution(target, smoothing, prior)
    p = entmax(z, 1.5)
    entropy = partial(references.tsallis_entropy, alpha=1.5)
    losses = entmax_loss(z, target, label_smoothing=smoothing, prior=prior, reduction="none")
    torch.testing.assert_close(losses, ((p - q) * z).sum(-1) + entropy(p) - entropy(q))


@pytest.mark.parametrize("dtype", DTYPES)
@each_smoothing
@each_loss
def test_a_uniform_prior_is_the_default(name, smoothing, dtype):
    loss = LOSSES[name][0]
    z, target = batch(9, size=SIZE, dtype=dtype)
    target[4] = 7
    uniform = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)
    options = {"label_smoothing": smoothing, "ignore_index": 7, "reduction": "none"}
    rtol, atol = (1e-10, 1e-12) if dtype == torch.float64 else (2e-6, 1e-6)
    given = loss(z, target, prior=uniform, **options)
    torch.testing.assert_close(given, loss(z, target, **options), rtol=rtol, atol=atol)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@each_smoothing
@each_loss
def test_features_and_weights_give_the_loss_of_their_logits(name, smoothing, reduction, bias):
    loss, linear, _ = LOSSES[name]
    x, w = torch.randn(10, 5).double(), torch.randn(SIZE, 5).double()
    b = torch.randn(SIZE).double() if bias else None
    target = torch.randint(SIZE, (10,))
    target[2] = 7
    options = {
        "label_smoothing": smoothing,
        "prior": a_prior(),
        "ignore_index": 7,
        "reduction": reduction,
    }
    inputs = [y.requires_grad_() for y in (x, w, b) if y is not None]
    values, gradients = [], []
    for value in (linear(x, w, b, target, **options), loss(F.linear(x, w, b), target, **options)):
        values.append(value)
        gradients.append(torch.autograd.grad(value.sum(), inputs))
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_loss
def test_half_precision_does_not_round_the_loss(name, dtype):
    linear = LOSSES[name][1]
    x, w = torch.randn(64, 16).to(dtype), torch.randn(SIZE, 16).to(dtype)
    target = torch.randint(SIZE, (64,))
    options = {"label_smoothing": 0.1, "reduction": "sum", "prior": a_prior()}
    loss = linear(x, w, None, target, **options)
    assert loss.dtype == torch.float32
    exact = linear(x.double(), w.double(), None, target, **options)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-2, atol=0)


def test_a_prior_of_another_vocabulary_is_refused():
    z, target = batch(4, size=SIZE)
    with pytest.raises(ValueError, match="prior"):
        entmax_loss(z, target, label_smoothing=0.1, prior=torch.ones(SIZE + 1))
    with pytest.raises(ValueError, match="prior"):
        linear_entmax_loss(
            torch.randn(4, 5), torch.randn(SIZE, 5), None, target, prior=torch.ones(1)
        )
