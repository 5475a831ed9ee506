"""Common properties of the losses, where the compiled kernels and PyTorch could differ."""

from unittest import mock

import pytest
import torch

from fairseq_sparse.ops import cpu
from op_cases import LOSSES, batch
from references import smoothed_target

each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
LIBRARIES = ("compiled", "PyTorch")


@pytest.fixture(params=LIBRARIES, autouse=True)
def library(request):
    """Run each test with the kernels and without them."""
    if request.param == "PyTorch":
        with mock.patch.object(cpu.build, "library", return_value=None):
            yield
    elif cpu.build.library() is None:
        pytest.skip("needs a C compiler")
    else:
        yield


@pytest.mark.parametrize("label", [-1, 200, -101, 1 << 31, -(1 << 40)])
@each_loss
def test_targets_out_of_range_are_refused(kind, label):
    z, target = batch(40, size=200, dtype=torch.float32)
    target[17] = label
    with pytest.raises((RuntimeError, IndexError)):
        kind.loss(z.requires_grad_(), target).backward()


@pytest.mark.parametrize("layout", ["strided", "expanded", "transposed"])
@each_loss
def test_targets_of_any_layout(kind, layout):
    z, _ = batch(6, 8, size=50, dtype=torch.float32)
    target = {
        "strided": torch.randint(50, (6, 24))[:, ::3],
        "expanded": torch.tensor(7).expand(6, 8),
        "transposed": torch.randint(50, (8, 6)).t(),
    }[layout]
    z.requires_grad_()
    results = []
    for labels in (target, target.contiguous()):
        losses = kind.loss(z, labels, label_smoothing=0.1, reduction="none")
        results.append((losses.detach(), *torch.autograd.grad(losses.sum(), z)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.pairwise
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.99, 2.0])
@each_loss
def test_gradient_is_that_of_fp64(kind, alpha, label_smoothing):
    # In long rows the target is seldom in the support.
    z, target = batch(30, size=700, dtype=torch.float32, scale=1 / (alpha - 1))
    target[:3] = torch.tensor([0, 699, -100])
    weights = torch.linspace(0.5, 2, 30)
    z.requires_grad_()
    losses = kind.loss(z, target, alpha, label_smoothing=label_smoothing, reduction="none")
    (gradient,) = torch.autograd.grad(losses, z, weights)
    exact = kind.mapping(z.detach().double(), alpha)
    exact -= smoothed_target(exact, target.clamp(min=0), label_smoothing)
    exact *= (weights * (target != -100)).double().unsqueeze(1)
    scale = 1 + exact.abs()
    assert ((gradient.double() - exact).abs() <= 4e-6 / (alpha - 1) * scale).all()
    assert (gradient[2] == 0).all()
