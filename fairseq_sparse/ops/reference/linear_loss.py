"""The output projection and its loss in one, without keeping the logits.

The logits are computed in chunks of rows. The gradient of a chunk, p - q, takes their place and is
multiplied with the weights and the features at once, before the next chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.operators import differentiable, equals_one, once_differentiable, operator
from fairseq_sparse.ops.precision import at_least_fp32, wide, without_autocast
from fairseq_sparse.ops.reference.rows import residual_

# Chunk size in logits (32 MiB in fp32, on a GPU 128), and the least number of rows, because small
# products are slow.
_CHUNK_LOGITS = 1 << 23
_CHUNK_LOGITS_OF_GPU = 1 << 25
_CHUNK_ROWS = 128

Residual = Callable[[Tensor, Tensor, RowLoss, str, int], Tensor]


def _fake(x, weight, bias, *others):
    return x.new_empty((), dtype=wide(x.dtype)), *empty_gradients(x, weight, *others[-3:])


def empty_gradients(x: Tensor, weight: Tensor, *needed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the gradients of features, weight and bias; none for one not needed."""
    shapes = (x.shape, weight.shape, weight.shape[:1])
    return tuple(
        x.new_empty(shape if need else (0,), dtype=wide(x.dtype))
        for shape, need in zip(shapes, needed, strict=True)
    )


def row_chunks(x: Tensor, weight: Tensor) -> Iterator[slice]:
    """Split the rows of logits ``x weight^T`` into chunks."""
    rows, logits = x.size(0), _CHUNK_LOGITS if x.is_cpu else _CHUNK_LOGITS_OF_GPU
    step = max(_CHUNK_ROWS, logits // max(1, weight.size(0)))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


@operator(
    "linear_loss(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? tau, float alpha,"
    " float label_smoothing, int ignore_index, str algorithm, int topk, bool need_x,"
    " bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
def _linear_loss(*args) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum of the losses of rows, and its gradients; see :func:`in_chunks`."""
    return in_chunks(residual_, *args)


def _save(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # or zeros in the shapes of the gradients are made
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs[:3], *output[1:])


# Not a public name of PyTorch.
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


def _linear_loss_gradient(ctx, grad, *_):
    if grad is None:  # nothing that is differentiated depends on the loss
        return (None,) * len(ctx.needs_input_grad)
    sources, gradients = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
    is_one = equals_one(grad)
    if is_one:
        # Whoever gets the gradients may change them, but backward may come again if the graph is
        # kept. Else only those of the features are copied, which can be a view: with large weights,
        # a copy takes as long as a product.
        copied = 3 if _keeps_graph() else 1
        gradients = [x.clone() if i < copied else x for i, x in enumerate(gradients)]
    connected = [source for source in (*sources, grad) if source is not None]
    scaled = [
        once_differentiable((gradient if is_one else grad * gradient).to(source.dtype), *connected)
        if need
        else None
        for source, gradient, need in zip(sources, gradients, ctx.needs_input_grad[:3], strict=True)
    ]
    return *scaled, *[None] * 10


linear_loss = differentiable(_linear_loss, _save, _linear_loss_gradient)


def in_chunks(
    residual: Residual,
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    tau: Optional[Tensor],
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
    algorithm: str,
    topk: int,
    *needed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sum of the losses of the rows of ``F.linear(x, weight, bias)``, and its gradients.

    Args:
        residual: returns the losses of some rows of logits, over which it writes ``p - q``.
        x: features ``[rows, d]``; matrices are multiplied in this dtype.
        weight: ``[V, d]``, in that dtype.
        bias: ``[V]``, or None.
        target: class indices ``[rows]``.
        tau, alpha, label_smoothing, ignore_index, algorithm, topk: as in ``row_loss``.
        needed: whether the gradients of ``x``, ``weight`` and ``bias`` are needed.

    Returns:
        The sum and the gradients, fp32 or better; those not needed are empty.
    """
    options = RowLoss(alpha, tau, label_smoothing, ignore_index)
    total = x.new_zeros((), dtype=wide(x.dtype))
    grad_x, grad_weight, grad_bias = empty_gradients(x, weight, *needed)
    grad_weight.zero_()
    grad_bias.zero_()
    with without_autocast(x):
        for rows in row_chunks(x, weight):
            logits = at_least_fp32(x[rows] @ weight.t())
            logits = logits if bias is None else logits.add_(bias)
            total += residual(logits, target[rows], options, algorithm, topk).sum()
            gradient = logits.to(x.dtype)
            if needed[0]:
                grad_x[rows] = (gradient @ weight).to(grad_x.dtype)
            if needed[1]:
                grad_weight += gradient.t() @ x[rows]
            if needed[2]:
                grad_bias += logits.sum(0)
    return total, grad_x, grad_weight, grad_bias
