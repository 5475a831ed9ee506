"""A crafted checkpoint ends with an exception or a result, and never in a process's memory."""

import pickle
import subprocess

import numpy as np
import pytest
import torch

import pickle_opcodes as op
from fairseq_sparse.checkpoints import reading
from fairseq_sparse.checkpoints.loading import allow_fairseq_checkpoints, load_checkpoint
from fairseq_sparse.errors import CheckpointError
from fork_python import PYTHON

# Reads each file as our commands do and as fairseq's do, and uses what it gets. Prints a letter for
# each: r for a result, e for an exception. A signal would end the process, and so the line.
READ = """
import pickle, sys
import torch
from fairseq_sparse.checkpoints import loading, reading
loading.allow_fairseq_checkpoints()
for path in sys.argv[1:]:
    for read in (reading.read_archive, lambda path: torch.load(path, weights_only=True)):
        try:
            pickle.dumps(read(path))
            print("r", end="", flush=True)
        except BaseException:
            print("e", end="", flush=True)
"""

OBJECT = op.call("numpy.dtype", "O8", False, True)
BYTES = op.data(b"\x41" * 8)  # the address of an object, if a file has its way
OF_OBJECTS = op.dtype(order="|", parts=(OBJECT, (1,)), size=8, align=1)
TWICE = [
    op.array(op.dtype(), (1,), BYTES) + b"q\x01",
    op.call("torch._utils._rebuild_device_tensor_from_numpy", b"h\x01", op.name("torch.float64"),
            "cpu", False),
    op.build(b"h\x01", (1, (1,), op.dtype(), False, BYTES)),
]  # fmt: skip
CRAFTED = {
    "a subarray of objects": op.call(
        "builtins.list", op.call("numpy.ndarray", (), OF_OBJECTS, BYTES)
    ),
    "an array of subarrays of objects": op.call("builtins.set", op.array(OF_OBJECTS, (1,), BYTES)),
    "an array of objects": op.array(OBJECT, (1,), BYTES),
    "a scalar object": op.call(f"{op.ARRAYS[1]}.scalar", OBJECT, BYTES),
    "objects without their flags": op.array(op.dtype("O8", "|"), (1,), BYTES),
    "larger numbers": op.array(op.dtype(size=2**40), (1,), BYTES),
    "more numbers than bytes": op.array(op.dtype(), (2**40,), BYTES),
    "sizes that overflow": op.array(op.dtype(), (2**33, 2**31), op.data(b"")),
    "negative sizes": op.array(op.dtype(), (-1, -1), BYTES),
    "a scalar without bytes": op.call(f"{op.ARRAYS[0]}.scalar", op.dtype(), op.data(b"")),
    "a scalar of two numbers": op.call(f"{op.ARRAYS[0]}.scalar", op.dtype(), op.data(bytes(16))),
    "an array of another class": op.array(op.dtype(), (1,), BYTES, of="numpy.dtype"),
    "an array of another version": op.array(op.dtype(), (1,), BYTES, version=2),
    "a dtype of another version": op.array(op.dtype(version=4), (1,), BYTES),
    "the other byte order": op.array(op.dtype(order="S"), (1,), BYTES),
    "two byte orders": op.array(op.dtype(order="<>"), (1,), BYTES),
    "an array over bytes": op.call("numpy.ndarray", (1,), op.dtype(), BYTES),
    "a new state while a tensor shares the memory": TWICE,
}
# torch reads most of these: some end the process, some take all of its memory.
CRAFTED_FOR_TORCH = {
    "a nested tuple as key": b"}" + b")" + b"\x85" * 10**6 + b"Ns",
    "a repeated number": op.tensor((2**40,), (0,)),
    "a storage of another size": op.tensor(of=op.storage(2**20)),
    "a storage of another dtype": op.tensor(of=op.storage(6, "torch.DoubleStorage")),
    "a storage of two dtypes": [
        op.tensor(),
        op.tensor((3,), (1,), of=op.storage(3, "torch.DoubleStorage")),
    ],
    "a view beyond the storage": op.tensor((2, 3), (3, 2)),
    "an offset beyond the storage": op.tensor(offset=1),
    "a negative stride": op.tensor((2, 3), (-3, 1), 3),
    "sizes that overflow": op.tensor((2**32, 2**32), (0, 0)),
    "a list in itself": b"]q\x01h\x01a",
    "lists that double": b"]" + b"q\x01](h\x01h\x01e" * 40,
    "deep lists": b"](" * 10**5 + b"e" * 10**5,
    "memory by the size": op.call("builtins.bytearray", 2**33),
    "bytes in another encoding": op.call("_codecs.encode", "a", "utf-8"),
    "an object of another class": op.name("torch.Size") + b")\x81",
    "an object with arguments": op.name("argparse.Namespace") + op.value((1,)) + b"\x81",
    "an item of a tensor": op.tensor() + op.value(0) + op.value(1) + b"s",
    "a setting without a name": op.build(op.name("argparse.Namespace") + b")\x81", {1: 2}),
    "a function as value": [op.name("torch.Size")],
    "a class of Python": op.name("builtins.list"),
    "a call of a tensor": op.tensor() + b")R",
    "an attribute of a class": op.build(op.name("argparse.Namespace"), {"a": 1}),
}


def outcomes(paths):
    """Return the letters that READ prints, of our reader and of torch's."""
    command = [PYTHON, "-c", READ, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (len(result.stdout) // 2, result.stderr)
    return result.stdout[::2], result.stdout[1::2]


def test_data_of_numpy_are_numbers_or_refused_wherever_a_checkpoint_is_read(tmp_path):
    paths = [op.write(tmp_path / name, content) for name, content in CRAFTED.items()]
    for found in outcomes(paths):
        assert dict(zip(CRAFTED, found, strict=True)) == dict.fromkeys(CRAFTED, "e")


@pytest.mark.parametrize("crafted", CRAFTED_FOR_TORCH)
def test_our_commands_refuse_what_torch_reads(tmp_path, crafted):
    harmless, path = (
        op.write(tmp_path / f"{number}.pt", {"model": {}, "crafted": content})
        for number, content in enumerate([op.tensor(), CRAFTED_FOR_TORCH[crafted]])
    )
    assert load_checkpoint(harmless)["crafted"].shape == (2, 3)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_what_a_file_can_call_finds_only_numbers_in_data_of_numpy(tmp_path):
    """fairseq's workers send types such as ``list``, which torch then lets every file call."""
    full = op.array(op.dtype(), (1,), BYTES)
    empty = op.call(f"{op.ARRAYS[1]}._reconstruct", op.name("numpy.ndarray"), (0,), op.data(b"b"))
    scalar = op.call(f"{op.ARRAYS[1]}.scalar", op.dtype(), BYTES)
    made = [full, empty, scalar, op.dtype(), op.name("numpy.ndarray"), op.name("numpy.dtype")]
    calls = [f"builtins.{name}" for name in ("list", "dict", "int", "set", "complex", "bytearray")]
    calls += ["collections.Counter", "collections.OrderedDict", "collections.defaultdict"]
    contents = [op.call(called, of) for called in calls for of in (*made, [full], {"a": full})]
    paths = [op.write(tmp_path / f"{n}.pt", content) for n, content in enumerate(contents)]
    outcomes(paths)
    allow_fairseq_checkpoints()
    found = torch.load(paths[0], weights_only=True)
    assert found == [np.frombuffer(b"\x41" * 8)[0]] and type(found[0]) is np.float64


def test_random_pickles_of_the_allowed_names_end_without_a_signal(tmp_path):
    names = [*reading._NAMES, "builtins.set", "builtins.list", "builtins.dict", "builtins.int"]
    names += ["collections.Counter", "collections.defaultdict", "omegaconf.dictconfig.DictConfig"]
    names += ["omegaconf.base.ContainerMetadata", "builtins.bytearray", "typing.Any"]
    fuzzer = op.Fuzzer(0, names)
    paths = [op.write(tmp_path / f"{number}.pt", fuzzer.value()) for number in range(400)]
    for found in outcomes(paths):
        assert found.count("r") > 40 and found.count("e") > 40


@pytest.mark.parametrize("module", op.ARRAYS)
@pytest.mark.parametrize("order", "<>")
def test_arrays_and_scalars_of_every_numpy_load_and_are_saved_as_plain_ones(
    tmp_path, module, order
):
    numbers = np.arange(6, dtype=f"{order}f8").reshape(2, 3)
    content = op.data(numbers.tobytes())
    array = op.array(op.dtype(order=order), (2, 3), content, module)
    scalar = op.call(f"{module}.scalar", op.dtype(order=order), op.data(numbers[0, 1:2].tobytes()))
    path = op.write(tmp_path / "numpy.pt", [array, scalar])
    allow_fairseq_checkpoints()
    for loaded in (reading.read_archive(path), torch.load(path, weights_only=True)):
        np.testing.assert_array_equal(loaded[0], numbers)
        assert loaded[1] == 1.0
        assert type(pickle.loads(pickle.dumps(loaded))[0]) is np.ndarray
