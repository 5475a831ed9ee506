"""The output projection and its loss in one op, against the two computed separately."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from benchmark.timing import peak_memory
from fairseq_sparse.ops import cpu, linear_alpha_relu_loss, linear_entmax_loss
from fairseq_sparse.ops.cpu import linear_loss as linear_loss_module
from fairseq_sparse.ops.cpu.rows import SolvedRows
from fairseq_sparse.ops.reference import linear_loss as reference
from op_cases import LOSSES, TAU, AlphaReLULoss
from references import assert_as_accurate, assert_close_to_naive

NAN = float("nan")
INF = float("inf")
ALPHAS = (1.05, 1.25, 1.5, 2.0)
ROWS, WIDTH, SIZE = 30, 16, 90
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)
each_smoothing = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
needs_kernels = pytest.mark.skipif(cpu.build.library() is None, reason="needs a C compiler")


def fused(kind, x, w, target, alpha=1.5, bias=None, **options):
    if isinstance(kind, AlphaReLULoss):
        return linear_alpha_relu_loss(x, w, bias, target, TAU, alpha, **options)
    return linear_entmax_loss(x, w, bias, target, alpha, **options)


def apart(kind, x, w, target, alpha=1.5, bias=None, **options):
    return kind.loss(F.linear(x, w, bias), target, alpha, **options)


def batch(*shape, scale=2.0, ignored=-100):
    """Return features ``[*shape, WIDTH]``, weights, bias and targets, of which some are ignored."""
    x, w = torch.randn(*shape, WIDTH) * scale, torch.randn(SIZE, WIDTH) / WIDTH**0.5
    target = torch.randint(SIZE, shape)
    flat = target.view(-1)
    flat[:2], flat[2:4], flat[4::7] = 0, SIZE - 1, ignored
    return x, w, torch.randn(SIZE) / 2, target


def value_and_gradients(loss, kind, x, w, target, alpha=1.5, bias=None, grad=None, **options):
    """Return the loss, and the gradients of features, weights and, if there is one, bias."""
    inputs = [
        tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        for tensor in (x, w, bias)
        if tensor is not None
    ]
    value = loss(kind, *inputs[:2], target, alpha, *inputs[2:], **options)
    gradients = torch.autograd.grad(value, inputs, torch.ones_like(value) if grad is None else grad)
    assert all(g.dtype == i.dtype for g, i in zip(gradients, inputs, strict=True))
    return value.detach(), *gradients


def naive(kind, x, w, bias, target, alpha, label_smoothing, scale):
    """Return the rows' losses, and the gradients if each loss is multiplied by ``scale``."""
    z = x @ w.t() if bias is None else x @ w.t() + bias
    counts = scale != 0
    target = target.masked_fill(~counts, 0)
    residual = kind.naive_gradient(z, target, alpha, label_smoothing) * scale.unsqueeze(1)
    losses = kind.naive_loss(z, target, alpha, label_smoothing).masked_fill(~counts, 0)
    return losses, residual @ w, residual.t() @ x, residual.sum(0)


def assert_right(kind, x, w, target, alpha, bias, reduction, label_smoothing, ignore_index=-100):
    """Compare with the definition in fp64, within a few times its own error in fp32."""
    shape = target.shape if reduction == "none" else ()
    grad = torch.rand(shape) + 0.5
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index}
    options["reduction"] = reduction
    found = value_and_gradients(fused, kind, x, w, target, alpha, bias, grad, **options)
    counts = target.flatten() != ignore_index
    scale = counts * grad.flatten().double()
    scale = scale / counts.sum() if reduction == "mean" else scale
    rows = x.flatten(0, -2).contiguous()
    for part, actual in enumerate(found):

        def exact(x, w, bias, part=part):
            result = naive(
                kind, x, w, bias, target.flatten(), alpha, label_smoothing, scale.to(x.dtype)
            )[part]
            if part == 0 and reduction != "none":
                return result.sum() / (counts.sum() if reduction == "mean" else 1)
            return result

        actual = actual.flatten(0, -2) if part == 1 else actual
        actual = actual.flatten() if part == 0 and reduction == "none" else actual
        assert actual.dtype == torch.float32
        assert_close_to_naive(actual, exact, rows, w, bias, slack=6, atol=1e-7)


# --- all paths -----------------------------------------------------------------------------------


def patched(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setattr(linear_loss_module, name, value)


PATHS = ("whole", "chunks", "dense", "screened")


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    """Return the name of the path that the loss takes, and mocks that count the calls on it."""
    name = request.param
    if name != "whole":
        if cpu.build.library() is None:
            pytest.skip("needs a C compiler")
        monkeypatch.setattr(reference, "_CHUNK_LOGITS", 1)
        monkeypatch.setattr(reference, "_CHUNK_ROWS", 7)
    if name == "dense":
        patched(monkeypatch, _DENSE_SHARE=0)
    if name == "mixed":
        patched(monkeypatch, _DENSE_SHARE=0.7)
    if name in ("screened", "until it fails"):
        share = 1.0 if name == "screened" else 0.5
        patched(
            monkeypatch, multiplies_bfloat16=lambda: True, _SCREENED_ROWS=1, _SCREENED_SHARE=share
        )
    dense = mock.Mock(wraps=SolvedRows.residual)
    screened = mock.Mock(wraps=linear_loss_module.find_candidates)
    patched(monkeypatch, find_candidates=screened)
    monkeypatch.setattr(SolvedRows, "residual", lambda *args: dense(*args))
    return name, dense, screened


@pytest.mark.pairwise
# "mixed" and "until it fails" differ from the other paths for these inputs only.
@pytest.mark.parametrize("path", [*PATHS, "mixed", "until it fails"], indirect=True)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@each_smoothing
@each_alpha
@each_loss
def test_value_and_gradients_are_those_of_the_definition(
    kind, alpha, label_smoothing, reduction, path
):
    name, dense, screened = path
    x, w, bias, target = batch(ROWS, scale=2 / (alpha - 1))
    bias = None if "screened" in name or "fails" in name or reduction == "sum" else bias
    if name in ("mixed", "until it fails"):
        # In these rows, all words are in the support.
        w[:, 0], x[:, 0] = 1, 0
        x[7:14] = x[22:] = 0.8 / (alpha - 1) * (torch.arange(WIDTH) == 0)
        bias = None if bias is None else bias / 1000
    assert_right(kind, x, w, target, alpha, bias, reduction, label_smoothing)
    chunks = -(-ROWS // 7)
    if reduction == "none":  # the logits are kept
        assert screened.call_count == dense.call_count == 0
    elif name in ("screened", "until it fails"):
        assert screened.call_count == (chunks if name == "screened" else 2) and bias is None
    else:
        assert screened.call_count == 0
        if name == "dense":
            assert dense.call_count == chunks
        if name == "mixed":
            assert 2 <= dense.call_count < chunks


@pytest.mark.pairwise
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, SIZE - 1])
@each_loss
def test_ignored_targets(kind, ignore_index, path):
    x, w, _, target = batch(ROWS, ignored=ignore_index)
    assert_right(kind, x, w, target, 1.5, None, "mean", 0.1, ignore_index)
    options = {"ignore_index": ignore_index, "reduction": "none", "label_smoothing": 0.1}
    kept = target != ignore_index
    found = value_and_gradients(fused, kind, x, w, target, **options)
    assert (found[0][~kept] == 0).all() and (found[1][~kept] == 0).all()
    alone, exact = (
        value_and_gradients(loss, kind, x[kept].to(dtype), w.to(dtype), target[kept], **options)
        for loss, dtype in ((fused, torch.float32), (apart, torch.float64))
    )
    assert_as_accurate(found[0][kept], alone[0], exact[0])
    assert_as_accurate(found[2], alone[2], exact[2])
    # Ignored rows may hold anything: the losses and feature gradients stay the same.
    x[~kept] = NAN
    spoiled = value_and_gradients(fused, kind, x, w, target, **options)
    assert_as_accurate(spoiled[0][kept], alone[0], exact[0])
    assert_as_accurate(spoiled[1][kept], alone[1], exact[1])
    assert (spoiled[0][~kept] == 0).all() and (spoiled[1][~kept] == 0).all()
    nothing = torch.full_like(target, ignore_index)
    for reduction in ("none", "sum", "mean"):
        options["reduction"] = reduction
        parts = value_and_gradients(fused, kind, x.nan_to_num(), w, nothing, **options)
        assert all((part == 0).all() for part in parts)


@each_loss
def test_layouts(kind, path):
    x, w, bias, target = batch(4, 6)
    for features, labels in (
        (x, target),
        (x.transpose(0, 1), target.t()),
        (x.repeat_interleave(2, -1)[..., ::2], target),
        (x.flatten(0, 1), target.flatten()),
        (x.flatten(0, 1).t().contiguous().t(), target.flatten()),
        (x[0, 0].expand(4, 6, WIDTH), torch.tensor(3).expand(4, 6)),
        (x[0, 0], target[0, 0]),
        (x[:1, :1], target[:1, :1]),
    ):
        for weight in (w, w.t().contiguous().t(), w.repeat_interleave(3, 0)[::3]):
            rows = features.reshape(-1, WIDTH).contiguous()
            flat, exact = (
                value_and_gradients(
                    apart, kind, rows.to(dtype), w.to(dtype), labels.reshape(-1), reduction="none"
                )
                for dtype in (torch.float32, torch.float64)
            )
            found = value_and_gradients(fused, kind, features, weight, labels, reduction="none")
            assert found[0].shape == labels.shape and found[1].shape == features.shape
            found = found[0].reshape(-1), found[1].reshape(-1, WIDTH), found[2]
            for each in zip(found, flat, exact, strict=True):
                assert_as_accurate(*each)


@pytest.mark.pairwise
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), ()])
@each_loss
def test_only_some_of_the_inputs_need_a_gradient(kind, needed, path):
    x, w, bias, target = batch(ROWS)
    if path[0] == "screened" and 2 not in needed:
        bias = None  # with a bias, nothing is screened
    doubles = [x if x is None else x.double() for x in (x, w, bias)]
    rough, exact = (
        value_and_gradients(apart, kind, *xw, target, bias=b, label_smoothing=0.1)
        for *xw, b in ((x, w, bias), doubles)
    )
    inputs = [x, w] if bias is None else [x, w, bias]
    for place in needed:
        inputs[place].requires_grad_()
    loss = fused(kind, x, w, target, bias=bias, label_smoothing=0.1)
    assert_as_accurate(loss.detach(), rough[0], exact[0])
    assert loss.requires_grad == bool(needed)
    if needed:
        loss.backward()
    for place, tensor in enumerate(inputs):
        assert (tensor.grad is None) == (place not in needed)
        if place in needed:
            assert_as_accurate(tensor.grad, rough[place + 1], exact[place + 1])
    with torch.no_grad():
        assert not fused(kind, x, w, target, bias=bias).requires_grad


@needs_kernels
@each_loss
def test_without_gradients_nothing_is_kept_for_them(kind, monkeypatch):
    """Parameters require gradients even where none can be computed, as in an evaluation."""
    x, w, bias, target = batch(ROWS)
    for tensor in (x, w, bias):
        tensor.requires_grad_()
    expected = fused(kind, x, w, target, bias=bias).detach()
    monkeypatch.setattr(SolvedRows, "sparse_residual", mock.Mock(side_effect=AssertionError))
    with torch.no_grad():
        assert torch.equal(fused(kind, x, w, target, bias=bias), expected)


@pytest.mark.parametrize("exponent", [-10, 0, 15])
@each_loss
def test_a_scaled_loss_has_scaled_gradients(kind, exponent, path):
    x, w, _, target = batch(ROWS)
    inputs, scale = (x.requires_grad_(), w.requires_grad_()), torch.tensor(2.0**exponent)
    loss = fused(kind, x, w, target, label_smoothing=0.1)
    one, again, scaled = (
        torch.autograd.grad(loss, inputs, grad, retain_graph=True) for grad in (None, None, scale)
    )
    assert all(map(torch.equal, one, again))
    for part, much in zip(one, scaled, strict=True):
        torch.testing.assert_close(much, part * scale, rtol=1e-6, atol=float(scale) * 1e-8)


@each_loss
def test_weights_that_are_embeddings_too(kind, path):
    _, w, _, target = batch(ROWS)
    words = torch.randint(SIZE, (ROWS,))
    gradients = []
    for loss, dtype in ((fused, torch.float32), (apart, torch.float32), (apart, torch.float64)):
        weight = w.to(dtype, copy=True).requires_grad_()
        loss(kind, 4 * F.embedding(words, weight), weight, target).backward()
        gradients.append(weight.grad)
    assert_as_accurate(*gradients)


@pytest.mark.parametrize("value", [NAN, INF, 3e38])
@each_loss
def test_a_row_that_is_no_number_says_so_and_spoils_no_other(kind, value, path):
    x, w, _, target = batch(ROWS)
    target = target.clamp(min=0)
    expected, exact = (
        value_and_gradients(loss, kind, x.to(dtype), w.to(dtype), target, reduction="none")
        for loss, dtype in ((fused, torch.float32), (apart, torch.float64))
    )
    x[9, 5] = value
    found = value_and_gradients(fused, kind, x, w, target, reduction="none")
    rest = torch.arange(ROWS) != 9
    for part in (0, 1):
        assert_as_accurate(found[part][rest], expected[part][rest], exact[part][rest])
    if value != 3e38:
        assert not found[0][9].isfinite() and not found[2].isfinite().all()


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.pairwise
# Older versions of torch have no fp16 autocast on a CPU.
@pytest.mark.parametrize(
    ("dtype", "under_autocast"),
    [(torch.float16, False), (torch.bfloat16, False), (torch.bfloat16, True)],
)
@each_loss
def test_half_precision_is_no_worse_than_apart(kind, dtype, under_autocast, path):
    if dtype == torch.float16:
        try:
            torch.zeros(2, 2, dtype=dtype) @ torch.zeros(2, 2, dtype=dtype)
        except RuntimeError:
            pytest.skip("older versions of torch have no fp16 products on a CPU")
    x, w, bias, target = (t.to(dtype) if t.is_floating_point() else t for t in batch(ROWS))
    options = {"label_smoothing": 0.1, "bias": bias.double()}
    exact = value_and_gradients(apart, kind, x.double(), w.double(), target, **options)
    if under_autocast:
        x, w, bias = x.float(), w.float(), bias.float()
    options["bias"] = bias
    with torch.autocast("cpu", dtype=dtype, enabled=under_autocast):
        found, unfused = (
            value_and_gradients(loss, kind, x, w, target, **options) for loss in (fused, apart)
        )
    assert found[0].dtype == torch.float32
    for ours, theirs, right in zip(found, unfused, exact, strict=True):
        error, fair = ((part.double() - right).abs().max() for part in (ours, theirs))
        assert error <= 2 * fair + torch.finfo(dtype).eps * right.abs().max()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])  # the first is not fused
@each_alpha
@each_loss
def test_value_and_gradients_fit_in_fp64(kind, alpha, reduction):
    x, w, bias, target = batch(2, 3)
    inputs = [tensor.double().requires_grad_() for tensor in (x, w[:12], bias[:12])]
    target = target.clamp(-100, 11)

    def loss(x, w, bias):
        return fused(kind, x, w, target, alpha, bias, label_smoothing=0.1, reduction=reduction)

    assert loss(*inputs).dtype == torch.float64
    assert gradcheck(loss, inputs)


# --- fallbacks, errors, memory -------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"alpha": 1}, {"alpha": 2.5}, {"alpha": 1.01}, {"algorithm": "sort"}]
)
def test_what_the_kernels_do_not_know_is_right_too(options):
    x, w, bias, target = batch(2, 7)
    for kind in LOSSES if options.get("alpha", 0) > 1 else LOSSES[:1]:
        for reduction in ("none", "mean"):
            rough, exact = (
                value_and_gradients(
                    apart,
                    *(kind, x.to(dtype), w.to(dtype), target),
                    bias=bias.to(dtype),
                    reduction=reduction,
                    **options,
                )
                for dtype in (torch.float32, torch.float64)
            )
            found = value_and_gradients(
                fused, kind, x, w, target, bias=bias, reduction=reduction, **options
            )
            for each in zip(found, rough, exact, strict=True):
                assert_as_accurate(*each)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
@each_loss
def test_empty_batches(kind, shape):
    x, w = torch.zeros(*shape, WIDTH), torch.randn(SIZE, WIDTH)
    for reduction in ("none", "sum", "mean"):
        target = torch.zeros(shape, dtype=torch.int64)
        parts = value_and_gradients(fused, kind, x, w, target, reduction=reduction)
        assert parts[0].shape == (shape if reduction == "none" else ())
        assert all((part == 0).all() for part in parts)


@each_loss
def test_errors_are_those_of_the_two_apart(kind, path):
    x, w, bias, target = batch(4, 5)
    wrong = {"label_smoothing": 1.5}, {"reduction": "average"}, {"alpha": 0.5}, {"alpha": NAN}
    labels_of = target.t(), target[0], target.int(), target.float()
    for labels, options in (*((x, {}) for x in labels_of), *((target, o) for o in wrong)):
        messages = []
        for loss in (fused, apart):
            with pytest.raises(ValueError) as raised:
                loss(kind, x, w, labels, **options)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
    others = (x[..., :3], w), (x, w[:, :3]), (x, w.double()), (x, w.bfloat16()), (x.double(), w)
    for features, weight in others:
        for loss in (fused, apart):
            with pytest.raises((RuntimeError, ValueError)):
                loss(kind, features, weight, target)
    bad = target.clamp(min=0)
    for place, label in ((0, SIZE), (7, -1), (19, 1 << 40)):
        bad.view(-1)[place] = label
        for loss in (fused, apart):
            with pytest.raises((RuntimeError, IndexError)):
                loss(kind, x, w, bad)
        bad.view(-1)[place] = 0


@needs_kernels
@each_loss
def test_memory_of_a_dense_p_does_not_grow_with_the_rows(kind, monkeypatch):
    """Beyond the gradients, only one chunk of logits and of p - q is kept at a time."""
    monkeypatch.setattr(reference, "_CHUNK_LOGITS", 1)
    w = torch.randn(2000, 16, requires_grad=True)

    def memory(chunks):
        x = (torch.randn(chunks * reference._CHUNK_ROWS, 16) / 16).requires_grad_()
        target = torch.randint(2000, x.shape[:1])

        def gradients():
            if isinstance(kind, AlphaReLULoss):
                loss = linear_alpha_relu_loss(x, w, None, target, -1.0)
            else:
                loss = linear_entmax_loss(x, w, None, target, 1.05)
            torch.autograd.grad(loss, (x, w))

        return peak_memory(gradients)

    chunk = 4 * 2000 * reference._CHUNK_ROWS
    assert memory(8) - memory(2) < 2 * chunk


@needs_kernels
@pytest.mark.parametrize("screened", [False, True])
@each_loss
def test_memory_is_less_than_half_of_cross_entropy(kind, screened, monkeypatch):
    patched(monkeypatch, multiplies_bfloat16=lambda: screened)
    x, w = 3 * torch.randn(512, 64), torch.randn(5000, 64) / 8
    x.requires_grad_(), w.requires_grad_()
    target = torch.randint(5000, (512,))

    def cross_entropy():
        torch.autograd.grad(F.cross_entropy(F.linear(x, w), target), (x, w))

    def sparse():
        # Few words are above the threshold of alpha-ReLU, as in a trained model.
        if isinstance(kind, AlphaReLULoss):
            loss = linear_alpha_relu_loss(x, w, None, target, 4.0, label_smoothing=0.1)
        else:
            loss = linear_entmax_loss(x, w, None, target, label_smoothing=0.1)
        torch.autograd.grad(loss, (x, w))

    def bfloat16_product():
        torch.mm(x.detach().bfloat16(), w.detach().bfloat16().t())

    size = 512 * 5000  # logits
    assert peak_memory(cross_entropy) >= 2 * 4 * size  # the record is complete
    # A processor that has no products in bfloat16 computes them in a copy in fp32. Only this test
    # makes the loss screen there.
    copy = peak_memory(bfloat16_product) - 2 * (size + x.numel() + w.numel()) if screened else 0
    assert peak_memory(sparse) - copy < 0.5 * peak_memory(cross_entropy)
