import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import references
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    backends,
    entmax15,
    entmax_loss,
    entmax_threshold,
    linear_alpha_relu_loss,
    linear_entmax_loss,
)
from op_cases import DTYPES, LOSSES, TAU, batch
from references import assert_close_to_naive, error_of_naive, smoothed_target

INF = float("inf")
NAN = float("nan")
ALPHAS = (1.25, 1.5, 2.0, 3.0)
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)
each_smoothing = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])


# --- value and gradient --------------------------------------------------------------------------


@pytest.mark.pairwise
@each_smoothing
@each_alpha
@each_loss
def test_value_and_gradient_fit(kind, alpha, label_smoothing):
    z, target = batch(2, 3)
    target[0, 1] = 7
    options = {"label_smoothing": label_smoothing, "ignore_index": 7}
    z.requires_grad_()
    for reduction in ("none", "sum", "mean"):

        def loss(z, reduction=reduction):
            return kind.loss(z, target, alpha, reduction=reduction, **options)

        assert gradcheck(loss, z)


@each_alpha
@each_loss
def test_value_and_gradient_fit_where_classes_are_masked(kind, alpha):
    z, target = batch(4)
    mask = torch.rand(z.shape) < 0.5
    mask.scatter_(-1, target.unsqueeze(-1), False)
    z.requires_grad_()
    assert gradcheck(
        lambda z: kind.loss(z.masked_fill(mask, -INF), target, alpha, reduction="none"), z
    )


@pytest.mark.parametrize("algorithm", ["sort", "partial", "bisect"])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_loss_by_each_algorithm(alpha, algorithm):
    z, target = batch(6, scale=0.3)
    options = {"algorithm": algorithm, "topk": 2}
    losses = entmax_loss(z, target, alpha, reduction="none", **options)
    assert_close_to_naive(
        losses, lambda z, y: references.entmax_loss(z, y, alpha), z, target, slack=4
    )
    z.requires_grad_()
    assert gradcheck(lambda z: entmax_loss(z, target, alpha, 0.1, **options), z)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 2.0, 20.0])
@each_smoothing
@each_alpha
@each_loss
def test_agrees_with_the_defining_formulas(kind, alpha, label_smoothing, scale, dtype):
    z, target = batch(20, dtype=dtype, scale=scale)
    before = z.clone()
    z.requires_grad_()
    losses = kind.loss(z, target, alpha, label_smoothing=label_smoothing, reduction="none")
    losses.sum().backward()
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert z.grad.dtype == dtype
    assert torch.equal(z.detach(), before)

    def naive(z, target):
        return kind.naive_loss(z, target, alpha, label_smoothing)

    def naive_gradient(z, target):
        return kind.naive_gradient(z, target, alpha, label_smoothing)

    assert_close_to_naive(losses.detach(), naive, z.detach(), target, slack=4)
    assert_close_to_naive(z.grad, naive_gradient, z.detach(), target, slack=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@each_smoothing
def test_alpha_1_is_cross_entropy(label_smoothing, reduction, dtype):
    z, target = batch(3, 5, dtype=dtype)
    target[0, :2] = 4
    z.requires_grad_()
    ours = entmax_loss(
        z, target, 1, label_smoothing=label_smoothing, ignore_index=4, reduction=reduction
    )
    theirs = F.cross_entropy(
        z.flatten(0, 1),
        target.flatten(),
        ignore_index=4,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    torch.testing.assert_close(ours, theirs.view(ours.shape))
    gradients = [torch.autograd.grad(loss.sum(), z)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_alpha_near_1_is_near_cross_entropy():
    z, target = batch(20)
    near = entmax_loss(z, target, 1.001, reduction="none")
    exact = entmax_loss(z, target, 1.0, reduction="none")
    torch.testing.assert_close(near, exact, rtol=1e-2, atol=1e-3)


# --- sign ----------------------------------------------------------------------------------------


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5, 1.0])
@each_alpha
@each_loss
def test_zero_at_the_target_and_never_below(kind, alpha, label_smoothing, dtype):
    for size in (2, 5, 50):
        target = torch.randint(size, (10,))
        q = smoothed_target(torch.zeros(10, size, dtype=torch.float64), target, label_smoothing)
        z = kind.logits_of(q, alpha).to(dtype).requires_grad_()
        options = {"label_smoothing": label_smoothing, "reduction": "none"}
        losses = kind.loss(z, target, alpha, **options)
        losses.sum().backward()
        assert (losses >= 0).all()
        # Rounding z to `dtype` moves p by a rounding error, and the loss by less.
        assert losses.max() < 40 * torch.finfo(dtype).eps
        beta = 1 / (alpha - 1)
        allowed = 60 * max(1, beta) * torch.finfo(dtype).eps ** min(1, beta)
        assert z.grad.double().abs().max() < allowed
        further = z.detach().double()
        further[:, 0] += 1.5 / (alpha - 1)  # more than the margin of a one-hot target
        moved = (kind.naive_gradient(further, target, alpha, label_smoothing) != 0).any(-1)
        assert (moved | (target == 0)).all()
        assert (kind.loss(further, target, alpha, **options) > 1e-3)[moved].all()


@each_loss
@given(
    rows=st.lists(
        st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5), min_size=1, max_size=4
    ),
    target=st.integers(0, 4),
    alpha=st.sampled_from(ALPHAS),
    label_smoothing=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
)
def test_any_logits(kind, rows, target, alpha, label_smoothing, dtype):
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    target = torch.full((len(rows),), target)
    losses = kind.loss(z, target, alpha, label_smoothing=label_smoothing, reduction="none")
    losses.sum().backward()
    assert (losses >= 0).all() and torch.isfinite(losses).all()
    assert torch.isfinite(z.grad).all() or float(z.detach().abs().max()) > 10

    def naive(z):
        return kind.naive_loss(z, target, alpha, label_smoothing)

    exact = naive(z.detach().double())
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    # A sum of terms of this size is rounded; label smoothing adds a term the size of a logit.
    magnitude = float(z.detach().double().abs().max()) * (alpha - 1) + abs(TAU) + 1
    terms = 1 + magnitude ** (alpha / (alpha - 1)) + magnitude / (alpha - 1)
    allowed = 64 * torch.finfo(computed).eps * (terms + exact.abs().max())
    assert (losses.detach().double() - exact).abs().max() <= allowed


@each_alpha
def test_entmax_loss_does_not_see_a_shift(alpha):
    z, target = batch(10)
    for label_smoothing in (0.0, 0.1):
        options = {"label_smoothing": label_smoothing, "reduction": "none"}
        here, there = (entmax_loss(z + shift, target, alpha, **options) for shift in (0.0, 1e4))
        torch.testing.assert_close(here, there, rtol=0, atol=1e-7 if alpha > 2 else 1e-10)


# --- tau -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau_dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tau_as_a_number_or_a_tensor(dtype, tau_dtype):
    z, target = batch(2, 3, dtype=dtype)
    z.requires_grad_()
    for options in (
        *({}, {"label_smoothing": 0.1}, {"reduction": "none"}),
        *({"alpha": 2.0}, {"alpha": 1.7}),
    ):
        number = alpha_relu_loss(z, target, 0.375, **options)
        expected = torch.autograd.grad(number.sum(), z)[0]
        for shape in ((), (1,), (1, 1)):
            tau = torch.full(shape, 0.375, dtype=tau_dtype)
            tensor = alpha_relu_loss(z, target, tau, **options)
            assert tensor.dtype == number.dtype and tensor.shape == number.shape
            torch.testing.assert_close(tensor, number)
            torch.testing.assert_close(torch.autograd.grad(tensor.sum(), z)[0], expected)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_tau_that_is_no_number_gives_no_numbers(backend):
    z, target = batch(3)
    features, weight, label = z.float(), torch.eye(z.size(-1)), target
    with backends.use(backend):
        for loss in (
            alpha_relu_loss(features.requires_grad_(), label, torch.tensor(NAN)),
            linear_alpha_relu_loss(features, weight, None, label, torch.tensor(NAN)),
        ):
            (gradient,) = torch.autograd.grad(loss, features)
            assert loss.isnan() and gradient.isnan().all()


def test_no_gradient_flows_to_tau():
    z, target = batch(3)
    tau = torch.tensor(0.2, requires_grad=True)
    alpha_relu_loss(z.requires_grad_(), target, tau).backward()
    assert z.grad is not None and tau.grad is None


def test_the_two_losses_agree_where_the_threshold_does():
    z, target = batch(1)
    for alpha in ALPHAS:
        tau = entmax_threshold(z, alpha)
        for label_smoothing in (0.0, 0.1):
            relu = alpha_relu_loss(z, target, tau, alpha, label_smoothing)
            torch.testing.assert_close(relu, entmax_loss(z, target, alpha, label_smoothing))


def test_alpha_relu_loss_by_hand():
    # alpha = 2, tau = 0: p = [z]_+, loss = |p|^2 / 2 - z_y + 1 / 2.
    z = torch.tensor([[3.0, -1.0, 2.0]], dtype=torch.float64)
    losses = [
        float(alpha_relu_loss(z, torch.tensor([target]), 0.0, alpha=2.0)) for target in range(3)
    ]
    assert losses == [13 / 2 - 3 + 1 / 2, 13 / 2 + 1 + 1 / 2, 13 / 2 - 2 + 1 / 2]


def test_entmax_loss_by_hand():
    # alpha = 2, z = [0.5, 0]: p = [3/4, 1/4]; (p - e_y)^T z + (1 - |p|^2) / 2.
    z = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    losses = [float(entmax_loss(z, torch.tensor([target]), 2.0)) for target in range(2)]
    assert losses == pytest.approx([-1 / 8 + 3 / 16, 3 / 8 + 3 / 16], rel=1e-15)
    assert math.isclose(float(entmax_loss(z, torch.tensor([0]), 2.0, label_smoothing=1.0)), 1 / 16)


# --- bad arguments -------------------------------------------------------------------------------


@each_loss
def test_bad_arguments(kind):
    z, target = batch(3, 4)
    for wrong in (target[0], target.flatten(), target.unsqueeze(-1), target.t()):
        with pytest.raises(
            ValueError, match=r"logits \(3, 4, 12\) need a target of shape \(3, 4\)"
        ):
            kind.loss(z, wrong)
    with pytest.raises(ValueError, match="need a target"):
        kind.loss(torch.tensor(1.0), torch.tensor(0))
    for dtype in (torch.int32, torch.int16, torch.uint8, torch.float32):
        with pytest.raises(ValueError, match=f"target must be int64, got {dtype}"):
            kind.loss(z, target.to(dtype))
    for label_smoothing in (-0.1, 1.1, NAN, INF):
        with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\], got"):
            kind.loss(z, target, label_smoothing=label_smoothing)
    with pytest.raises(ValueError, match="reduction must be none, sum or mean, got 'average'"):
        kind.loss(z, target, reduction="average")
    for alpha in (0.5, 0.0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="alpha must be a finite number above 1, got"):
            kind.loss(z, target, alpha)


def test_bad_arguments_of_one_loss():
    z, target = batch(3)
    with pytest.raises(ValueError, match="topk"):
        entmax_loss(z, target, algorithm="partial", topk=-2)
    with pytest.raises(ValueError, match="algorithm"):
        entmax_loss(z, target, algorithm="quick")
    with pytest.raises(ValueError, match="alpha must be a finite number above 1, got 1"):
        alpha_relu_loss(z, target, 0.1, alpha=1)
    for tau in (NAN, INF, -INF):
        with pytest.raises(ValueError, match="tau must be a finite number, got"):
            alpha_relu_loss(z, target, tau)
    for tau in (torch.zeros(3), torch.zeros(3, 1), torch.zeros(12), torch.zeros(0)):
        with pytest.raises(ValueError, match="tau must have one element, got shape"):
            alpha_relu_loss(z, target, tau)


@pytest.mark.parametrize(
    "shapes", [((3, 4), (7, 5), None), ((3, 4), (7, 4), (6,)), ((3, 4), (4,), None)], ids=str
)
def test_features_and_weights_must_fit(shapes):
    features, weight, bias = (None if shape is None else torch.zeros(shape) for shape in shapes)
    for loss in (linear_entmax_loss, partial(linear_alpha_relu_loss, tau=0.1)):
        for reduction in ("none", "mean"):
            with pytest.raises(ValueError, match="do not fit"):
                loss(features, weight, bias, torch.zeros(3, dtype=torch.int64), reduction=reduction)
    with pytest.raises(TypeError, match="floating point"):
        target = torch.zeros(3, dtype=torch.int64)
        linear_entmax_loss(target.view(3, 1), torch.zeros(7, 1), None, target)


def test_the_naive_loss_is_not_exact_in_fp32():
    # The error on which the tolerances above rest is neither 0 nor large.
    z, target = batch(20)
    for kind in LOSSES:
        assert 0 < error_of_naive(kind.naive_loss, z, target) < 1e-4


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("tau", [None, 0.1], ids=["entmax", "alpha_relu"])
def test_the_scale_of_a_loss_is_not_rounded_to_half_precision(tau, backend):
    """fp16 holds the gradient, but not the factor of the loss, as with loss scaling."""
    z = torch.tensor([[1.9, 0.0, 0.25, -3.0]], dtype=torch.float16, requires_grad=True)
    target, factor = torch.tensor([0]), 2.0**17
    with backends.use(backend):
        loss = entmax_loss(z, target) if tau is None else alpha_relu_loss(z, target, tau)
        (actual,) = torch.autograd.grad(loss.float() * factor, z)
    exact = z.detach().double()
    p = entmax15(exact) if tau is None else alpha_relu(exact, tau)
    expected = (p - torch.eye(4)[:1]) * factor
    torch.testing.assert_close(actual.double(), expected, rtol=2e-3, atol=0.0)
