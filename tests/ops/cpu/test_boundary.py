"""Arguments of the C kernels are checked against their signatures, for every caller."""

import re

import pytest
import torch

from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.boundary import KernelArgumentError, call, int64s
from fairseq_sparse.ops.cpu.signatures import attention_options, attention_strides

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C compiler")


def alpha_relu(**changes):
    """Call a kernel with valid arguments, except for ``changes``."""
    arguments = {
        "z": torch.randn(2, 8),
        "rows": 2,
        "size": 8,
        "alpha": torch.tensor([2.0], dtype=torch.float64),
        "alpha_step": 0,
        "tau": 0.5,
        "logarithms": 0,
        "out": torch.empty(2, 8),
        "thresholds": None,
    } | changes
    call("probabilities_of_rows", 0, *arguments.values())
    return arguments["out"]


WRONG = {
    "fp64": {"z": torch.zeros(2, 8, dtype=torch.float64)},
    "bf16": {"out": torch.zeros(2, 8, dtype=torch.bfloat16)},
    "integers": {"alpha": torch.ones(1, dtype=torch.int64)},
    "another device": {"out": torch.zeros(2, 8, device="meta")},
    "too small": {"out": torch.zeros(15)},
    "more rows than there are": {"rows": 3},
    "strided": {"z": torch.zeros(8, 2).t()},
    "expanded": {"out": torch.zeros(8).expand(2, 8)},
    "missing": {"alpha": None},
    "a number": {"z": 17},
    "an address": {"out": torch.zeros(2, 8).data_ptr()},
    "a list": {"thresholds": [1.0] * 2},
    "an array": {"thresholds": int64s(*range(2))},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_wrong_memory_is_refused(changes):
    with pytest.raises(KernelArgumentError, match="(z|out|alpha|thresholds) must be"):
        alpha_relu(**changes)


def test_right_memory_is_taken():
    z, thresholds = torch.randn(2, 8), torch.empty(2)
    out = alpha_relu(z=z, thresholds=thresholds)
    torch.testing.assert_close(out, (z - 0.5).clamp(min=0))
    torch.testing.assert_close(thresholds, torch.full((2,), 0.5))


@pytest.mark.parametrize(
    "changes",
    [
        {"query": torch.zeros(2, 3, 5, 16)},
        {"key": torch.zeros(2, 3, 16, 4).mT},
        {"key": torch.zeros(2, 3, 4, 32)},
        {"value": torch.zeros(2, 3, 5, 16)},
        {"strides": attention_strides(*[(10_000,) * 3] * 4)},
        {"strides": int64s(*(3 * 4 * 16, 4 * 16, 16) * 7)},
        {"masked": torch.zeros(2, 3, dtype=torch.uint8)},
        {"masked": torch.zeros(2, 4, dtype=torch.bool)},
        {"bias": torch.zeros(4, 4, dtype=torch.float64)},
        {"solution": torch.zeros(3, 2, 3, 4, dtype=torch.float64)},
        {"memory": torch.zeros(100)},
        {"options": attention_options(2, 3, 5, 4, 16, 1)},
        {"options": attention_options(2, 3, 4, 5, 16, 1)},
        {"options": attention_strides()},
        {"options": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_strided_memory_and_masks(changes):
    query, key, value, result = (torch.zeros(2, 3, 4, 16) for _ in range(4))
    floats = int64s(0)
    options = attention_options(2, 3, 4, 4, 16, splits=1, alpha=1.5, scale=1.0)
    call("attention_workspace", 0, options, 0, floats)
    arguments = {
        "options": options,
        "strides": attention_strides(*[(3 * 4 * 16, 4 * 16, 16)] * 4),
        **{"query": query, "key": key, "value": value, "result": result},
        **{"masked": None, "bias": None},
        "solution": torch.zeros(4, 2, 3, 4, dtype=torch.float64),
        "floats": floats[0],
        "memory": torch.zeros(floats[0]),
    }
    call("attend_forward", 0, *arguments.values())
    with pytest.raises(KernelArgumentError):
        call("attend_forward", 0, *(arguments | changes).values())


def test_nothing_reaches_c_but_through_the_boundary():
    """Other modules only build the library, or read a constant of it."""
    users = {
        path.name
        for path in build.FOLDER.parent.rglob("*.py")
        if re.search(r"data_ptr\(|ctypes|\.library\(\)\.", path.read_text("utf-8"))
    }
    assert users == {"boundary.py", "signatures.py", "build.py"}
