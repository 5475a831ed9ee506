"""Projection and loss in one: value and gradients are those of the two ops, one after the other.

Without a GPU the kernels run in Triton's interpreter, on tensors of the CPU.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", minversion="3.0", reason="needs triton 3")

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu import linear_loss as kernels
from fairseq_sparse.ops.gpu.linear_loss import losses_and_gradients, summed_linear_loss
from op_cases import DTYPES, HALF_DTYPES, LOSSES, TAU

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, CLASSES, WIDTH, IGNORED = 12, 30, 8, 5
NAN = float("nan")
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, request):
    """Several parts, the last one shorter, both of rows and of classes."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(kernels, "_TILE", 8)
        monkeypatch.setattr(kernels, "_ROWS_AT_A_TIME", 8 * CLASSES * 4)
        monkeypatch.setattr(kernels, "_CLASSES_AT_A_TIME", 8 * ROWS * 4)


def options(kind, label_smoothing=0.0, alpha=1.5):
    tau = TAU if str(kind) == "alpha_relu" else None
    return FenchelYoungLoss(alpha, tau, label_smoothing, IGNORED, "sum")


def drawn(rows=ROWS, classes=CLASSES, width=WIDTH, dtype=torch.float32, device=DEVICE):
    """Features, weight, bias and target; one target is ignored."""
    tensors = torch.randn(rows, width), torch.randn(classes, width) * 0.7, torch.randn(classes)
    target = torch.randint(classes, (rows,))
    target[1] = IGNORED
    tensors = [x.to(device, dtype).requires_grad_() for x in tensors]
    return *tensors, target.to(device)


def unfused(kind, x, weight, bias, target, label_smoothing=0.0, alpha=1.5):
    logits = F.linear(x, weight, bias)
    given = {"label_smoothing": label_smoothing, "ignore_index": IGNORED, "reduction": "sum"}
    return kind.loss(logits, target, alpha, **given)


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


def relative_error(actual, exact):
    return float((actual.cpu().double() - exact.cpu()).abs().max() / exact.abs().max())


@each_dtype
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@each_loss
def test_equals_the_two_ops(kind, label_smoothing, dtype):
    *tensors, target = drawn(dtype=dtype)
    found = summed_linear_loss(*tensors, target, options(kind, label_smoothing))
    actual = gradients(0.3 * found, *tensors)
    exact_tensors = [x.detach().cpu().double().requires_grad_() for x in tensors]
    exact = unfused(kind, *exact_tensors, target.cpu(), label_smoothing)
    expected = gradients(0.3 * exact, *exact_tensors)
    # Logits and p - q are rounded to halves, and then the gradients; the interpreter cuts off.
    rounding = {torch.float64: 1e-14, torch.float32: 2e-6}.get(dtype, 8 * torch.finfo(dtype).eps)
    assert relative_error(found.detach(), exact.detach()) < rounding
    for ours, theirs, x in zip(actual, expected, tensors, strict=True):
        assert ours.dtype == dtype and ours.shape == x.shape
        assert relative_error(ours, theirs) < rounding


@pytest.mark.parametrize("alpha", [1.2, 2.0, 3.0])
@each_loss
def test_any_alpha(kind, alpha):
    *tensors, target = drawn(dtype=torch.float64)
    found = summed_linear_loss(*tensors, target, options(kind, alpha=alpha))
    expected = unfused(kind, *tensors, target, alpha=alpha)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, *tensors), gradients(expected, *tensors))


@each_loss
def test_losses_of_rows(kind):
    x, weight, bias, target = drawn()
    target[7] = 11
    losses, _ = losses_and_gradients(x, weight, bias, target, options(kind, 0.1))
    logits = F.linear(x, weight, bias)
    given = {"label_smoothing": 0.1, "ignore_index": IGNORED, "reduction": "none"}
    torch.testing.assert_close(losses, kind.loss(logits, target, **given).detach())
    assert losses[1] == 0 and not losses.requires_grad


@pytest.mark.each_value
@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)), ids=str)
@each_loss
def test_only_what_is_needed(kind, needed):
    *tensors, target = drawn()
    loss = options(kind, 0.1)
    losses, every = losses_and_gradients(*tensors, target, loss)
    same, some = losses_and_gradients(*tensors, target, loss, needed)
    assert torch.equal(same, losses)
    for wanted, ours, theirs in zip(needed, some[:3], every[:3], strict=True):
        assert (ours is not None) == wanted
        assert ours is None or torch.equal(ours, theirs)


@each_loss
def test_without_bias(kind):
    x, weight, bias, target = drawn()
    loss = options(kind)
    found = summed_linear_loss(x, weight, None, target, loss)
    zero = torch.zeros_like(bias)
    expected = summed_linear_loss(x, weight, zero, target, loss)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, x, weight), gradients(expected, x, weight))


@each_loss
def test_frozen_weights_and_second_backward_passes(kind):
    x, weight, bias, target = drawn()
    loss = options(kind)
    expected = gradients(summed_linear_loss(x, weight, bias, target, loss), x)[0]
    found = summed_linear_loss(x, weight.detach(), bias.detach(), target, loss)
    for factor in (1.0, 2.0):
        (again,) = torch.autograd.grad(factor * found, x, retain_graph=True)
        assert torch.equal(again, factor * expected)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_small_probabilities_do_not_vanish(dtype):
    """alpha-ReLU's p = (z / 2)^2 = 2.25e-8 is 0 in fp16, and would be 0 in the gradient."""
    loss = FenchelYoungLoss(1.5, 0.0, 0.0, -100, "sum")
    x = torch.ones(2, 1, dtype=dtype, device=DEVICE)
    weight = torch.tensor([[2.0], [3e-4]], dtype=dtype, device=DEVICE)
    target = torch.zeros(2, dtype=torch.long, device=DEVICE)
    _, found = losses_and_gradients(x, weight, torch.zeros_like(weight[:, 0]), target, loss)
    torch.testing.assert_close(
        found.bias[1:] / found.scale, weight[1].float().square() / 2, rtol=0.02, atol=0
    )


def test_a_scaled_loss_need_not_fit_into_fp16():
    *tensors, target = drawn(dtype=torch.float16)
    loss = options(LOSSES[0])
    plain = gradients(summed_linear_loss(*tensors, target, loss), *tensors)
    scaled = gradients(summed_linear_loss(*tensors, target, loss) * 2.0**17 * 2.0**-7, *tensors)
    small = gradients(summed_linear_loss(*tensors, target, loss) * 2.0**-7 * 2.0**17, *tensors)
    for ours, same, theirs in zip(scaled, small, plain, strict=True):
        expected = theirs.float() * 1024
        assert torch.equal(ours, same)
        fits = expected.abs() < 60000
        torch.testing.assert_close(ours[fits].float(), expected[fits], rtol=2e-3, atol=0.1)


@each_loss
def test_autocast_changes_nothing(kind):
    *tensors, target = drawn()
    loss = options(kind)
    expected = summed_linear_loss(*tensors, target, loss)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = summed_linear_loss(*tensors, target, loss)
    assert torch.equal(found, expected)
    for ours, theirs in zip(gradients(found, *tensors), gradients(expected, *tensors), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("count", [1, 127, 128, 1000, 40000])
@pytest.mark.parametrize("bytes_at_a_time", [1, 1 << 14, 1 << 30])
def test_parts_cover_everything_once(count, bytes_at_a_time):
    parts = kernels._parts(count, 100, bytes_at_a_time)
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert all(size * 100 < bytes_at_a_time + 100 * kernels._TILE for size in sizes)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 10000, 512), (1100, 40001, 256)], ids=str)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@each_dtype
@each_loss
def test_on_a_gpu(kind, dtype, label_smoothing, shape):
    *tensors, target = drawn(*shape, dtype=dtype, device="cuda")
    tensors[1].data /= shape[2] ** 0.5
    loss = options(kind, label_smoothing)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = summed_linear_loss(*tensors, target, loss)
        actual = gradients(found, *tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    exact_tensors = [x.detach().double().requires_grad_() for x in tensors]
    exact = unfused(kind, *exact_tensors, target, label_smoothing)
    expected = gradients(exact, *exact_tensors)
    rounding = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 4 * torch.finfo(dtype).eps)
    assert relative_error(found.detach(), exact.detach().cpu()) < rounding
    for ours, theirs in zip(actual, expected, strict=True):
        assert relative_error(ours, theirs.cpu()) < rounding


@pytest.mark.gpu
@each_loss
def test_memory_on_a_gpu_is_less_than_that_of_the_logits(kind):
    *tensors, target = drawn(16384, 40000, 256, torch.bfloat16, "cuda")
    summed_linear_loss(*tensors, target, options(kind)).backward()  # the kernels are compiled
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    summed_linear_loss(*tensors, target, options(kind)).backward()
    assert torch.cuda.max_memory_allocated() - before < 0.4 * 16384 * 40000 * 2
