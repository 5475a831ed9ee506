"""The kernels of the losses.

Without a GPU they run in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch
from torch.autograd import gradcheck

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.losses import row_losses
from op_cases import DTYPES, LOSSES, TAU, batch
from references import INF, assert_close_to_naive

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
each_alpha = pytest.mark.parametrize("alpha", (1.1, 1.5, 2.0, 3.0))
each_smoothing = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def options(kind, alpha=1.5, label_smoothing=0.0, ignore_index=-100):
    tau = TAU if str(kind) == "alpha_relu" else None
    return FenchelYoungLoss(alpha, tau, label_smoothing, ignore_index, "none")


def drawn(*shape, **draw):
    return (x.to(DEVICE) for x in batch(*shape, **draw))


def losses_and_gradient(z, target, loss):
    z = z.detach().requires_grad_()
    losses = row_losses(z, target, loss)
    return losses.detach(), torch.autograd.grad(losses.sum(), z)[0]


@pytest.mark.parametrize(
    "label_smoothing, dtype",
    [
        (0.0, torch.float32),
        (0.0, torch.bfloat16),
        (0.1, torch.float64),
        (0.1, torch.float16),
        (1.0, torch.float32),
    ],
    ids=str,
)
@each_alpha
@each_loss
def test_agrees_with_the_defining_formulas(kind, alpha, label_smoothing, dtype):
    assert_agrees(kind, alpha, label_smoothing, *drawn(3, size=9, dtype=dtype, scale=2.0))


@pytest.mark.parametrize("alpha", [1.1, 1.5, 3.0])
@each_loss
def test_agrees_in_rows_of_several_blocks(kind, alpha):
    assert_agrees(kind, alpha, 0.1, *drawn(1, size=4500, dtype=torch.float32))


def assert_agrees(kind, alpha, label_smoothing, z, target):
    dtype = z.dtype
    loss = options(kind, alpha, label_smoothing)
    losses, grad = losses_and_gradient(z, target, loss)
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert grad.dtype == dtype

    def naive(z, target):
        return kind.naive_loss(z, target, alpha, label_smoothing)

    def naive_gradient(z, target):
        return kind.naive_gradient(z, target, alpha, label_smoothing)

    # The interpreter truncates to bfloat16, where a GPU rounds.
    atol = 0.004 * float(grad.abs().max()) * (dtype == torch.bfloat16)
    rounding = 8 * torch.finfo(losses.dtype).eps
    inputs = z.cpu(), target.cpu()
    assert_close_to_naive(losses.cpu(), naive, *inputs, slack=6, atol=rounding)
    assert_close_to_naive(grad.cpu(), naive_gradient, *inputs, slack=6, atol=atol + rounding)


@pytest.mark.each_value
@each_smoothing
@each_loss
def test_value_and_gradient_fit(kind, label_smoothing):
    z, target = drawn(3, size=5)
    target[1] = 4
    loss = options(kind, 1.5, label_smoothing, ignore_index=4)
    assert gradcheck(lambda z: row_losses(z, target, loss), z.requires_grad_())


@each_smoothing
@each_loss
def test_rows_at_the_edge(kind, label_smoothing):
    """Losses that are NaN, infinite or 0 are those of the PyTorch op."""
    from fairseq_sparse.ops.losses import _RowLosses

    z, target = drawn(9, size=6, dtype=torch.float32)
    target[:] = torch.tensor([0, 1, 2, 3, 4, 5, 3, -1, -1])
    z[0] = 2.5
    z[1] = -INF
    z[2, 2] = -INF
    z[3, :2] = -INF
    z[4, 1] = NAN
    z[5, :3], z[5, 3:] = 1e4, -1e4
    z[6, 3] = 1e4
    z[7] = NAN
    loss = options(kind, 1.5, label_smoothing, ignore_index=-1)
    losses, grad = losses_and_gradient(z, target, loss)
    expected = z.clone().requires_grad_()
    expected_losses, _ = _RowLosses.apply(expected, target, loss.tau, loss)
    expected_losses.sum().backward()
    close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(losses, expected_losses, **close)
    torch.testing.assert_close(grad, expected.grad, **close)
    assert (losses[7:] == 0).all() and (grad[7:] == 0).all() and losses[4].isnan()


@each_loss
def test_a_target_that_is_no_class_gives_nan(kind):
    z, target = drawn(3, size=6)
    target[:2] = torch.tensor([6, -3])
    losses = row_losses(z, target, options(kind))
    assert losses[:2].isnan().all() and losses[2] >= 0


@each_loss
def test_any_layout(kind):
    z, target = drawn(5, size=8, dtype=torch.float32)
    loss = options(kind)
    losses, grad = losses_and_gradient(z, target, loss)
    spread = torch.full((5, 16), NAN, device=DEVICE)
    spread[:, ::2] = z
    for same in (z.t().contiguous().t(), spread[:, ::2]):
        again, same_grad = losses_and_gradient(same, target, loss)
        assert torch.equal(again, losses) and torch.equal(same_grad, grad)
    one = z[:1].expand(5, 8).clone().detach()
    of_expanded = row_losses(z[:1].expand(5, 8), target, loss)
    assert torch.equal(of_expanded, row_losses(one, target, loss))
    assert row_losses(z[:0], target[:0], loss).shape == (0,)


@each_loss
def test_each_row_has_its_gradient_scaled_before_it_is_rounded(kind):
    z, target = drawn(4, size=6, dtype=torch.float16)
    z = z.requires_grad_()
    loss = options(kind)
    _, expected = losses_and_gradient(z, target, loss)
    weights = torch.tensor([1.0, -2.0, 0.0, 1e5], device=DEVICE)  # 1e5 is too large for fp16
    z.data[3] = 0
    z.data[3, target[3]] = 6.5  # near the target: a small residual
    (grad,) = torch.autograd.grad((row_losses(z, target, loss) * weights).sum(), z)
    torch.testing.assert_close(grad[:3], expected[:3] * weights[:3, None].half())
    if str(kind) == "entmax":
        assert torch.isfinite(grad[3]).all()


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("size", [300, 40001, 1 << 18])
@pytest.mark.parametrize("alpha, label_smoothing", [(1.5, 0.1), (1.1, 0.0), (2.0, 0.0)])
@each_loss
def test_on_a_gpu(kind, alpha, label_smoothing, size, dtype):
    z, target = batch(6, size=size, dtype=dtype)
    target[2] = 3
    given = {"label_smoothing": label_smoothing, "ignore_index": 3, "reduction": "none"}
    z.requires_grad_()
    on_gpu = z.detach().cuda().requires_grad_()
    expected = kind.loss(z, target, alpha, **given)
    target = target.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = kind.loss(on_gpu, target, alpha, **given)
        (actual,) = torch.autograd.grad(found.sum(), on_gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (exact,) = torch.autograd.grad(expected.sum(), z)
    rounding = 1e-10 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found.cpu(), expected, rtol=rounding, atol=rounding)
    rounding = max(rounding, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(actual.cpu(), exact, rtol=rounding, atol=rounding)
