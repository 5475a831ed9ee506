"""The output projection and its loss in one on a GPU, without ever keeping all logits.

With a sparse p nearly all of ``R = p - q`` is exactly 0, so most of the work of the backward pass
can be skipped. Nothing is approximated:

1. ``candidates.py`` multiplies features and weights, and keeps for each row the few logits that can
   be in the support. No others are written to memory.
2. ``support.py`` solves the rows over these lists: losses, thresholds and the nonzeros of R.
3. In the backward pass ``support_products.py`` computes the products ``R W`` and ``R^T x`` from the
   nonzeros.
4. A row whose candidates or support do not fit into their lists, or that has a NaN, takes the dense
   path, see ``dense_rows.py``: its logits are recomputed, for a chunk of such rows at a time, and
   tiles of R that are 0 are skipped.

The path of a row depends on its logits alone, and every sum has a fixed order: the same input gives
the same gradients in every run. Nothing waits for the GPU.

Label smoothing adds ``-label_smoothing / V`` to R everywhere, a matrix of rank one whose products
are sums of ``W`` and of ``x``.

Memory besides inputs and results, for N rows, V classes, width d and lists of L places per row,
``4 sqrt(K V)`` for K programs per row, at most 16:

- while the losses are computed, ``8 N L`` bytes for the lists, and ``4 P V`` bytes for the logits
  of P rows on the dense path: at most 256 MiB, or those of 128 rows;
- from there to the backward pass, ``8 N * 128`` bytes for the nonzeros;
- in the backward pass, ``4 P V`` bytes again, 20 bytes for each nonzero's place while they are
  sorted, and ``4 (N + V) d`` bytes for gradients in fp32, if the features are not in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.first_order import first_order
from fairseq_sparse.ops.gpu.arithmetic import compute_dtype, to_compute_dtype
from fairseq_sparse.ops.gpu.candidates import Candidates, find_candidates
from fairseq_sparse.ops.gpu.dense_rows import DenseRows
from fairseq_sparse.ops.gpu.support import Rows, Support, solve_dense, solve_lists
from fairseq_sparse.ops.gpu.support_products import times_weight, transposed_times_features
from fairseq_sparse.ops.precision import without_autocast


def linear_losses(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, loss: FenchelYoungLoss
) -> Tensor:
    """Return the loss of each row of ``F.linear(x, weight, bias)``, with its gradient.

    Args:
        x: features ``[N, d]``, any floating dtype; matrices are multiplied in it, whatever
            autocast would choose. Logits and all sums are fp32 (fp64 for fp64 features).
        weight: ``[V, d]``, in that dtype.
        bias: ``[V]``, or None.
        target: class indices ``[N]``. Where one is neither a class nor ignored, the loss is NaN.
        loss: with any ``alpha`` > 1 and ``topk`` = 0; its ``reduction`` is ignored.

    Returns:
        ``[N]``, fp32 (fp64 for fp64 features).
    """
    return _LinearLosses.apply(x, weight, bias, target, loss)


class _LinearLosses(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, target, loss):
        x, weight, target = x.contiguous(), weight.contiguous(), target.contiguous()
        precise = None if bias is None else bias.to(compute_dtype(x)).contiguous()
        found = find_candidates(x, weight, precise, target, loss)
        rows = _empty_rows(found, target, weight.size(0), loss)
        support = solve_lists(found, rows, loss, any(ctx.needs_input_grad))
        del found
        dense = DenseRows(x, weight, precise, support.dense)
        for first, logits in dense.chunks():
            solve_dense(logits, dense.order, dense.dense_count, first, rows, loss)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, weight, bias, target, rows.found, *support)
            ctx.loss = loss
        return rows.losses

    @staticmethod
    @first_order
    def backward(ctx, grad):
        x, weight, bias, target, found, *support = ctx.saved_tensors
        needed, loss = ctx.needs_input_grad[:3], ctx.loss
        with without_autocast(x):
            scale = grad.masked_fill(~loss.counts(target), 0.0)
            gradients = _of_lists(x, weight, Support(*support), scale, loss, needed)
            precise = None if bias is None else bias.to(compute_dtype(x)).contiguous()
            dense = DenseRows(x, weight, precise, support[-1])
            dense.add_gradients(gradients, target, found, scale, loss)
            gradients = [
                None if gradient is None else gradient.to(like.dtype)
                for gradient, like in zip(gradients, (x, weight, bias), strict=True)
            ]
        return *gradients, None, None


def _empty_rows(found: Candidates, target: Tensor, classes: int, loss: FenchelYoungLoss) -> Rows:
    gold = found.gold
    constant = to_compute_dtype(loss.constant(classes), gold)
    solved = torch.empty_like(gold), gold.new_empty(3, gold.size(0))
    return Rows(target, gold, found.sums, classes, constant, *solved)


def _of_lists(
    x: Tensor,
    weight: Tensor,
    support: Support,
    scale: Tensor,
    loss: FenchelYoungLoss,
    needed: tuple[bool, bool, bool],
) -> list[Optional[Tensor]]:
    """Return the gradients of features, weight and bias, without those of dense rows."""
    dtype = compute_dtype(x)
    constant = -loss.label_smoothing / weight.size(0)

    def smoothed(total: Callable[[], Tensor], *shape: int) -> Tensor:
        return constant * total() if constant else scale.new_zeros(shape)

    features = None
    if needed[0]:
        start = smoothed(lambda: weight.sum(0, dtype=dtype), weight.size(1))
        features = times_weight(support, scale, weight, start)
    if not any(needed[1:]):
        return [features, None, None]
    start = smoothed(lambda: scale @ x.to(dtype), x.size(1)) if needed[1] else None
    start_bias = smoothed(scale.sum) if needed[2] else None
    pair = transposed_times_features(support, scale, x, weight.size(0), start, start_bias)
    return [features, *pair]
