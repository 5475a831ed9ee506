"""Stand-ins for the NumPy names in a checkpoint, which build arrays and scalars of numbers only.

NumPy's own functions trust a pickle: with a crafted state, a dtype makes NumPy take bytes of the
file for addresses of objects. torch lets a file call every function and class on its list, with any
arguments, and set the state of what they return. So real dtypes are never within a file's reach.
"""

import math
import pickle
from typing import Any

import numpy as np

# The codes of booleans, integers and floating-point numbers, without byte order: "f8".
_CODES = frozenset(np.dtype(char).str[1:] for char in "?bBhHiIlLqQefd")


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise pickle.UnpicklingError("Unsupported NumPy data: not an array or scalar of numbers")


class CheckedDType:
    """Stands for ``numpy.dtype`` while a checkpoint is read; it can only be a type of numbers."""

    __slots__ = ("dtype",)

    def __new__(cls, code: str, align: bool = False, copy: bool = False) -> "CheckedDType":
        _require(type(code) is str and code in _CODES)
        self = super().__new__(cls)
        self.dtype = np.dtype(code)
        return self

    def __setstate__(self, state: tuple) -> None:
        """Set the byte order, which is all that the state of a plain dtype tells."""
        _require(type(state) is tuple and len(state) == 8)
        version, order, *rest = state
        _require(type(order) is str and order in "<>=|" and len(order) == 1)
        _require(version == 3 and rest == [None, None, None, -1, -1, 0])
        self.dtype = self.dtype.newbyteorder(order)


class CheckedArray(np.ndarray):
    """An array from a checkpoint; it is saved as a plain ``numpy.ndarray``."""

    def __new__(cls) -> "CheckedArray":
        return super().__new__(cls, 0, np.uint8)

    def __setstate__(self, state: tuple) -> None:
        # NumPy frees the old memory, which a tensor may share if there is any.
        _require(self.size == 0 and type(state) is tuple and len(state) == 5)
        version, shape, dtype, is_fortran, data = state
        _require(version == 1 and type(dtype) is CheckedDType and type(data) is bytes)
        _require(type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape))
        _require(math.prod(shape) * dtype.dtype.itemsize == len(data))
        super().__setstate__((1, shape, dtype.dtype, bool(is_fortran), data))

    def __reduce_ex__(self, protocol: int) -> tuple:
        return np.asarray(self).__reduce_ex__(protocol)


def reconstruct(array_class: type, shape: Any, code: Any) -> CheckedArray:
    """Stand for ``_reconstruct``: return an empty array, whose state follows in the pickle."""
    _require(array_class is CheckedArray)
    return CheckedArray()


def scalar(dtype: CheckedDType, data: bytes) -> np.generic:
    """Stand for ``scalar``: return the number in ``data``."""
    _require(type(dtype) is CheckedDType and type(data) is bytes)
    _require(len(data) == dtype.dtype.itemsize)
    return np.frombuffer(data, dtype.dtype)[0]


# NumPy 2 renamed the module that its pickles name. NumPy 1 and 2 must read each other's files.
ALLOWED = {"numpy.dtype": CheckedDType, "numpy.ndarray": CheckedArray}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    ALLOWED |= {f"{_module}._reconstruct": reconstruct, f"{_module}.scalar": scalar}
