"""Rows of logits solved by the compiled kernels: alpha-entmax and alpha-ReLU."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Optional, Union

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu import is_there_for
from fairseq_sparse.ops.cpu.boundary import call, empty
from fairseq_sparse.ops.cpu.products import SparseRows, starts_of
from fairseq_sparse.ops.cpu.screen import PackedRows

Logits = Union[Tensor, PackedRows]

# The rows of a solution, as in rows.c.
_SHIFT, _TAU, _SCALE, _CUT, _CONJUGATE, _COUNT = range(6)


# Nearer to 1, fp32 is too short for the powers of 1 / (alpha - 1).
_MIN_ALPHA, _MAX_ALPHA = 1.05, 2.0


def can_solve(alpha: Union[float, Tensor]) -> bool:
    """Whether this alpha, or all of these, are in the range of the kernels: [1.05, 2]."""
    if torch.is_tensor(alpha):
        return bool(((alpha >= _MIN_ALPHA) & (alpha <= _MAX_ALPHA)).all())
    return _MIN_ALPHA <= alpha <= _MAX_ALPHA


def solves(z: Tensor, alpha: Union[float, Tensor]) -> bool:
    """Return whether the kernels, which compute in fp32, take these logits: any but fp64."""
    tensors = (z, alpha) if torch.is_tensor(alpha) else (z,)
    return (
        z.dtype != torch.float64 and z.numel() > 0 and is_there_for(*tensors) and can_solve(alpha)
    )


class SolvedRows:
    """The threshold of each row of ``z``, from which the probabilities are filled in.

    The properties are fp64, one number a row.
    """

    def __init__(self, z: Logits, alpha: Union[float, Tensor], table: Tensor):
        self.z = z
        self.alpha = alpha
        self._table = table  # [6, rows]

    @property
    def tau(self) -> Tensor:
        """The threshold of ``(alpha - 1) * (z - shift)``."""
        return self._table[_TAU]

    @property
    def shift(self) -> Tensor:
        """The row's maximum for alpha-entmax (0 if all are -inf), 0 for alpha-ReLU."""
        return self._table[_SHIFT]

    @property
    def conjugate(self) -> Tensor:
        """For alpha-entmax ``max_p <p, z - shift> + H_alpha(p)``, for alpha-ReLU ``sum p ** alpha /
        alpha``."""
        return self._table[_CONJUGATE]

    @property
    def count(self) -> Tensor:
        """How many entries are above the threshold."""
        return self._table[_COUNT]

    def probabilities(self) -> Tensor:
        """``[rows, size]``, fp32; not of packed rows."""
        out = torch.empty_like(self.z)
        arguments = (*self.z.shape, *_alpha_of_rows(self.alpha), self._table, out)
        call("fill_dense", self.z.numel(), self.z, *arguments)
        return out

    def residual(self, target: Tensor, gold: float, counts: Tensor) -> SparseRows:
        """The nonzeros of ``p - gold * e_target`` in the rows that count; the others are empty.

        Args:
            target: ``[rows]``, int64, in range where the row counts.
            gold: the weight of the target.
            counts: ``[rows]``, bool.
        """
        z, from_start, rows, longest = _described(self.z)
        columns, size = None, longest
        if isinstance(self.z, PackedRows):
            columns, size = self.z.columns, self.z.size
        # One place more for the target.
        start = starts_of(((self.count + 1) * counts).long())
        total = int(start[-1])
        to_columns, values = empty(total, dtype=torch.int32), empty(total)
        arguments = (z, from_start, rows, longest, columns, float(self.alpha), self._table)
        to = (target.contiguous(), gold, start, to_columns, values)
        call("fill_sparse", z.numel(), *arguments, *to)
        return SparseRows(start, to_columns, values, size)


def solve_entmax(z: Logits, alpha: Union[float, Tensor]) -> SolvedRows:
    """alpha-entmax of the rows of ``z [rows, size]``, fp32 and contiguous, ``size > 0``.

    ``alpha`` is a number or a tensor ``[rows, 1]``, see :func:`can_solve`.
    """
    described = _described(z)
    table = empty(6, described[2], dtype=torch.float64)
    call("solve_entmax", described[0].numel(), *described, *_alpha_of_rows(alpha), table)
    return SolvedRows(z, alpha, table)


def solve_alpha_relu(z: Logits, tau: float, alpha: float) -> SolvedRows:
    """alpha-ReLU of the rows of ``z``, see :func:`solve_entmax`."""
    described = _described(z)
    table = empty(6, described[2], dtype=torch.float64)
    arguments = (*described, alpha, tau, table)
    call("solve_alpha_relu", described[0].numel(), *arguments)
    return SolvedRows(z, alpha, table)


def log_probabilities(z: Tensor, alpha: float, tau: Optional[float]) -> Tensor:
    """The logarithm of alpha-entmax, or with a ``tau`` of alpha-ReLU, of the rows of ``z``, see
    :func:`solve_entmax`; ``[rows, size]``, -inf where that is 0."""
    out = torch.empty_like(z)
    call("log_probabilities", z.numel(), z, *z.shape, alpha, math.nan if tau is None else tau, out)
    return out


def _described(z: Logits) -> tuple[Tensor, Optional[Tensor], int, int]:
    """The logits, where each row begins (None where all are as long), how many, the longest."""
    if not isinstance(z, PackedRows):
        return z, None, *z.shape
    rows = z.start.numel() - 1
    return z.z, z.start, rows, int(z.start.diff().max()) if rows else 0


def entmax_gradient(p: Tensor, grad: Tensor, alpha: Union[float, Tensor]) -> Tensor:
    """The gradient of alpha-entmax with respect to the logits, for rows ``[rows, size]``."""
    p, grad = p.contiguous(), grad.contiguous()
    out = torch.empty_like(p)
    call("entmax_gradient", p.numel(), p, grad, *p.shape, *_alpha_of_rows(alpha), out)
    return out


def _alpha_of_rows(alpha: Union[float, Tensor]) -> tuple[Tensor, int]:
    """alpha in fp64, and 1 if each row has its own, else 0."""
    if torch.is_tensor(alpha):
        return alpha.double().contiguous(), 1
    return _constant(alpha), 0


@lru_cache(maxsize=64)
def _constant(alpha: float) -> Tensor:
    """A tensor that nobody writes to; to make one takes as long as to solve a short row."""
    return torch.tensor([alpha], dtype=torch.float64, device="cpu")
