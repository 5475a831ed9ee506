"""Losses of rows of logits by the kernels in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.cpu.products import SparseRows
from fairseq_sparse.ops.cpu.rows import Logits, SolvedRows, solve_alpha_relu, solve_entmax
from fairseq_sparse.ops.first_order import first_order

if TYPE_CHECKING:
    from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss


def row_losses(z: Tensor, target: Tensor, loss: FenchelYoungLoss) -> Tensor:
    """Return the loss of each row of logits ``[rows, V]``, any dtype but fp64, with its gradient.

    Only the nonzeros of ``p - e_y`` are kept for the gradient.
    """
    return _RowLosses.apply(z, target, loss)


def solve(z: Logits, loss: FenchelYoungLoss) -> tuple[SolvedRows, Tensor]:
    """Solve rows of logits; return also the shift of :meth:`FenchelYoungLoss.losses`."""
    if loss.tau is None:
        solved = solve_entmax(z, loss.alpha)
        return solved, solved.shift
    tau = float(loss.tau)
    solved = solve_alpha_relu(z, tau, loss.alpha)
    return solved, torch.full_like(solved.shift, tau / (loss.alpha - 1))


class _RowLosses(Function):
    @staticmethod
    def forward(ctx, z, target, loss):
        counts = loss.counts(target)
        logits = z.float().contiguous()
        solved, shift = solve(logits, loss)
        gold, mean = loss.logits_of_target(logits, target)
        if ctx.needs_input_grad[0]:
            residual = solved.residual(target, 1 - loss.label_smoothing, counts)
            ctx.save_for_backward(counts, *residual[:-1])
            ctx.dtype, ctx.size = z.dtype, residual.size
            ctx.smoothing = loss.label_smoothing / residual.size
        return loss.losses(counts, solved.conjugate, shift, gold, mean, z.size(-1)).float()

    @staticmethod
    @first_order
    def backward(ctx, grad):
        counts, *entries = ctx.saved_tensors
        scale = grad.float().masked_fill(~counts, 0.0)
        residual = SparseRows(*entries, ctx.size)
        return residual.dense(scale, -ctx.smoothing).to(ctx.dtype), None, None
