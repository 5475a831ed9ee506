"""Kernels that cannot allocate memory, and rows that are too long for their indices."""

import ctypes
import shutil
from itertools import count
from unittest import mock

import pytest
import torch

import c_sources
from fairseq_sparse.ops import alpha_relu_loss, entmax15, entmax_loss
from fairseq_sparse.ops.cpu import boundary, build, rows, signatures
from fairseq_sparse.ops.cpu.attention import attention_step
from fairseq_sparse.ops.cpu.screen import find_candidates, round_rows
from fairseq_sparse.ops.fenchel_young import RowLoss

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# An allocator that succeeds ``allowed`` times and then fails.
ALLOCATOR = """
#include <stddef.h>
void *__real_malloc(size_t size);
int allowed;
void *__wrap_malloc(size_t size) { return allowed-- > 0 ? __real_malloc(size) : NULL; }
"""


@pytest.fixture
def short_of_memory(tmp_path):
    """Use kernels with an allocator of their own; yield the number of allocations it has left."""
    (tmp_path / "allocator.c").write_text(ALLOCATOR)
    compiler = ["cc", "-Wl,--wrap=malloc", str(tmp_path / "allocator.c")]
    with mock.patch.object(build, "_ARGUMENTS", (*build._ARGUMENTS, "-O1")):
        try:
            build._compile(compiler, tmp_path / "kernels.so")
        except RuntimeError as error:
            pytest.skip(f"needs a linker that wraps functions: {error}")
    kernels = ctypes.CDLL(str(tmp_path / "kernels.so"))
    with mock.patch.object(build, "library", return_value=kernels):
        yield ctypes.c_int.in_dll(kernels, "allowed")


OPTIONS = RowLoss(1.5, None, 0.0, -100)


def value_and_gradient(function, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*inputs)
    return value.detach(), *torch.autograd.grad(value.square().sum(), inputs)


def everything():
    """Return ops by name; together they call every kernel that allocates memory."""
    torch.manual_seed(3)
    z, target = 3 * torch.randn(6, 300), torch.randint(300, (6,))
    x, w = torch.randn(6, 16), torch.randn(300, 16)
    query, key, value = torch.randn(2, 3, 1, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16)
    return {
        "mapping": lambda: value_and_gradient(entmax15, z),
        "solved rows": lambda: (rows.SolvedRows(z, OPTIONS).solution,),
        "residual": lambda: rows.SolvedRows(z, OPTIONS).sparse_residual(target, target >= 0),
        "loss": lambda: value_and_gradient(lambda z: entmax_loss(z, target), z),
        "alpha-ReLU": lambda: value_and_gradient(lambda z: alpha_relu_loss(z, target, 0.3), z),
        "candidates": lambda: find_candidates(round_rows(x), round_rows(w), target, 1.5, None, 1.0)[
            0
        ][:3],
        "step": lambda: attention_step(query, key, value, None, 1.5, 1.0, True),
    }


def test_an_allocation_that_fails_is_an_error_and_no_crash(short_of_memory):
    refused = set()
    for name, op in everything().items():
        short_of_memory.value = 1000
        expected = op()
        for allocations in count():
            short_of_memory.value = allocations
            try:
                found = op()
            except MemoryError as error:
                kernel, message = str(error).split(": ", 1)
                assert "could not allocate 0.0 MiB for 1 threads" in message
                refused.add(kernel)
            else:
                break
        assert allocations > 0, name
        for actual, right in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, right, rtol=0, atol=0)
    assert refused == kernels_with("allocate(")


def kernel(name):
    """Return a kernel; its ``_function`` is the library's, without the checks of the boundary."""
    return boundary._kernels(build.library())[name]


def kernels_with(text):
    """Return the names of the kernels whose source contains a text."""
    return {name for name, function in c_sources.functions().items() if text in function.body}


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**40])
def test_rows_that_are_too_long_are_refused_before_they_are_read(compiled, size):
    nothing = (None,) * 20
    options = signatures.attention_options(1, 1, 1, size, 16, splits=1, alpha=1.5)
    strides = signatures.attention_strides()
    sizes = signatures.step_sizes(1, 1, size, 16)
    alpha = torch.tensor([1.5], dtype=torch.float64)
    calls = {
        "solve_rows": (None, None, 1, size, 1.5, 0.3, None),
        "probabilities_of_rows": (None, 1, size, alpha, 0, 0.3, 0, None, None),
        "row_loss_gradient": (None, 1, size, 1.5, None, None, None, 0.1, None),
        "fill_sparse": (None, None, 1, size, None, 1.5, None, None, 1.0, *nothing[:3]),
        "find_candidates": (None, 1, size, *nothing[:4], 1.5, 0.3, 1, *nothing[:3]),
        "fill_candidates": (
            *(None, 1, size, *nothing[:5], 1, *nothing[:3]),
            *(16, *nothing[:5]),
        ),
        "attend_forward": (options, strides, *nothing[:7], 0, None),
        "attend_backward": (options, strides, *nothing[:10], 0, None),
        "attend_step": (sizes, *nothing[:4], 1.5, 1.0, None, None),
    }
    assert set(calls) == kernels_with("allocate(") | kernels_with("TOO_LONG")
    for name, arguments in calls.items():
        addresses = [x.data_ptr() if torch.is_tensor(x) else x for x in arguments]
        assert kernel(name)._function(*addresses, 1) == -1, name


@pytest.mark.skipif(build.library() is None, reason="needs a C compiler")
def test_what_a_kernel_refuses_is_an_error():
    arguments = torch.ones(3), 3, 0.5, 1, torch.ones(3)
    with mock.patch.object(kernel("dropout"), "_function", return_value=-1):
        with pytest.raises(ValueError, match="dropout: .* too long"):
            boundary.call("dropout", 0, *arguments)
    with mock.patch.object(kernel("dropout"), "_function", return_value=3 << 20):
        with pytest.raises(MemoryError, match="dropout: could not allocate 3.0 MiB for 1 threads"):
            boundary.call("dropout", 0, *arguments)


# A row may be counted by one thread and filled in by another, and one of them may flush denormals.


def called(name, *arguments):
    addresses = [x.data_ptr() if torch.is_tensor(x) else x for x in arguments]
    assert not kernel(name)._function(*addresses, 1)


@pytest.mark.parametrize("counted", [0, 3, 9])
def test_a_row_with_more_or_fewer_nonzeros_than_counted_stays_in_its_place(compiled, counted):
    z = torch.zeros(1, 300)
    z[0, [5, 70, 71, 72, 280]] = 9.0  # five are in the support
    target, table = torch.tensor([71]), rows.SolvedRows(z, OPTIONS)._table
    start = torch.tensor([4, 4 + counted + 1])
    columns, values = torch.full((20,), -7, dtype=torch.int32), torch.full((20,), -7.0)
    arguments = (z, None, 1, 300, None, 1.5, table, target, 1.0, start, columns, values)
    called("fill_sparse", *arguments)
    inside = torch.zeros(20, dtype=torch.bool)
    inside[4 : 4 + counted + 1] = True
    assert (columns[~inside] == -7).all() and (values[~inside] == -7).all()
    residual = torch.zeros(300).index_add_(0, columns[inside].long(), values[inside])
    expected = torch.zeros(300)
    expected[[5, 70, 71, 72, 280]] = 0.2
    expected[[5, 70, 71, 72, 280][counted:]] = 0
    expected[71] -= 1
    torch.testing.assert_close(residual, expected)


@pytest.mark.parametrize("counted", [2, 3, 9])
def test_a_row_with_more_or_fewer_candidates_than_counted_stays_in_its_place(compiled, counted):
    x, w, target = torch.ones(1, 16), torch.zeros(300, 16), torch.tensor([71])
    w[[5, 70, 71, 72, 280]] = 1.0
    features, weight = round_rows(x), round_rows(w)
    about = features.half @ weight.half.t()
    cut, found = torch.tensor([8.0]), torch.zeros(1, 1, dtype=torch.int32)
    start = torch.tensor([4, 4 + counted])
    columns, logits = torch.full((20,), -7, dtype=torch.int32), torch.full((20,), -7.0)
    screen = (about, 1, 300, features.norm, features.error, weight.norm, weight.error)
    written = (columns, logits, gold := torch.zeros(1))
    called("fill_candidates", *screen, cut, 1, found, x, w, 16, target, start, *written)
    assert gold == 16
    assert (columns[:4] == -7).all() and (columns[4 + counted :] == -7).all()
    assert (logits[:4] == -7).all() and (logits[4 + counted :] == -7).all()
    listed = min(counted, 5)
    assert columns[4 : 4 + listed].tolist() == [5, 70, 71, 72, 280][:listed]
    assert (logits[4 : 4 + listed] == 16).all()
    assert (logits[4 + listed : 4 + counted] == -float("inf")).all()
    assert (columns[4 + listed : 4 + counted] == 0).all()
