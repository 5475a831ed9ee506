"""Read the archive of a checkpoint, and build nothing but numbers, texts, containers and tensors.

``torch.load(weights_only=True)`` is wider than fairseq's checkpoints need, and before torch 2.10 it
reads past the end of a storage that claims to be larger than its data. Here every name, every
argument and every size is checked before it is used, and every byte against its checksum.
"""

import argparse
import collections
import math
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_sparse.checkpoints import numpy_pickles

_BLOCK = 1 << 20  # bytes

# Far more than fairseq saves. A list that contains itself, or doubles at each level, has more.
_MOST_PARTS = 1_000_000
_MOST_LEVELS = 100


class UnneededError(pickle.UnpicklingError):
    """A checkpoint holds something that fairseq does not save."""


def _require(is_valid: bool, what: str) -> None:
    if not is_valid:
        raise UnneededError(what)


@dataclass
class _Storage:
    """Numbers of one dtype, which tensors are views of."""

    data: torch.UntypedStorage
    dtype: torch.dtype
    size: int


def _tensor(
    storage: _Storage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool = False,
    hooks: Any = None,
) -> Tensor:
    """Return a view of a storage. Hooks are ignored, as by torch."""
    is_valid = type(storage) is _Storage and all(type(part) is tuple for part in (size, stride))
    is_valid = is_valid and len(size) == len(stride)
    is_valid = is_valid and all(type(n) is int and n >= 0 for n in (offset, *size, *stride))
    _require(is_valid, "a tensor without a valid shape")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # A tensor that repeats its numbers could need any amount of memory once it is copied.
    fits = math.prod(size) <= storage.size and (last < storage.size or 0 in size)
    if not fits:
        raise ValueError("a tensor is larger than its data")
    view = torch.empty(0, dtype=storage.dtype, device=storage.data.device)
    return view.set_(storage.data, offset if 0 not in size else 0, size, stride)


def _parameter(data: Tensor, requires_grad: bool, hooks: Any) -> Tensor:
    _require(type(data) is Tensor, "a parameter that is not a tensor")
    return torch.nn.Parameter(data, requires_grad=bool(requires_grad) and data.is_floating_point())


def _ordered_dict() -> collections.OrderedDict:
    return collections.OrderedDict()


def _size(sizes: tuple[int, ...]) -> torch.Size:
    return torch.Size(sizes)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Return the bytes that a pickle of protocol 2 holds as text."""
    _require(type(text) is str and encoding == "latin1", "bytes in an unusual encoding")
    return text.encode("latin1")


_FUNCTIONS: dict[str, Callable] = {
    "collections.OrderedDict": _ordered_dict,
    "torch.Size": _size,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "_codecs.encode": _encode,
    **numpy_pickles.ALLOWED,
}
_NAMES: dict[str, Any] = {
    "argparse.Namespace": argparse.Namespace,
    **_FUNCTIONS,
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
_VALUES = (str, bytes, int, float, type(None), Tensor, np.ndarray, np.generic)
_KEYS = (str, int, float, bool, bytes, type(None))  # hashing a deeply nested tuple ends the process

# What torch.save writes, which is protocol 2.
_OPCODES = """
    PROTO STOP MARK GLOBAL REDUCE NEWOBJ BUILD BINPERSID BINGET LONG_BINGET BINPUT LONG_BINPUT
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
"""


class _Reader(pickle._Unpickler):
    """Unpickler that resolves the names above only, and lets a file call only their functions.

    This is Python's own unpickler in Python: the one in C cannot be told what BUILD may change.
    """

    def __init__(self, archive: zipfile.ZipFile, prefix: str, with_tensors: bool):
        super().__init__(archive.open(f"{prefix}/data.pkl"), encoding="utf-8")
        self.archive, self.prefix, self.with_tensors = archive, prefix, with_tensors
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = f"{module_name}.{global_name}"
        _require(name in _NAMES, f"unsupported: {name}")
        return _NAMES[name]

    def persistent_load(self, description: Any) -> _Storage:
        """Return a storage, read from the archive at its first use."""
        _require(type(description) is tuple and len(description) == 5, "an unknown kind of data")
        _, dtype, key, _, size = description
        is_valid = type(dtype) is torch.dtype and type(key) is str and type(size) is int
        _require(is_valid, "an unknown kind of data")
        if key not in self.storages:
            info = self.archive.getinfo(f"{self.prefix}/data/{key}")
            if size * dtype.itemsize != info.file_size:
                raise ValueError(f"{info.filename} has another size than the tensors say")
            data = self._data(info) if self.with_tensors else None
            if data is None:
                data = torch.UntypedStorage(info.file_size, device="meta")
            self.storages[key] = _Storage(data, dtype, size)
        storage = self.storages[key]
        _require(storage.dtype == dtype and storage.size == size, "a storage of two kinds")
        return storage

    def _data(self, info: zipfile.ZipInfo) -> torch.UntypedStorage:
        data = torch.empty(info.file_size, dtype=torch.uint8)
        view = memoryview(data.numpy())
        position = 0
        with self.archive.open(info) as member:
            while block := member.read(_BLOCK):
                view[position : position + len(block)] = block
                position += len(block)
        if position < info.file_size:
            raise EOFError(f"{info.filename} is truncated")
        return data.untyped_storage()

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        is_known = any(function is known for known in _FUNCTIONS.values())
        _require(is_known and type(arguments) is tuple, "a call of something else than a function")
        self.stack[-1] = function(*arguments)

    def load_newobj(self) -> None:
        arguments, cls = self.stack.pop(), self.stack[-1]
        is_known = cls is argparse.Namespace and type(arguments) is tuple and not arguments
        _require(is_known, "an object of an unknown class")
        self.stack[-1] = argparse.Namespace()

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) in (numpy_pickles.CheckedArray, numpy_pickles.CheckedDType):
            target.__setstate__(state)
        elif type(target) is argparse.Namespace and type(state) is dict:
            vars(target).update(state)
        else:  # version numbers of a model's modules
            _require(type(target) is collections.OrderedDict, "a state of an unknown class")

    def load_appends(self) -> None:
        items, target = self.pop_mark(), self.stack[-1]
        _require(type(target) is list, "items of something else than a list")
        target.extend(items)

    def load_append(self) -> None:
        item, target = self.stack.pop(), self.stack[-1]
        _require(type(target) is list, "items of something else than a list")
        target.append(item)

    def load_setitems(self) -> None:
        items, target = self.pop_mark(), self.stack[-1]
        is_dict = type(target) in (dict, collections.OrderedDict)
        _require(is_dict and len(items) % 2 == 0, "items of something else than a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _require(type(key) in _KEYS, "a dictionary with unusual keys")
            target[key] = value

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.metastack.append(self.stack)
        self.stack = [key, value]
        self.load_setitems()

    dispatch = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _OPCODES.split()
    }
    for _name in ("reduce", "newobj", "build", "append", "appends", "setitem", "setitems"):
        dispatch[getattr(pickle, _name.upper())[0]] = locals()[f"load_{_name}"]


def read_archive(path: str | os.PathLike, with_tensors: bool = True) -> Any:
    """Return the object in a file that ``torch.save`` wrote, without running code from the file.

    Args:
        path: a file in the format of PyTorch 1.6 and later, of which a private copy is read.
        with_tensors: whether to read the tensors; otherwise they are on the ``meta`` device.

    Raises:
        UnneededError: the file holds something that a fairseq checkpoint does not need.
        OSError, zipfile.BadZipFile, and many others: it is of another kind, or damaged.
    """
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        prefix = members[0].filename.partition("/")[0] if members else ""
        names = {info.filename for info in members}
        # A TorchScript archive has code.
        if f"{prefix}/data.pkl" not in names or f"{prefix}/constants.pkl" in names:
            raise zipfile.BadZipFile("an archive of another kind, not a checkpoint")
        if any(info.compress_type for info in members):
            raise zipfile.BadZipFile("it was compressed by another program: unpack the original")
        if sum(info.file_size for info in members) > os.fstat(file.fileno()).st_size:
            raise zipfile.BadZipFile("its members overlap")
        order = f"{prefix}/byteorder"
        if order in names and archive.read(order).decode() != sys.byteorder:
            raise ValueError("it was saved on a computer with another byte order")
        state = _Reader(archive, prefix, with_tensors).load()
    _check_parts(state)
    return state


def _check_parts(state: Any) -> None:
    """Refuse functions and classes, and containers so nested that no program could walk them."""
    pending = [(state, 0)]
    count = 0
    while pending:
        part, level = pending.pop()
        count += 1
        _require(count <= _MOST_PARTS and level <= _MOST_LEVELS, "too many nested containers")
        if isinstance(part, argparse.Namespace):
            part = vars(part)
            _require(all(type(name) is str for name in part), "a setting without a name")
        if isinstance(part, dict):
            part = part.values()
        elif not isinstance(part, (list, tuple)):
            _require(isinstance(part, _VALUES), "a function or class")
            continue
        pending.extend((child, level + 1) for child in part)
