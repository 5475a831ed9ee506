"""Arguments of the C kernels are checked against what the C sources state, for every caller."""

import re

import pytest
import torch

from fairseq_sparse.ops.cpu import boundary, build
from fairseq_sparse.ops.cpu.boundary import KernelArgumentError, call, int64s, struct

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C compiler")


def rms_norm(**changes):
    """Call a kernel with valid arguments, except for ``changes``."""
    arguments = {
        "z": torch.randn(2, 8),
        "rows": 2,
        "size": 8,
        "gain": torch.ones(8),
        "gate": None,
        "eps": 1.0,
        "out": torch.empty(2, 8),
    } | changes
    call("rms_norm", 0, *arguments.values())
    return arguments["out"]


WRONG = {
    "fp64": {"z": torch.zeros(2, 8, dtype=torch.float64)},
    "bf16": {"out": torch.zeros(2, 8, dtype=torch.bfloat16)},
    "integers": {"gain": torch.ones(8, dtype=torch.int32)},
    "another device": {"out": torch.zeros(2, 8, device="meta")},
    "too small": {"out": torch.zeros(15)},
    "more rows than there are": {"rows": 3},
    "strided": {"z": torch.zeros(8, 2).t()},
    "expanded": {"out": torch.zeros(8).expand(2, 8)},
    "missing": {"gain": None},
    "a number": {"z": 17},
    "an address": {"out": torch.zeros(2, 8).data_ptr()},
    "a list": {"gate": [1.0] * 8},
    "an array": {"gate": int64s(*range(8))},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_wrong_memory_is_refused(changes):
    with pytest.raises(KernelArgumentError, match="rms_norm: (z|out|gain|gate) must be"):
        rms_norm(**changes)


def test_right_memory_is_taken():
    z = torch.randn(2, 8)
    out = rms_norm(z=z, gate=torch.full((8,), 100.0))
    expected = z / (z.square().mean(1, keepdim=True) + 1).sqrt() * (100 * z).sigmoid()
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"query": torch.zeros(2, 3, 5, 16)},
        {"key": torch.zeros(2, 3, 16, 4).mT},
        {"key": torch.zeros(2, 3, 4, 32)},
        {"value": torch.zeros(2, 3, 5, 16)},
        {"strides": struct("attention_strides")(*[(10_000,) * 3] * 4)},
        {"strides": int64s(*(3 * 4 * 16, 4 * 16, 16) * 7)},
        {"masked": torch.zeros(2, 3, dtype=torch.uint8)},
        {"masked": torch.zeros(2, 4, dtype=torch.bool)},
        {"bias": torch.zeros(4, 4, dtype=torch.float64)},
        {"solution": torch.zeros(3, 2, 3, 4, dtype=torch.float64)},
        {"memory": torch.zeros(100)},
        {"options": struct("attention_options")(2, 3, 5, 4, 16, 1)},
        {"options": struct("attention_options")(2, 3, 4, 5, 16, 1)},
        {"options": struct("attention_strides")()},
        {"options": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_strided_memory_and_masks(changes):
    query, key, value, result = (torch.zeros(2, 3, 4, 16) for _ in range(4))
    floats = int64s(0)
    options = struct("attention_options")(2, 3, 4, 4, 16, splits=1, alpha=1.5, scale=1.0)
    call("attention_workspace", 0, options, 0, floats)
    arguments = {
        "options": options,
        "strides": struct("attention_strides")(*[(3 * 4 * 16, 4 * 16, 16)] * 4),
        **{"query": query, "key": key, "value": value, "result": result},
        **{"masked": None, "bias": None},
        "solution": torch.zeros(4, 2, 3, 4, dtype=torch.float64),
        "floats": floats[0],
        "memory": torch.zeros(floats[0]),
    }
    call("attend_forward", 0, *arguments.values())
    with pytest.raises(KernelArgumentError):
        call("attend_forward", 0, *(arguments | changes).values())


def test_every_pointer_of_every_kernel_states_its_size():
    count = 0
    for name in build.SOURCES:
        source = (build.FOLDER / name).read_text()
        for _, kernel, parameters in boundary._FUNCTION.findall(source):
            pointers = re.findall(r"\*(\w+),?( /\* .+? \*/)?", parameters)
            assert all(statement for _, statement in pointers), f"{name}: {kernel}: {pointers}"
            count += len(pointers)
    assert count > 80


def test_nothing_reaches_c_but_through_the_boundary():
    """Other modules only build the library, read a constant of it, or compare addresses."""
    users = {
        path.name
        for path in build.FOLDER.parent.rglob("*.py")
        if re.search(r"data_ptr\(|ctypes|\.library\(\)\.", path.read_text("utf-8"))
    }
    assert users == {"boundary.py", "build.py", "backends.py", "recomputation.py"}


def test_a_struct_has_the_fields_of_the_c_source():
    sizes = struct("step_sizes")(2, 3, 4, 16, (1, 2, 3), (4, 5, 6))
    assert [name for name, _ in sizes._fields_] == [
        *("batch", "heads", "keys", "width", "key_strides", "value_strides")
    ]
    assert (sizes.batch, sizes.width, list(sizes.value_strides)) == (2, 16, [4, 5, 6])
    types = {name: kind.__name__ for name, kind in struct("attention_options")._fields_}
    assert types["seed"] == "c_long" and types["alpha"] == "c_double" and len(types) == 10
    with pytest.raises(TypeError):
        struct("step_sizes")(batch=2.5)
