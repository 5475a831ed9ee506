"""Rows of logits solved by the compiled kernels: alpha-entmax and alpha-ReLU."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Optional, Union

import torch
from torch import Tensor

from fairseq_sparse.ops.cpu.boundary import call, empty
from fairseq_sparse.ops.cpu.products import SparseRows, starts_of
from fairseq_sparse.ops.cpu.screen import PackedRows
from fairseq_sparse.ops.reference.entmax import Alpha, EntmaxRows

Logits = Union[Tensor, PackedRows]

# The rows of a solution, as in rows.c.
_SHIFT, _TAU, _SCALE, _CUT, _CONJUGATE, _COUNT = range(6)


class SolvedRows:
    """The threshold of each row of ``z``, from which the probabilities are filled in.

    The properties are fp64, one number a row.
    """

    def __init__(self, z: Logits, alpha: Alpha, table: Tensor):
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
        """The number of entries above the threshold."""
        return self._table[_COUNT]

    def probabilities(self) -> Tensor:
        """Return the probabilities ``[rows, size]``, fp32; not of packed rows."""
        out = torch.empty_like(self.z)
        arguments = (*self.z.shape, *_alpha_of_rows(self.alpha), self._table, out)
        call("fill_dense", self.z.numel(), self.z, *arguments)
        return out

    def residual(self, target: Tensor, gold: float, counts: Tensor) -> SparseRows:
        """Return the nonzeros of ``p - gold * e_target`` in the rows that count; others are empty.

        Args:
            target: ``[rows]``, int64, in range where the row counts.
            gold: the weight of the target.
            counts: ``[rows]``, bool.
        """
        z, from_start, rows, longest = _layout(self.z)
        columns, size = None, longest
        if isinstance(self.z, PackedRows):
            columns, size = self.z.columns, self.z.size
        # Each row has one more place, for the target.
        start = starts_of(((self.count + 1) * counts).long())
        total = int(start[-1])
        to_columns, values = empty(total, dtype=torch.int32), empty(total)
        arguments = (z, from_start, rows, longest, columns, float(self.alpha), self._table)
        to = (target.contiguous(), gold, start, to_columns, values)
        call("fill_sparse", z.numel(), *arguments, *to)
        return SparseRows(start, to_columns, values, size)


def solve_entmax(z: Logits, alpha: Alpha) -> SolvedRows:
    """Solve alpha-entmax of the rows of ``z [rows, size]``, fp32 and contiguous, ``size > 0``.

    ``alpha`` is a number or a tensor ``[rows, 1]``, in [1.05, 2].
    """
    layout = _layout(z)
    table = empty(6, layout[2], dtype=torch.float64)
    call("solve_entmax", layout[0].numel(), *layout, *_alpha_of_rows(alpha), table)
    return SolvedRows(z, alpha, table)


def solve_alpha_relu(z: Logits, tau: float, alpha: float) -> SolvedRows:
    """Solve alpha-ReLU of the rows of ``z``, see :func:`solve_entmax`."""
    layout = _layout(z)
    table = empty(6, layout[2], dtype=torch.float64)
    arguments = (*layout, alpha, tau, table)
    call("solve_alpha_relu", layout[0].numel(), *arguments)
    return SolvedRows(z, alpha, table)


def entmax_probabilities(z: Tensor, alpha: Alpha) -> Tensor:
    """Return the probabilities of rows ``[rows, size]``, in the dtype of ``z``, any but fp64."""
    return _probabilities_of_rows(z.float().contiguous(), alpha).to(z.dtype)


def entmax_rows(z: Tensor, alpha: Alpha, conjugate: bool = True) -> EntmaxRows:
    """Solve the rows of ``z``, see :func:`fairseq_sparse.ops.mappings.entmax_rows`."""
    solved = solve_entmax(z.float().contiguous(), alpha)
    step = alpha.squeeze(-1) - 1 if torch.is_tensor(alpha) else alpha - 1
    tau = solved.tau + step * solved.shift
    numbers = (x.float() for x in (tau, solved.conjugate, solved.shift))
    return EntmaxRows(solved.probabilities().to(z.dtype), *numbers)


def alpha_relu_weights(z: Tensor, tau: Union[float, Tensor], alpha: float) -> Tensor:
    """Return alpha-ReLU of logits of any shape, in their dtype, any but fp64."""
    rows = z.float().reshape(-1, z.shape[-1] if z.dim() > 0 else 1).contiguous()
    return _probabilities_of_rows(rows, alpha, float(tau)).view(z.shape).to(z.dtype)


def log_probabilities(z: Tensor, alpha: float, tau: Optional[float] = None) -> Tensor:
    """Return the logarithm of alpha-entmax, or of alpha-ReLU if ``tau`` is given, over the last
    dimension of logits of any shape: fp32, -inf where p is 0, without a gradient."""
    rows = z.detach().float().reshape(-1, z.shape[-1] if z.dim() > 0 else 1).contiguous()
    return _probabilities_of_rows(rows, alpha, tau, logarithms=True).view(z.shape)


def _probabilities_of_rows(
    rows: Tensor, alpha: Alpha, tau: Optional[float] = None, logarithms: bool = False
) -> Tensor:
    """Return alpha-entmax of rows, or alpha-ReLU if ``tau`` is given, or their logarithms."""
    out = torch.empty_like(rows)
    if tau is not None and math.isnan(tau):  # NaN stands for alpha-entmax in C
        return out.fill_(math.nan)
    threshold = math.nan if tau is None else tau
    arguments = (*rows.shape, *_alpha_of_rows(alpha), threshold, logarithms, out)
    call("probabilities_of_rows", rows.numel(), rows, *arguments)
    return out


def _layout(z: Logits) -> tuple[Tensor, Optional[Tensor], int, int]:
    """Return the logits, starts of rows (None: equally long), number of rows, greatest length."""
    if not isinstance(z, PackedRows):
        return z, None, *z.shape
    rows = z.start.numel() - 1
    return z.z, z.start, rows, int(z.start.diff().max()) if rows else 0


def entmax_gradient(p: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    """Return the gradient of alpha-entmax with respect to the logits, for rows ``[rows, size]``."""
    p, grad = p.contiguous(), grad.contiguous()
    out = torch.empty_like(p)
    call("entmax_gradient", p.numel(), p, grad, *p.shape, *_alpha_of_rows(alpha), out)
    return out


def _alpha_of_rows(alpha: Alpha) -> tuple[Tensor, int]:
    """Return alpha in fp64, and 1 if each row has its own, else 0."""
    if torch.is_tensor(alpha):
        return alpha.double().contiguous(), 1
    return _constant(alpha), 0


@lru_cache(maxsize=64)
def _constant(alpha: float) -> Tensor:
    """Return a shared tensor, never written to: making one takes as long as solving a short row."""
    return torch.tensor([alpha], dtype=torch.float64, device="cpu")
