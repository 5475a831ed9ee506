"""The losses over batches, layouts and dtypes, and on rows at the edge."""

import pytest
import torch

import references
from fairseq_sparse.ops import (
    backends,
    entmax_loss,
    linear_alpha_relu_loss,
    linear_entmax_loss,
)
from op_cases import DTYPES, HALF_DTYPES, LOSSES, AlphaReLULoss, batch

INF = float("inf")
NAN = float("nan")
ALPHAS = (1.25, 1.5, 2.0, 3.0)
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)
each_smoothing = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])


# --- reduction, ignored targets, shapes ----------------------------------------------------------


@each_loss
def test_reductions_and_ignored_targets(kind):
    z, target = batch(4, 5)
    target[1, 2] = target[3] = -100
    z[1, 2] = NAN  # ignored rows may hold anything
    z[3, 0] = -INF
    z.requires_grad_()
    kept = target != -100
    assert int(kept.sum()) == 14

    losses = kind.loss(z, target, reduction="none")
    assert losses.shape == target.shape
    assert (losses[~kept] == 0).all() and (losses[kept] >= 0).all()
    assert (losses[kept] > 0).sum() > 10
    alone = kind.loss(z[kept], target[kept], reduction="none")
    torch.testing.assert_close(losses[kept], alone)
    torch.testing.assert_close(kind.loss(z, target, reduction="sum"), alone.sum())
    mean = kind.loss(z, target)
    torch.testing.assert_close(mean, alone.mean())
    mean.backward()
    assert (z.grad[~kept] == 0).all()
    expected = kind.naive_gradient(z.detach()[kept], target[kept]) / 14
    torch.testing.assert_close(z.grad[kept], expected)

    weights = torch.randn(4, 5, dtype=torch.float64)
    (grad,) = torch.autograd.grad((kind.loss(z, target, reduction="none") * weights).sum(), z)
    torch.testing.assert_close(grad[kept], expected * 14 * weights[kept].unsqueeze(-1))
    assert (grad[~kept] == 0).all()


@pytest.mark.each_value
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, 1, 11])
@each_smoothing
@each_loss
def test_any_ignore_index(kind, label_smoothing, ignore_index):
    z, target = batch(30)
    target[::3] = ignore_index
    z.requires_grad_()
    options = {"label_smoothing": label_smoothing, "reduction": "none"}
    losses = kind.loss(z, target, ignore_index=ignore_index, **options)
    kept = target != ignore_index
    assert (losses[~kept] == 0).all()
    torch.testing.assert_close(losses[kept], kind.loss(z[kept], target[kept], **options))
    losses.sum().backward()
    assert (z.grad[~kept] == 0).all() and (z.grad[kept] != 0).any(-1).all()


@each_loss
def test_all_targets_ignored(kind):
    z, _ = batch(2, 3)
    z.requires_grad_()
    target = torch.full((2, 3), -100)
    for alpha in (1.5, 2.0 if isinstance(kind, AlphaReLULoss) else 1):
        for reduction in ("none", "sum", "mean"):
            loss = kind.loss(z, target, alpha, reduction=reduction)
            assert (loss == 0).all()
            assert (torch.autograd.grad(loss.sum(), z)[0] == 0).all()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (3,), (2, 3), (2, 3, 4)])
@each_loss
def test_shapes(kind, shape):
    z, target = batch(*shape)
    z.requires_grad_()
    for reduction in ("none", "sum", "mean"):
        loss = kind.loss(z, target, reduction=reduction)
        assert loss.shape == (shape if reduction == "none" else ())
        (gradient,) = torch.autograd.grad(loss.sum(), z)
        assert gradient.shape == z.shape and torch.isfinite(gradient).all()
        if target.numel():
            exact = kind.naive_loss(z.detach(), target)
            expected = {"none": exact, "sum": exact.sum(), "mean": exact.mean()}[reduction]
            torch.testing.assert_close(loss.detach(), expected)


@each_loss
def test_backward_twice_gives_the_same(kind):
    z, target = batch(5)
    z.requires_grad_()
    loss = kind.loss(z, target)
    first, second = (torch.autograd.grad(loss, z, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("loss", [linear_entmax_loss, linear_alpha_relu_loss])
def test_gradients_add_up_over_any_number_of_backward_passes(loss, reduction, shape):
    x, weight = torch.randn(*shape, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    options = {"tau": 0.1} if loss is linear_alpha_relu_loss else {}
    value = loss(x, weight, None, torch.randint(7, shape), **options, reduction=reduction)
    leaves = (x, weight)
    once = torch.autograd.grad(value, leaves, retain_graph=True)
    for _ in range(4):
        value.backward(retain_graph=True)
    for leaf, gradient in zip(leaves, once, strict=True):
        torch.testing.assert_close(leaf.grad, 4 * gradient)


@pytest.mark.parametrize("loss", [linear_entmax_loss, linear_alpha_relu_loss])
def test_gradients_may_be_changed_by_whoever_gets_them(loss):
    leaves = [torch.randn(n, 4, requires_grad=True) for n in (5, 7)]
    leaves.append(torch.randn(7, requires_grad=True))
    options = {"tau": 0.1} if loss is linear_alpha_relu_loss else {}
    value = loss(*leaves, torch.randint(7, (5,)), **options, reduction="sum")
    first = torch.autograd.grad(value, leaves, retain_graph=True)
    expected = [gradient.clone() for gradient in first]
    for gradient in first:
        gradient.zero_()
    second = torch.autograd.grad(value, leaves)
    assert all(map(torch.equal, second, expected))


# --- rows at the edge ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "auto"])
@each_loss
def test_a_second_derivative_is_refused_rather_than_zero(kind, backend):
    """Also that of a plain loss, whose incoming gradient is a constant."""
    z, target = batch(4, 60, dtype=torch.float32)

    def loss(z):
        return kind.loss(z, target)

    with backends.use(backend):
        expected = torch.autograd.grad(loss(z.requires_grad_()), z)[0]
        torch.testing.assert_close(torch.func.grad(loss)(z), expected)
        for second_derivative in (
            lambda: torch.autograd.functional.hessian(loss, z),
            lambda: torch.func.jacrev(torch.func.grad(loss))(z),
        ):
            with pytest.raises(RuntimeError, match="second derivative"):
                second_derivative()


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("by", range(3))
@pytest.mark.parametrize("of", range(3))
@pytest.mark.parametrize("loss", [linear_entmax_loss, linear_alpha_relu_loss])
def test_so_is_that_of_features_weights_and_bias_by_each_other(loss, of, by, backend):
    leaves = [torch.randn(*shape, requires_grad=True) for shape in ((5, 4), (7, 4), (7,))]
    options = {"tau": 0.1} if loss is linear_alpha_relu_loss else {}
    with backends.use(backend):
        value = loss(*leaves, torch.randint(7, (5,)), **options)
        (grad,) = torch.autograd.grad(value, leaves[of], create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad(value + grad.square().sum(), leaves[by])


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
@each_smoothing
@each_alpha
@each_loss
def test_an_impossible_target_costs_infinity_and_spoils_nothing(
    kind, alpha, label_smoothing, dtype
):
    z, target = batch(4, dtype=dtype)
    z[1, target[1]] = -INF
    z[2] = -INF
    z.requires_grad_()
    options = {"label_smoothing": label_smoothing, "reduction": "none"}
    losses = kind.loss(z, target, alpha, **options)
    assert (losses[1:3] == INF).all()
    good = torch.tensor([0, 3])
    torch.testing.assert_close(losses[good], kind.loss(z[good], target[good], alpha, **options))
    losses.sum().backward()
    assert torch.isfinite(z.grad).all()
    expected = kind.naive_gradient(z.detach().double(), target, alpha, label_smoothing)
    torch.testing.assert_close(z.grad.double(), expected, rtol=0.02, atol=0.02)


@each_loss
def test_nan_and_infinity_stay_in_their_row(kind):
    z, target = batch(5)
    z[1, 3] = NAN
    z[2, (target[2] + 1) % 12] = INF
    z[3, target[3]] = INF
    z.requires_grad_()
    losses = kind.loss(z, target, reduction="none")
    assert not torch.isfinite(losses[1:4]).any()
    assert torch.isfinite(losses[[0, 4]]).all()
    assert kind.loss(z, target).isnan() or kind.loss(z, target) == INF
    losses[[0, 4]].sum().backward()
    assert torch.isfinite(z.grad[[0, 4]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [[1e4] * 4, [-1e4] * 4, [1e4, -1e4, 0.0, 1e4], [0.0] * 4])
def test_far_logits(row, dtype):
    z = torch.tensor([row], dtype=dtype, requires_grad=True)
    for target in range(4):
        for alpha in ALPHAS:
            loss = entmax_loss(z, torch.tensor([target]), alpha)
            (grad,) = torch.autograd.grad(loss, z)
            exact = references.entmax_loss(z.detach().double(), torch.tensor([target]), alpha)
            torch.testing.assert_close(loss.double(), exact[0], rtol=1e-6, atol=1e-6)
            assert torch.isfinite(grad).all()


@each_loss
def test_one_class(kind):
    z = torch.tensor([[0.3], [-INF], [5.0]], requires_grad=True)
    losses = kind.loss(z, torch.zeros(3, dtype=torch.long), 1.5, reduction="none")
    expected = kind.naive_loss(z.detach().double(), torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(losses.detach().double(), expected, rtol=1e-5, atol=1e-6)


# --- half precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@each_loss
def test_counts_that_half_precision_cannot_hold(kind, dtype):
    # 5,000 targets, and 5,000 classes that share the mass.
    z = torch.zeros(5000, 3, dtype=dtype, requires_grad=True)
    target = torch.zeros(5000, dtype=torch.long)
    one = kind.naive_loss(torch.zeros(1, 3, dtype=torch.float64), target[:1])
    loss = kind.loss(z, target)
    torch.testing.assert_close(loss.double(), one[0], rtol=1e-6, atol=0)
    total = kind.loss(z, target, reduction="sum")
    torch.testing.assert_close(total.double(), one[0] * 5000, rtol=1e-6, atol=0)
    wide = torch.full((2, 5000), 0.7, dtype=dtype)
    exact = kind.naive_loss(wide.double(), target[:2], 1.5, 0.1)
    loss = kind.loss(wide, target[:2], label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@each_loss
def test_a_scaled_loss_does_not_overflow_the_gradient(kind, dtype):
    # Mixed precision scales the loss by more than fp16 can hold; the scaled gradient must fit.
    scale = 2.0**17
    z, target = batch(20, size=200, dtype=dtype, scale=0.5)
    z.requires_grad_()
    (kind.loss(z, target, reduction="sum") * scale).backward()
    exact = kind.naive_gradient(z.detach().double(), target) * scale
    fits = exact.abs() < 0.9 * torch.finfo(dtype).max
    assert not z.grad.isnan().any()
    error = (z.grad.double() - exact)[fits].abs()
    tiny = torch.finfo(dtype).smallest_normal * scale
    assert (error <= 2 * torch.finfo(dtype).eps * exact[fits].abs() + tiny).all()
    assert (z.grad[exact == 0] == 0).all()


@each_loss
def test_autocast(kind):
    dtype = torch.bfloat16  # older versions of torch have no fp16 autocast on a CPU
    layer = torch.nn.Linear(8, 30)
    x, target = torch.randn(5, 8), torch.randint(30, (5,))
    for alpha in (1.5, 2.0):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            z = layer(x)
            loss = kind.loss(z, target, alpha, label_smoothing=0.1)
        assert z.dtype == dtype and loss.dtype == torch.float32
        outside = kind.loss(z.detach(), target, alpha, label_smoothing=0.1)
        torch.testing.assert_close(loss.detach(), outside, rtol=0, atol=0)
        loss.backward()
        gradient = kind.naive_gradient(z.detach().float(), target, alpha, 0.1).t() @ x / 5
        error = (layer.weight.grad - gradient).abs().max()
        assert error < 4 * torch.finfo(dtype).eps * gradient.abs().max()
    with torch.autocast("cpu", dtype=dtype):
        assert entmax_loss(layer(x), target, 1).dtype == torch.float32
