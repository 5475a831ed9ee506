"""The signatures of the C kernels, against which ``boundary.py`` checks every call.

Each kernel has one function here, with the parameters of the C function in their order. An
annotation is a kind of pointer, a struct or a number; a parameter without one is an ``int64_t``, or
the ``int`` of threads. The function returns, under the name of each pointer, how many elements the
kernel reads or writes there; for a strided tensor its shape, and the strides of all dimensions but
the last, which is contiguous.
"""

# Annotations are read here, so there is no "from __future__ import annotations".

import inspect
from collections.abc import Callable
from ctypes import Structure, c_double, c_float, c_int, c_int64
from typing import NamedTuple, Optional

import torch
from torch import Tensor


class Pointer(NamedTuple):
    """A kind of pointer: to a tensor's elements, or None if it is optional."""

    dtype: torch.dtype
    optional: bool = False
    strided: bool = False


Floats = Pointer(torch.float32)
FloatsOrNone = Pointer(torch.float32, optional=True)
StridedFloats = Pointer(torch.float32, strided=True)
BFloats = Pointer(torch.bfloat16)
Doubles = Pointer(torch.float64)
DoublesOrNone = Pointer(torch.float64, optional=True)
Int32s = Pointer(torch.int32)
Int32sOrNone = Pointer(torch.int32, optional=True)
Int64s = Pointer(torch.int64)
Int64sOrNone = Pointer(torch.int64, optional=True)
BytesOrNone = Pointer(torch.uint8, optional=True)


class Signature(NamedTuple):
    result: Optional[type]
    parameters: dict  # kinds by name
    sizes: Callable[..., dict]


KERNELS: dict[str, Signature] = {}


def kernel(result: Optional[type]) -> Callable[[Callable], Callable]:
    """Enter a function into the table; ``result`` is c_int64 for a kernel that can fail."""

    def enter(sizes: Callable) -> Callable:
        names = inspect.signature(sizes).parameters
        kinds = {**dict.fromkeys(names, c_int64), "threads": c_int, **sizes.__annotations__}
        KERNELS[sizes.__name__] = Signature(result, kinds, sizes)
        return sizes

    return enter


# The layout is like that of the C sources.
# fmt: off

# rows.c

@kernel(c_int64)
def solve_rows(
    z: Floats, start: Int64sOrNone, rows, size, alpha: c_double, tau: c_float, solution: Doubles,
    threads,
):
    return {"z": _entries(start, rows, size), "start": rows + 1, "solution": 6 * rows}

@kernel(c_int64)
def probabilities_of_rows(
    z: Floats, rows, size, alpha: Doubles, alpha_step, tau: c_float, logarithms, out: Floats,
    thresholds: FloatsOrNone, threads,
):
    return {
        "z": rows * size, "alpha": rows if alpha_step else 1, "out": rows * size,
        "thresholds": rows,
    }

@kernel(c_int64)
def fill_sparse(
    z: Floats, start: Int64sOrNone, rows, size, names: Int32sOrNone, alpha: c_double,
    solution: Doubles, target: Int64s, gold: c_float, out_start: Int64s, columns: Int32s,
    values: Floats, threads,
):
    entries, written = _entries(start, rows, size), int(out_start[rows])
    return {
        "z": entries, "start": rows + 1, "names": entries, "solution": 6 * rows, "target": rows,
        "out_start": rows + 1, "columns": written, "values": written,
    }

@kernel(c_int64)
def row_loss_gradient(
    z: Floats, rows, size, alpha: c_double, solution: Doubles, grad: Floats, target: Int64s,
    smoothing: c_double, out: Floats, threads,
):
    return {
        "z": rows * size, "solution": 4 * rows, "grad": rows, "target": rows, "out": rows * size,
    }

@kernel(None)
def entmax_gradient(
    p: Floats, grad: Floats, rows, size, alpha: Doubles, alpha_step, out: Floats, threads,
):
    return {
        "p": rows * size, "grad": rows * size, "alpha": rows if alpha_step else 1,
        "out": rows * size,
    }

def _entries(start: Optional[Tensor], rows: int, size: int) -> int:
    """Return the number of logits in rows that begin at ``start``, or that all have ``size``."""
    return rows * size if start is None else int(start[rows])

# screen.c

@kernel(None)
def round_rows(x: Floats, rows, width, halves: BFloats, norm: Floats, error: Floats, threads):
    return {"x": rows * width, "halves": rows * width, "norm": rows, "error": rows}

@kernel(c_int64)
def find_candidates(
    z: BFloats, rows, size, row_norm: Floats, row_error: Floats, norm: Floats, error: Floats,
    alpha: c_double, tau: c_float, room, cut: Floats, count: Int64s, found: Int32s, threads,
):
    return {
        "z": rows * size, "row_norm": rows, "row_error": rows, "norm": size, "error": size,
        "cut": rows, "count": rows, "found": rows * room,
    }

@kernel(c_int64)
def fill_candidates(
    z: BFloats, rows, size, row_norm: Floats, row_error: Floats, norm: Floats, error: Floats,
    cut: Floats, room, found: Int32s, x: Floats, weight: Floats, width, target: Int64s,
    start: Int64s, columns: Int32s, logits: Floats, gold: Floats, threads,
):
    candidates = int(start[rows])
    return {
        "z": rows * size, "row_norm": rows, "row_error": rows, "norm": size, "error": size,
        "cut": rows, "found": rows * room, "x": rows * width, "weight": size * width,
        "target": rows, "start": rows + 1, "columns": candidates, "logits": candidates,
        "gold": rows,
    }

# attention.c

class attention_options(Structure):
    """The numbers that an attention depends on, see ``attention.c``."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "heads", "queries", "keys", "width")),
        *((name, c_int64) for name in ("splits", "seed")),
        *((name, c_double) for name in ("alpha", "scale", "dropout")),
    ]

class attention_strides(Structure):
    """Strides in batch, heads and time of tensors ``[batch, heads, time, width]``."""

    _fields_ = [
        *((name, c_int64 * 3) for name in ("query", "key", "value", "result")),
        *((name, c_int64 * 3) for name in ("grad_query", "grad_key", "grad_value")),
    ]

@kernel(None)
def attention_workspace(options: attention_options, backward, floats: Int64s, threads):
    return {"floats": 1}

@kernel(c_int64)
def attend_forward(
    options: attention_options, strides: attention_strides, query: StridedFloats,
    key: StridedFloats, value: StridedFloats, result: StridedFloats, masked: BytesOrNone,
    bias: FloatsOrNone, solution: DoublesOrNone, floats, memory: Floats, threads,
):
    batch, heads, width = options.batch, options.heads, options.width
    queries, keys = (batch, heads, options.queries, width), (batch, heads, options.keys, width)
    return {
        "query": (queries, tuple(strides.query)), "key": (keys, tuple(strides.key)),
        "value": (keys, tuple(strides.value)), "result": (queries, tuple(strides.result)),
        "masked": batch * options.keys, "bias": options.queries * options.keys,
        "solution": 4 * batch * heads * options.queries, "memory": threads * floats,
    }

@kernel(c_int64)
def attend_backward(
    options: attention_options, strides: attention_strides, query: StridedFloats,
    key: StridedFloats, value: StridedFloats, grad: StridedFloats, grad_query: StridedFloats,
    grad_key: Floats, grad_value: Floats, masked: BytesOrNone, bias: FloatsOrNone,
    solution: DoublesOrNone, floats, memory: Floats, threads,
):
    batch, heads, width = options.batch, options.heads, options.width
    queries, keys = (batch, heads, options.queries, width), (batch, heads, options.keys, width)
    of_splits = options.splits * batch * heads * options.keys * width
    return {
        "query": (queries, tuple(strides.query)), "key": (keys, tuple(strides.key)),
        "value": (keys, tuple(strides.value)), "grad": (queries, tuple(strides.result)),
        "grad_query": (queries, tuple(strides.grad_query)), "grad_key": of_splits,
        "grad_value": of_splits, "masked": batch * options.keys,
        "bias": options.queries * options.keys,
        "solution": 4 * batch * heads * options.queries, "memory": threads * floats,
    }

# attention_step.c

class step_sizes(Structure):
    """The sizes of a step of generation, and strides as in :class:`attention_strides`."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "heads", "keys", "width")),
        *((name, c_int64 * 3) for name in ("key_strides", "value_strides")),
    ]

@kernel(c_int64)
def attend_step(
    sizes: step_sizes, query: Floats, key: StridedFloats, value: StridedFloats,
    masked: BytesOrNone, alpha: c_double, scale: c_double, result: Floats, weights: FloatsOrNone,
    threads,
):
    batch, heads, keys, width = sizes.batch, sizes.heads, sizes.keys, sizes.width
    shape = batch, heads, keys, width
    return {
        "query": batch * heads * width, "key": (shape, tuple(sizes.key_strides)),
        "value": (shape, tuple(sizes.value_strides)), "masked": batch * keys,
        "result": batch * heads * width, "weights": batch * heads * keys,
    }

# dropout.c

@kernel(None)
def dropout(x: Floats, size, probability: c_double, seed, out: Floats, threads):
    return {"x": size, "out": size}
