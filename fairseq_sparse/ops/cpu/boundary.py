"""The boundary to C: the one place that hands addresses of tensors to the compiled kernels.

After each pointer in the signature of a kernel, the C source states how many elements it reads or
writes, as a Python expression over the other parameters; ``or NULL`` if it may be None. For a
strided tensor it states the shape, and the strides of all dimensions but the last, which is
contiguous:

    float *key, /* [sizes.batch, sizes.heads, sizes.keys, sizes.width] by sizes.key_strides */

For a parameter that is a ``struct``, the argument is an instance of :func:`struct`, which has the
fields of the C source under their names: numbers and arrays of numbers.

These statements are read when the library is loaded, and every call is checked against them.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from ctypes import Structure
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu import build

# Below this many multiplications, waking the other threads takes longer than the work.
_WORK_OF_A_THREAD = 1 << 14

_FUNCTION = re.compile(r"^(void|int|int64_t) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_PARAMETER = re.compile(r"(?:const )?(\w+) (\*?)(\w+),?(?: /\* (.*?)( or NULL)? \*/)?")
_STRUCT = re.compile(r"^typedef struct \{\n((?:(?!^\}).)*?)^\} (\w+);", re.MULTILINE | re.DOTALL)
_FIELDS = re.compile(r"^    (int64_t|double) ([^;]+);", re.MULTILINE)
_FIELD = re.compile(r"(\w+)(?:\[(\d+)\])?")
_NUMBERS = {
    "void": None,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "int32_t": torch.int32,
    "int64_t": torch.int64,
    "uint16_t": torch.bfloat16,
    "uint8_t": torch.uint8,
}

# OpenMP's threads do not survive a fork, and a child that waits for them waits forever.
_is_forked_child = False


def _mark_forked() -> None:
    global _is_forked_child
    _is_forked_child = True


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_mark_forked)


class KernelArgumentError(Exception):
    """An error for memory that is not what a kernel's C source states: a defect of this package,
    never of its user."""


class _Pointer(NamedTuple):
    position: int
    name: str
    dtype: torch.dtype
    optional: bool
    is_strided: bool


class _Struct(NamedTuple):
    position: int
    name: str
    kind: type[Structure]


class _Kernel:
    """A function of the library, and what its C source declares about the parameters."""

    def __init__(self, library: ctypes.CDLL, result: str, name: str, parameters: str):
        found = _PARAMETER.findall(parameters)
        self._name = name
        self._function = getattr(library, name)
        self._function.restype = _NUMBERS[result]
        self._function.argtypes = [
            ctypes.c_void_p if star else _NUMBERS[kind] for kind, star, *_ in found
        ]
        self._structs, self._pointers, sizes = [], [], []
        for position, (kind, star, parameter, size, optional) in enumerate(found):
            if not star:
                continue
            if size == "struct":
                self._structs.append(_Struct(position, parameter, struct(kind)))
                continue
            shape, by, steps = size.partition(" by ")
            self._pointers.append(
                _Pointer(position, parameter, _DTYPES[kind], bool(optional), bool(by))
            )
            sizes.append(f"({shape}, tuple({steps}))" if by else size)
        names = ", ".join(parameter for _, _, parameter, *_ in found)
        # The expressions come from the package's own C sources.
        self._sizes: Callable[..., tuple] = eval(f"lambda {names}: [{', '.join(sizes)}]")

    def __call__(self, *arguments: object) -> None:
        addresses = list(arguments)
        for position, name, kind in self._structs:
            if type(arguments[position]) is not kind:
                found = repr(arguments[position])
                raise KernelArgumentError(f"{self._name}: {name} must be {kind}, got {found}")
            addresses[position] = ctypes.addressof(arguments[position])
        sizes = self._sizes(*arguments)
        for i, (position, _, dtype, optional, is_strided) in enumerate(self._pointers):
            x = arguments[position]
            if isinstance(x, Tensor):
                if x.dtype is not dtype or not x.is_cpu or not _has_layout(x, sizes[i], is_strided):
                    raise KernelArgumentError(self._message(i, sizes[i], x))
                addresses[position] = x.data_ptr()
            elif not (optional if x is None else _holds_int64s(x, dtype, sizes[i])):
                raise KernelArgumentError(self._message(i, sizes[i], x))
        failure = self._function(*addresses)
        if failure:
            raise _error(self._name, failure, threads=arguments[-1])

    def _message(self, i: int, size: object, x: object) -> str:
        pointer = self._pointers[i]
        found = repr(x)
        if isinstance(x, Tensor):
            found = f"{x.dtype} on {x.device}, shape {tuple(x.shape)}, strides {x.stride()}"
        return f"{self._name}: {pointer.name} must be {size} x {pointer.dtype}, got {found}"


def _has_layout(x: Tensor, size: object, is_strided: bool) -> bool:
    """Return whether a tensor has the layout and size that a kernel's source states."""
    if is_strided:
        shape, steps = size
        return list(x.shape) == shape and x.stride(-1) == 1 and x.stride()[:-1] == steps
    return x.is_contiguous() and x.numel() >= size


def _holds_int64s(x: object, dtype: torch.dtype, size: int) -> bool:
    is_array = isinstance(x, ctypes.Array) and x._type_ is ctypes.c_int64
    return is_array and dtype is torch.int64 and len(x) >= size


@cache
def struct(name: str) -> type[Structure]:
    """Return the struct of that name in the C sources."""
    fields = []
    for kind, names in _FIELDS.findall(_struct_bodies()[name]):
        for field, length in _FIELD.findall(names):
            number = _NUMBERS[kind]
            fields.append((field, number * int(length) if length else number))
    return type(name, (Structure,), {"_fields_": fields})


@cache
def _struct_bodies() -> dict[str, str]:
    sources = (build.FOLDER / source for source in build.SOURCES)
    return {name: body for path in sources for body, name in _STRUCT.findall(path.read_text())}


@cache
def _kernels(library: ctypes.CDLL) -> dict[str, _Kernel]:
    return {
        name: _Kernel(library, result, name, parameters)
        for source in build.SOURCES
        for result, name, parameters in _FUNCTION.findall((build.FOLDER / source).read_text())
    }


def call(name: str, work: int, *arguments: object) -> None:
    """Call a kernel; its last argument is the number of threads for ``work`` operations.

    Raises:
        KernelArgumentError: a tensor is not what the kernel's C source states.
        MemoryError: the kernel could not allocate the memory that it works in.
        ValueError: the rows are too long for the kernel.
    """
    threads = 1
    if work > _WORK_OF_A_THREAD and not _is_forked_child:
        threads = torch.get_num_threads()
    _kernels(build.library())[name](*arguments, threads)


def _error(name: str, failure: int, threads: int) -> Exception:
    """Return the exception that a kernel's nonzero result stands for, see threads.h."""
    if failure < 0:
        return ValueError(
            f"{name}: a row of 2**31 numbers is too long for the kernels for this CPU "
            f"(FAIRSEQ_SPARSE_NATIVE=0 uses PyTorch instead)"
        )
    return MemoryError(
        f"{name}: could not allocate {failure / 2**20:,.1f} MiB for {threads} threads to work in "
        f"(fewer threads need less: torch.set_num_threads)"
    )


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory for a kernel, whatever PyTorch's default dtype and device are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def int64s(*numbers: int) -> ctypes.Array:
    """Return numbers as a kernel takes them: sizes and strides."""
    return (ctypes.c_int64 * len(numbers))(*numbers)
