"""Projection and loss in one: value and gradients are those of the two ops, one after the other.

Without a GPU the kernels run in Triton's interpreter, on tensors of the CPU.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import triton.language as tl
from triton.runtime import interpreter

from fairseq_sparse.ops import backends
from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu import candidates, dense_rows, support, support_products
from fairseq_sparse.ops.gpu import linear_loss as kernels
from fairseq_sparse.ops.gpu.linear_loss import linear_losses
from op_cases import DTYPES, HALF_DTYPES, LOSSES, TAU

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Two blocks of rows and three of classes, the last ones not full.
ROWS, CLASSES, WIDTH, IGNORED = 18, 37, 8, 5
INF, NAN = float("inf"), float("nan")
# The rows that take the dense path instead of lists: none; those with more candidates than places;
# those with a support larger than its places; or all.
LISTS, FEW_PLACES, FEW_SLOTS, DENSE = "lists", "few places", "few slots", "dense"
WAYS = (LISTS, FEW_PLACES, FEW_SLOTS, DENSE)
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch, request):
    """Set small sizes, for several tiles and parts, and several programs for a row's classes."""
    if request.node.get_closest_marker("gpu"):  # keywords would include the folder's name
        return
    set_sizes(monkeypatch, candidates, _TILE_ROWS=16, _TILE_CLASSES=16, _TILE_BYTES=64)
    set_sizes(monkeypatch, candidates, _PROGRAMS=4, _PLACES=8.0)
    set_sizes(monkeypatch, support, SLOTS=32)
    set_sizes(monkeypatch, support_products, _GATHERED=4, _FEATURES=16)
    set_sizes(monkeypatch, dense_rows, _TILE=16, _FEATURES=16, _CHUNK_BYTES=1)


def set_sizes(monkeypatch, module, **sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(module, name, size)


@pytest.fixture(autouse=True)
def dots_of_bfloat16(monkeypatch):
    """Multiply bfloat16 as fp32: the interpreter would take its bits for integers."""
    create = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, *options):
        if a.dtype == tl.bfloat16:
            wide = (np.left_shift(x.data.astype(np.uint32), 16).view(np.float32) for x in (a, b))
            a, b = (interpreter.TensorHandle(x, tl.float32) for x in wide)
        return create(self, a, b, d, *options)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def take(way, monkeypatch):
    """Set sizes with which the rows take the path ``way``."""
    if way in (FEW_PLACES, DENSE):
        set_sizes(monkeypatch, candidates, _PLACES=0.25 if way == DENSE else 1.0)
    if way in (FEW_SLOTS, DENSE):
        set_sizes(monkeypatch, support, SLOTS=1 if way == DENSE else 4)


def options(kind, label_smoothing=0.0, alpha=1.5):
    tau = TAU if str(kind) == "alpha_relu" else None
    return FenchelYoungLoss(alpha, tau, label_smoothing, IGNORED, "none")


def drawn(rows=ROWS, classes=CLASSES, width=WIDTH, dtype=torch.float32, device=DEVICE):
    """Features, weight, bias and target; one target is ignored.

    Rows go from flat, with a large support of alpha-entmax, to steep, with one of alpha-ReLU.
    """
    features = torch.randn(rows, width) * torch.linspace(0.2, 1.5, rows)[:, None]
    tensors = features, torch.randn(classes, width) * 0.7, torch.randn(classes) / 2
    target = torch.randint(classes, (rows,))
    target[1] = IGNORED
    tensors = [x.to(device, dtype).requires_grad_() for x in tensors]
    return *tensors, target.to(device)


def unfused(kind, x, weight, bias, target, label_smoothing=0.0, alpha=1.5):
    logits = F.linear(x, weight, bias)
    given = {"label_smoothing": label_smoothing, "ignore_index": IGNORED, "reduction": "none"}
    return kind.loss(logits, target, alpha, **given)


def gradients(losses, *tensors):
    """Return the gradients of the losses, each loss with a factor of its own."""
    factors = torch.linspace(0.3, 1.2, losses.size(0), device=losses.device, dtype=losses.dtype)
    return torch.autograd.grad((losses * factors).sum(), tensors)


def relative_error(actual, exact):
    return float((actual.cpu().double() - exact.cpu()).abs().max() / exact.abs().max())


def assert_equals_the_two_ops(kind, tensors, target, label_smoothing=0.0, alpha=1.5):
    dtype = tensors[0].dtype
    found = linear_losses(*tensors, target, options(kind, label_smoothing, alpha))
    actual = gradients(found, *tensors)
    exact_tensors = [x.detach().cpu().double().requires_grad_() for x in tensors]
    exact = unfused(kind, *exact_tensors, target.cpu(), label_smoothing, alpha)
    expected = gradients(exact, *exact_tensors)
    exact_sums = {torch.float64: 1e-14}.get(dtype, 2e-6)
    assert relative_error(found.detach(), exact.detach()) < exact_sums
    # On the dense path p - q is rounded to dtype, as the gradients are; the interpreter truncates.
    rounding = max(exact_sums, 4 * torch.finfo(dtype).eps)
    for ours, theirs, x in zip(actual, expected, tensors, strict=True):
        assert ours.dtype == dtype and ours.shape == x.shape
        assert relative_error(ours, theirs) < rounding


@pytest.mark.each_value
@each_way
@each_dtype
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@each_loss
def test_equals_the_two_ops(kind, label_smoothing, dtype, way, monkeypatch):
    take(way, monkeypatch)
    *tensors, target = drawn(dtype=dtype)
    assert_equals_the_two_ops(kind, tensors, target, label_smoothing)


@pytest.mark.each_value
@pytest.mark.parametrize("alpha, way", [(1.2, LISTS), (2.0, DENSE), (3.0, LISTS)])
@each_loss
def test_any_alpha(kind, alpha, way, monkeypatch):
    take(way, monkeypatch)
    *tensors, target = drawn(dtype=torch.float64)
    assert_equals_the_two_ops(kind, tensors, target, alpha=alpha)


@pytest.mark.each_value
@pytest.mark.parametrize("way, expected", [(LISTS, 0), (FEW_PLACES, None), (DENSE, ROWS - 1)])
@each_loss
def test_rows_take_the_way_that_their_lists_allow(kind, way, expected, monkeypatch):
    """All counted rows are dense, none is, or only those with more candidates than places."""
    take(way, monkeypatch)
    x, weight, bias, target = (tensor.detach() for tensor in drawn())
    loss = options(kind)
    found = candidates.find_candidates(x, weight, bias, target, loss)
    rows = kernels._empty_rows(found, target, CLASSES, loss)
    solved = support.solve_lists(found, rows, loss, True)
    overflows = (found.counts > found.length).any(1)
    if expected is None:
        assert 0 < overflows.sum() < ROWS
        assert torch.equal(solved.dense.bool(), overflows)
    else:
        assert solved.dense.sum() == expected
    assert (solved.counts[solved.dense.bool()] == 0).all()
    assert (solved.columns[solved.dense.bool()] == CLASSES).all()


@pytest.mark.each_value
@pytest.mark.parametrize("way", [LISTS, DENSE])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@each_loss
def test_rows_at_the_edge(kind, label_smoothing, way, monkeypatch):
    """The reference's values and gradients: ties, +-1e4, -inf, targets out of the support."""
    take(way, monkeypatch)
    x = torch.eye(8, device=DEVICE)
    rows = torch.randn(8, CLASSES)
    rows[0] = 2.5
    rows[1, 4:] = rows[1, :1]
    rows[2] = 1e4 * rows[2].sign()
    rows[3] = -100 - rows[3].abs()
    rows[3, 7] = 3.0  # certain
    rows[4] = rows[3]
    rows[5, 9] = 60.0
    target = torch.tensor([3, 0, 1, 7, 8, IGNORED, 2, CLASSES - 1], device=DEVICE)
    weight = rows.t().contiguous().to(DEVICE)
    bias = torch.zeros(CLASSES, device=DEVICE)
    if label_smoothing == 0:
        bias[-2] = -INF
    tensors = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    with backends.use("reference"):
        expected = unfused(kind, *tensors, target, label_smoothing)
        wanted = gradients(expected, *tensors)
    found = linear_losses(*tensors, target, options(kind, label_smoothing))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    for ours, theirs in zip(gradients(found, *tensors), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.each_value
@pytest.mark.parametrize("value", [NAN, INF])
@each_loss
def test_a_broken_row_breaks_no_other(kind, value):
    x, weight, bias, target = drawn()
    with torch.no_grad():
        x[3, 2] = value
    target[7] = -1 if value == INF else CLASSES  # no class: the loss is NaN, p is not
    found = linear_losses(x, weight, bias, target, options(kind))
    (grad,) = gradients(found, x)
    assert found[3].isnan() and found[7].isnan() and grad[3].isnan().any()
    others = torch.tensor([row for row in range(ROWS) if row not in (3, 7)])
    expected = unfused(kind, x[others], weight, bias, target[others])
    torch.testing.assert_close(found[others], expected)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    (grad,) = torch.autograd.grad(linear_losses(x, weight, bias, target, options(kind)).sum(), x)
    torch.testing.assert_close(grad[others], wanted[others], rtol=1e-5, atol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize(
    "needed",
    [(False, False, False), (False, False, True), (False, True, False), (True, False, True)],
    ids=str,
)
@each_loss
def test_only_what_is_needed(kind, needed):
    *tensors, target = drawn()
    loss = options(kind, 0.1)
    losses = linear_losses(*tensors, target, loss)
    every = gradients(losses, *tensors)
    some = [x.detach().requires_grad_(wanted) for x, wanted in zip(tensors, needed, strict=True)]
    same = linear_losses(*some, target, loss)
    assert torch.equal(same, losses) and same.requires_grad == any(needed)
    if any(needed):
        found = iter(gradients(same, *(x for x in some if x.requires_grad)))
        for wanted, theirs in zip(needed, every, strict=True):
            assert not wanted or torch.equal(next(found), theirs)


@pytest.mark.each_value
@each_loss
def test_without_bias(kind):
    x, weight, bias, target = drawn()
    loss = options(kind)
    found = linear_losses(x, weight, None, target, loss)
    expected = linear_losses(x, weight, torch.zeros_like(bias), target, loss)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, x, weight), gradients(expected, x, weight))


@each_loss
def test_any_layout_and_a_second_backward_pass(kind):
    x, weight, bias, target = drawn()
    loss = options(kind)
    expected = gradients(linear_losses(x, weight, bias, target, loss), x)[0]
    x, weight = (tensor.detach().t().contiguous().t() for tensor in (x, weight))
    losses = linear_losses(x.requires_grad_(), weight, bias.detach(), target, loss).sum()
    for factor in (1.0, 2.0):
        (again,) = torch.autograd.grad(factor * losses, x, retain_graph=True)
        assert not again[1].any() and again.isfinite().all()
        torch.testing.assert_close(again[0], factor * expected[0] / 0.3)


@pytest.mark.each_value
@pytest.mark.parametrize("way", [LISTS, DENSE])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_small_probabilities_do_not_vanish(dtype, way, monkeypatch):
    """alpha-ReLU's p = (z / 2)^2 = 2.25e-8 is 0 in fp16, and so would be its gradient."""
    take(way, monkeypatch)
    loss = FenchelYoungLoss(1.5, 0.0, 0.0, -100, "sum")
    x = torch.ones(2, 1, dtype=dtype, device=DEVICE)
    weight = torch.tensor([[2.0], [3e-4]], dtype=dtype, device=DEVICE).requires_grad_()
    target = torch.zeros(2, dtype=torch.long, device=DEVICE)
    (found,) = torch.autograd.grad(
        4096 * linear_losses(x, weight, None, target, loss).sum(), weight
    )
    expected = 4096 * weight[1].detach().float().square() / 2
    torch.testing.assert_close(found[1].float(), expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("way", [LISTS, DENSE])
def test_a_scaled_loss_need_not_fit_into_fp16(way, monkeypatch):
    take(way, monkeypatch)
    *tensors, target = drawn(dtype=torch.float16)
    loss = options(LOSSES[0])
    plain = gradients(linear_losses(*tensors, target, loss), *tensors)
    scaled = gradients(2.0**17 * (2.0**-7 * linear_losses(*tensors, target, loss)), *tensors)
    for ours, theirs in zip(scaled, plain, strict=True):
        expected = theirs.float() * 1024
        fits = expected.abs() < 60000
        torch.testing.assert_close(ours[fits].float(), expected[fits], rtol=2e-3, atol=0.1)


@each_loss
def test_autocast_changes_nothing(kind):
    *tensors, target = drawn()
    loss = options(kind)
    expected = linear_losses(*tensors, target, loss)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = linear_losses(*tensors, target, loss)
    assert torch.equal(found, expected)
    for ours, theirs in zip(gradients(found, *tensors), gradients(expected, *tensors), strict=True):
        assert torch.equal(ours, theirs)


class Allocations(TorchDispatchMode):
    """A record of the most elements of any tensor that is created."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        # The interpreter copies the bytes of a kernel's arguments.
        sizes = [x.numel() for x in tensors if x.dtype != torch.uint8]
        self.most = max(self.most, *sizes, 0)
        return result


@pytest.mark.parametrize("way, most", [(LISTS, 2 * 64), (DENSE, None)])
def test_no_tensor_is_as_large_as_the_logits(way, most, monkeypatch):
    """A row has the lists of 2 programs; the dense path keeps the logits of 16 rows."""
    set_sizes(monkeypatch, candidates, _TILE_CLASSES=64, _PLACES=4.0)
    take(way, monkeypatch)
    rows, classes = 32, 500
    *tensors, target = drawn(rows, classes)
    with Allocations() as allocations:
        gradients(linear_losses(*tensors, target, options(LOSSES[0], 0.1)), *tensors)
    assert 16 * classes <= allocations.most < 0.6 * rows * classes
    assert allocations.most == max(16 * classes, 0 if most is None else rows * most)


@pytest.mark.parametrize("rows", [1, 127, 128, 1000, 8192])
@pytest.mark.parametrize("classes", [100, 32000, 256000])
def test_the_dense_way_has_a_bounded_part_of_the_logits(rows, classes, monkeypatch):
    monkeypatch.undo()  # the real sizes
    part = dense_rows.rows_per_chunk(rows, classes, torch.float32)
    assert part % 128 == 0 and part < rows + 128
    assert part == 128 or part * classes * 4 <= 256 << 20


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 10000, 512), (1100, 40001, 256)], ids=str)
@pytest.mark.parametrize("scale", [0.2, 1.0, 6.0])  # dense rows, an untrained layer, a trained one
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@each_dtype
@each_loss
def test_on_a_gpu(kind, dtype, label_smoothing, scale, shape):
    *tensors, target = drawn(*shape, dtype=dtype, device="cuda")
    tensors[1].data *= scale / (0.7 * shape[2] ** 0.5)
    loss = options(kind, label_smoothing)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = linear_losses(*tensors, target, loss)
        actual = gradients(found, *tensors)
        again = gradients(linear_losses(*tensors, target, loss), *tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    exact_tensors = [x.detach().double().requires_grad_() for x in tensors]
    exact = unfused(kind, *exact_tensors, target, label_smoothing)
    expected = gradients(exact, *exact_tensors)
    rounding = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 4 * torch.finfo(dtype).eps)
    assert relative_error(found.detach(), exact.detach().cpu()) < rounding
    for ours, same, theirs in zip(actual, again, expected, strict=True):
        assert relative_error(ours, theirs.cpu()) < rounding
        assert torch.equal(ours, same)


@pytest.mark.gpu
@each_loss
def test_memory_on_a_gpu_is_less_than_that_of_the_logits(kind):
    *tensors, target = drawn(16384, 40000, 256, torch.bfloat16, "cuda")
    linear_losses(*tensors, target, options(kind)).sum().backward()  # compiles the kernels
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_losses(*tensors, target, options(kind)).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 0.4 * 16384 * 40000 * 2
