"""The boundary to C: the one place that hands addresses of tensors to the compiled kernels.

Every call is checked against ``signatures.py``.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.signatures import KERNELS, Pointer, Signature

# Below this many multiplications, waking the other threads takes longer than the work.
_WORK_OF_A_THREAD = 1 << 14

# OpenMP's threads do not survive a fork, and a child that waits for them waits forever.
_is_forked_child = False


def _mark_forked() -> None:
    global _is_forked_child
    _is_forked_child = True


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_mark_forked)


class KernelArgumentError(Exception):
    """An error for memory that is not what a kernel's signature states: a defect of this package,
    never of its user."""


class _Kernel:
    """A function of the library, and its signature."""

    def __init__(self, library: ctypes.CDLL, name: str, signature: Signature):
        self._name, self._sizes = name, signature.sizes
        self._function = getattr(library, name)
        self._structs, self._pointers, types = [], [], []
        for position, (parameter, kind) in enumerate(signature.parameters.items()):
            if isinstance(kind, Pointer):
                self._pointers.append((position, parameter, *kind))
                kind = ctypes.c_void_p
            elif issubclass(kind, ctypes.Structure):
                self._structs.append((position, parameter, kind))
                kind = ctypes.POINTER(kind)
            types.append(kind)
        self._function.restype, self._function.argtypes = signature.result, types

    def __call__(self, *arguments: object) -> None:
        for position, name, kind in self._structs:
            if type(arguments[position]) is not kind:
                raise self._error(name, kind, arguments[position])
        addresses, sizes = list(arguments), self._sizes(*arguments)
        for position, name, dtype, optional, strided in self._pointers:
            x, size = arguments[position], sizes[name]
            if isinstance(x, Tensor):
                if x.dtype is not dtype or not x.is_cpu or not _has_layout(x, size, strided):
                    raise self._error(name, f"{size} x {dtype}", x)
                addresses[position] = x.data_ptr()
            elif not (optional if x is None else _holds_int64s(x, dtype, size)):
                raise self._error(name, f"{size} x {dtype}", x)
        failure = self._function(*addresses)
        if failure:
            raise _error(self._name, failure, threads=arguments[-1])

    def _error(self, name: str, expected: object, found: object) -> KernelArgumentError:
        if isinstance(found, Tensor):
            x = found
            found = f"{x.dtype} on {x.device}, shape {tuple(x.shape)}, strides {x.stride()}"
        return KernelArgumentError(f"{self._name}: {name} must be {expected}, got {found}")


def _has_layout(x: Tensor, size: object, strided: bool) -> bool:
    """Return whether a tensor has the layout and size that a signature states."""
    if strided:
        shape, strides = size
        return x.shape == shape and x.stride(-1) == 1 and x.stride()[:-1] == strides
    return x.is_contiguous() and x.numel() >= size


def _holds_int64s(x: object, dtype: torch.dtype, size: int) -> bool:
    is_array = isinstance(x, ctypes.Array) and x._type_ is ctypes.c_int64
    return is_array and dtype is torch.int64 and len(x) >= size


@cache
def _kernels(library: ctypes.CDLL) -> dict[str, _Kernel]:
    return {name: _Kernel(library, name, signature) for name, signature in KERNELS.items()}


def call(name: str, work: int, *arguments: object) -> None:
    """Call a kernel; its last argument is the number of threads for ``work`` operations.

    Raises:
        KernelArgumentError: a tensor is not what the kernel's signature states.
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
