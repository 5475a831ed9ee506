"""Rows of logits by the compiled kernels: alpha-entmax, alpha-ReLU and their losses.

The kernels compute in fp32, for an alpha in [1.05, 2].
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from fairseq_sparse.ops.checks import LEAST_ALPHA_OF_KERNELS
from fairseq_sparse.ops.cpu import build
from fairseq_sparse.ops.cpu.boundary import call, empty
from fairseq_sparse.ops.cpu.screen import PackedRows, starts_of
from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.operators import kernel
from fairseq_sparse.ops.reference.rows import CUT, SHIFT

Logits = Union[Tensor, PackedRows]

_LARGEST_ALPHA = 2.0
# In C, these rows follow those of a solution.
_CONJUGATE, _COUNT = CUT + 1, CUT + 2


def in_range(alpha: Union[float, Tensor]) -> bool:
    """Return whether the kernels take alpha, or every value of a tensor."""
    if torch.is_tensor(alpha):
        return bool(((alpha >= LEAST_ALPHA_OF_KERNELS) & (alpha <= _LARGEST_ALPHA)).all())
    return LEAST_ALPHA_OF_KERNELS <= alpha <= _LARGEST_ALPHA


def fits_rows(z: Tensor, alpha: Union[float, Tensor], algorithm: str = "newton") -> bool:
    """Return whether the kernels take these logits, of which there are some."""
    return (
        z.dtype != torch.float64
        and z.numel() > 0
        and algorithm == "newton"
        and in_range(alpha)
        and build.library() is not None
    )


def fits_tau(tau: Optional[Tensor]) -> bool:
    """Return whether the kernels take this tau; in C, NaN stands for alpha-entmax."""
    return tau is None or (tau.is_cpu and tau.numel() == 1 and not bool(tau.isnan()))


def _fits_entmax(z, row_alpha, alpha, algorithm, topk, log) -> bool:
    return fits_rows(z, alpha if row_alpha is None else row_alpha, algorithm)


@kernel("cpu", "entmax", _fits_entmax)
def entmax(
    z: Tensor, row_alpha: Optional[Tensor], alpha: float, algorithm: str, topk: int, log: bool
) -> tuple[Tensor, Tensor]:
    """Return alpha-entmax of rows, or its logarithm, and the thresholds."""
    logits = z.float().contiguous()
    p, tau = torch.empty_like(logits), logits.new_empty(logits.size(0))
    arguments = (*logits.shape, *_alpha_of_rows(row_alpha, alpha), math.nan, log, p, tau)
    call("probabilities_of_rows", logits.numel(), logits, *arguments)
    return p if log else p.to(z.dtype), tau


def _fits_entmax_backward(p, grad, alpha) -> bool:
    return p.dtype == grad.dtype == torch.float32 and grad.is_cpu and fits_rows(p, alpha)


@kernel("cpu", "entmax_backward", _fits_entmax_backward)
def entmax_backward(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return the gradient of alpha-entmax with respect to rows of logits."""
    p, grad = p.contiguous(), grad.contiguous()
    out = torch.empty_like(p)
    call("entmax_gradient", p.numel(), p, grad, *p.shape, *_alpha_of_rows(None, alpha), out)
    return out


def _fits_alpha_relu(z, tau, alpha, log) -> bool:
    return fits_tau(tau) and fits_rows(z, alpha)


@kernel("cpu", "alpha_relu", _fits_alpha_relu)
def alpha_relu(z: Tensor, tau: Tensor, alpha: float, log: bool) -> Tensor:
    """Return alpha-ReLU of logits of any shape, or its logarithm."""
    logits = z.float().reshape(-1, z.shape[-1] if z.dim() > 0 else 1).contiguous()
    p = torch.empty_like(logits)
    arguments = (*logits.shape, *_alpha_of_rows(None, alpha), float(tau), log, p, None)
    call("probabilities_of_rows", logits.numel(), logits, *arguments)
    p = p.view(z.shape)
    return p if log else p.to(z.dtype)


def _alpha_of_rows(row_alpha: Optional[Tensor], alpha: float) -> tuple[Tensor, int]:
    """Return alpha in fp64, and 1 if each row has its own, else 0."""
    if row_alpha is not None:
        return row_alpha.double().contiguous(), 1
    return _constant(alpha), 0


@lru_cache(maxsize=64)
def _constant(alpha: float) -> Tensor:
    """Return a shared tensor, never written to: making one takes as long as solving a short row."""
    return torch.tensor([alpha], dtype=torch.float64, device="cpu")


def _fits_row_loss(z, target, tau, alpha, label_smoothing, ignore_index, algorithm, topk) -> bool:
    return target.is_cpu and fits_tau(tau) and fits_rows(z, alpha, algorithm)


@kernel("cpu", "row_loss", _fits_row_loss)
def row_loss(
    z: Tensor,
    target: Tensor,
    tau: Optional[Tensor],
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
    algorithm: str,
    topk: int,
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows and their solutions."""
    options = RowLoss(alpha, tau, label_smoothing, ignore_index)
    logits = z.float().contiguous()
    solved = SolvedRows(logits, options)
    return options.losses(logits, target, solved.conjugate, solved.shift), solved.solution


def _fits_row_loss_backward(grad, z, target, solution, alpha, *options) -> bool:
    return grad.is_cpu and target.is_cpu and solution.is_cpu and fits_rows(z, alpha)


@kernel("cpu", "row_loss_backward", _fits_row_loss_backward)
def row_loss_backward(
    grad: Tensor,
    z: Tensor,
    target: Tensor,
    solution: Tensor,
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
) -> Tensor:
    """Return ``grad [rows]`` times ``p - q``, in the dtype of ``z``."""
    logits = z.float().contiguous()
    options = RowLoss(alpha, None, label_smoothing, ignore_index)
    return _gradient(logits, target, solution, grad.float(), options).to(z.dtype)


def _gradient(
    z: Tensor, target: Tensor, solution: Tensor, grad: Tensor, options: RowLoss
) -> Tensor:
    """Return ``grad [rows]`` times ``p - q``, ``[rows, V]``, fp32."""
    out = torch.empty_like(z)
    label = target.masked_fill(~options.counts(target), -1).contiguous()
    arguments = (*z.shape, options.alpha, solution.contiguous(), grad.contiguous(), label)
    call("row_loss_gradient", z.numel(), z, *arguments, options.label_smoothing, out)
    return out


class SparseRows(NamedTuple):
    """A sparse matrix, stored row by row; an entry given twice is added up."""

    start: Tensor  # [rows + 1], int64: where the entries of each row begin
    columns: Tensor  # [entries], int32
    values: Tensor  # [entries], fp32


class SolvedRows:
    """The threshold of each row, from which the nonzeros of its gradient are filled in.

    Args:
        z: the logits, fp32 and contiguous, ``[rows, V]`` or packed.
        options: those of the loss.
    """

    def __init__(self, z: Logits, options: RowLoss):
        self.z, self.options = z, options
        self._layout = _layout(z)
        self._table = empty(6, self._layout[2], dtype=torch.float64)
        tau = math.nan if options.tau is None else float(options.tau)
        arguments = (*self._layout, options.alpha, tau, self._table)
        call("solve_rows", self._layout[0].numel(), *arguments)

    @property
    def solution(self) -> Tensor:
        """The solution of ``reference/rows.py``, ``[4, rows]``."""
        return self._table[:_CONJUGATE]

    @property
    def shift(self) -> Tensor:
        """The shift of :meth:`RowLoss.losses`, fp64."""
        tau = self.options.tau
        return self._table[SHIFT] if tau is None else tau / (self.options.alpha - 1)

    @property
    def conjugate(self) -> Tensor:
        """The conjugate of :meth:`RowLoss.losses`, fp64."""
        return self._table[_CONJUGATE]

    @property
    def count(self) -> Tensor:
        """The number of entries above the threshold, fp64."""
        return self._table[_COUNT]

    def residual(self, target: Tensor) -> Tensor:
        """Return ``p - q`` of logits that are not packed, ``[rows, V]``."""
        ones = self.z.new_ones(target.shape)
        return _gradient(self.z, target, self.solution, ones, self.options)

    def sparse_residual(self, target: Tensor, counts: Tensor) -> SparseRows:
        """Return the nonzeros of ``p - (1 - label_smoothing) e_target`` in the rows that count.

        Args:
            target: ``[rows]``, in range where the row counts.
            counts: ``[rows]``, bool; other rows are empty.
        """
        z, from_start, rows, longest = self._layout
        names = self.z.columns if isinstance(self.z, PackedRows) else None
        # Each row has one more place, for the target.
        start = starts_of(((self.count + 1) * counts).long())
        total = int(start[-1])
        columns, values = empty(total, dtype=torch.int32), empty(total)
        arguments = (z, from_start, rows, longest, names, self.options.alpha, self._table)
        gold = 1 - self.options.label_smoothing
        to = (target.contiguous(), gold, start, columns, values)
        call("fill_sparse", z.numel(), *arguments, *to)
        return SparseRows(start, columns, values)


def _layout(z: Logits) -> tuple[Tensor, Optional[Tensor], int, int]:
    """Return the logits, starts of rows (None: equally long), number of rows, greatest length."""
    if not isinstance(z, PackedRows):
        return z, None, *z.shape
    rows = z.start.numel() - 1
    return z.z, z.start, rows, int(z.start.diff().max()) if rows else 0
