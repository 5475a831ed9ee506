"""Dropout by the compiled kernel in ops.cpu and by the reference has the same properties."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fairseq_sparse.ops import backends, cpu
from fairseq_sparse.ops.dropout import dropout


@pytest.fixture(params=["compiled", "pytorch"])
def kernels(request):
    if request.param == "compiled" and cpu.build.library() is None:
        pytest.skip("needs a C compiler")
    with nullcontext() if request.param == "compiled" else backends.use("reference"):
        yield request.param


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_entries_are_dropped_with_that_probability_and_the_others_scaled(p, kernels):
    """The share is right in every part: halves of a pair, vectors and blocks of a kernel, rows and
    columns. By Bernstein's inequality, a part is further off with a probability of 2 exp(-25)."""
    x = torch.rand(256, 1000) + 0.5
    dropped = dropout(x, p)
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, x / (1 - p), 0.0))
    kept = kept.float()
    parts = [kept.flatten(), kept, kept.t(), kept.view(-1, 2).t(), kept.view(-1, 256).t()]
    for part in parts:
        unit = 25 / part.size(-1)
        allowed = unit / 3 + math.sqrt((unit / 3) ** 2 + 2 * unit * p * (1 - p))
        assert ((part.mean(-1) - (1 - p)).abs() <= allowed).all()


def test_neighbours_are_dropped_independently(kernels):
    kept = (dropout(torch.ones(1 << 18), 0.5) != 0).double() - 0.5
    for distance in (1, 2, 3, 8, 16, 64, 256, 512, 1024):
        correlation = 4 * (kept[distance:] * kept[:-distance]).mean()
        assert correlation.abs() <= 5 / math.sqrt(len(kept) - distance)


def test_masks_are_drawn_anew_and_from_the_generator(kernels):
    x = torch.ones(3, 7, 50)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_the_gradient_is_that_of_the_entries_that_were_kept(kernels):
    x = torch.randn(5, 300, requires_grad=True)
    dropped = dropout(x, 0.4)
    (grad,) = torch.autograd.grad(dropped.sum(), x)
    torch.testing.assert_close(grad, torch.where(dropped == 0, 0.0, 1 / 0.6))


@pytest.mark.parametrize("shape", [(1,), (0, 3), (), (255,), (257,), (3, 171)])
def test_any_shape(shape, kernels):
    x = torch.full(shape, 2.0, requires_grad=True)
    dropped = dropout(x, 0.5)
    assert dropped.shape == x.shape
    assert ((dropped == 0) | (dropped == 4)).all()
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, dropped.detach() / 2)


def test_a_view_is_dropped_as_its_copy(kernels):
    x = torch.randn(30, 20, 4).transpose(0, 1)[:, ::2]
    torch.manual_seed(3)
    of_view = dropout(x, 0.5)
    torch.manual_seed(3)
    of_copy = dropout(x.contiguous(), 0.5)
    kept = of_view != 0
    torch.testing.assert_close(of_view, torch.where(kept, 2 * x, 0.0))
    assert kept.any() and not kept.all()
    assert torch.equal(of_view, of_copy)


def test_nan_stays(kernels):
    assert dropout(torch.full((400,), math.nan), 0.5).isnan().all()


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_ends(p, kernels):
    x = torch.randn(300)
    assert torch.equal(dropout(x, p), (1 - p) * x)


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_what_is_no_probability_is_refused(p, kernels):
    with pytest.raises(ValueError, match="dropout probability"):
        dropout(torch.ones(3), p)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_kept(dtype):
    dropped = dropout(torch.ones(1000, dtype=dtype), 0.5)
    assert dropped.dtype == dtype
    assert 0.4 < (dropped == 2).float().mean() < 0.6


def test_derivatives(kernels):
    """Every call draws from the same seed, because gradcheck calls the function repeatedly."""

    def of_one_seed(x):
        torch.manual_seed(3)
        return dropout(x.float(), 0.5).double()

    x = torch.randn(40, dtype=torch.float64, requires_grad=True)
    # Dropout is linear, so a large step gives the derivative even in single precision.
    options = {"eps": 0.5, "atol": 1e-4}
    assert gradcheck(of_one_seed, x, **options)
    assert gradgradcheck(of_one_seed, x, **options)


def test_the_mask_does_not_depend_on_the_number_of_threads():
    if cpu.build.library() is None:
        pytest.skip("needs a C compiler")
    x, found = torch.ones(100_000), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            found.append(dropout(x, 0.3))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_it_can_be_traced():
    traced = torch.jit.trace(lambda x: dropout(x, 0.5), torch.ones(300), check_trace=False)
    assert not torch.equal(traced(torch.ones(300)), traced(torch.ones(300)))


def test_nothing_but_a_seed_is_kept_for_the_gradient(kernels):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        dropout(torch.ones(1000, requires_grad=True), 0.5)
    assert [x.numel() for x in kept] == [1]


@pytest.mark.parametrize("shape", [(1,), (7, 300), (100_001,)], ids=str)
def test_the_kernel_and_pytorch_drop_the_same_entries(shape):
    """So it does not matter whether both compute the forward and the backward pass."""
    if cpu.build.library() is None:
        pytest.skip("needs a C compiler")
    x, found = torch.randn(shape), []
    for choice in ("cpu", "reference"):
        torch.manual_seed(3)
        with backends.use(choice):
            found.append(dropout(x, 0.3))
        assert backends.last_used()["dropout"] == choice
    assert torch.equal(*found)
