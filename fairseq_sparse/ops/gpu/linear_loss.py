"""The output projection and its loss in one on a GPU, without ever keeping all logits.

The logits ``z = x W^T + b`` are made for a part of them at a time, in the dtype of the features. A
kernel puts ``R = p - q`` in their place, and while it is at hand the products ``R W`` and
``R^T x`` are made, the gradients of the summed loss. Which part that is:

- alpha-ReLU's p needs no other logit of its row, so a part is all rows of some classes. The
  weights' gradient is finished part by part, the smaller one of the features is added up.
- alpha-entmax needs whole rows, so a part is some rows. The weights' gradient is added up.

What label smoothing adds to R is ``-label_smoothing / V`` everywhere, a matrix of rank one whose
products are sums of ``W`` and of ``x``. It is left out of R, where half precision would round it.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fairseq_sparse.ops.fenchel_young import FenchelYoungLoss
from fairseq_sparse.ops.gpu.losses import (
    add_alpha_relu_losses,
    losses_and_residual,
    losses_of_rows,
    starting_losses,
)
from fairseq_sparse.ops.precision import without_autocast

# Bytes of logits at a time. Classes in small parts, which stay in L2 until they are used; rows in
# large ones, for each part goes over the gradient of all weights.
_CLASSES_AT_A_TIME = 32 << 20
_ROWS_AT_A_TIME = 128 << 20
# Rows or classes of a part are a multiple of this: the tiles of matrix products.
_TILE = 128
# In fp16 R is kept times this: small probabilities keep their digits, and alpha-ReLU's may still
# be 255 before they overflow.
_FP16_SCALE = 256.0
# Since torch 2.8 a product of halves can be had in fp32.
_HAS_OUT_DTYPE = hasattr(torch.ops.aten.mm, "dtype")


class Gradients(NamedTuple):
    """Of the summed loss, times ``scale``; in fp32 (fp64 for fp64 features), None if not needed."""

    features: Optional[Tensor]  # [N, d]
    weight: Optional[Tensor]  # [V, d]
    bias: Optional[Tensor]  # [V]
    scale: float


def summed_linear_loss(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    loss: FenchelYoungLoss,
) -> Tensor:
    """Return the summed losses of the rows of ``F.linear(features, weight, bias)``, with gradient.

    The gradients are made with the loss, in one go. For arguments see
    :func:`losses_and_gradients`.

    Returns:
        A scalar, fp32 (fp64 for fp64 features).
    """
    return _SummedLinearLoss.apply(features, weight, bias, target, loss)


def losses_and_gradients(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    loss: FenchelYoungLoss,
    needed: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor, Gradients]:
    """Return the loss of each row of ``F.linear(features, weight, bias)``, and the sum's gradients.

    Args:
        features: ``[N, d]``, any floating dtype: that in which matrices are multiplied, whatever
            autocast would choose. Logits and R are rounded to it, sums are taken in fp32.
        weight: ``[V, d]``, in that dtype.
        bias: ``[V]``, or None.
        target: class indices ``[N]``.
        loss: see :func:`fairseq_sparse.ops.gpu.losses.losses_of_rows`.
        needed: which gradients are, of features, weight and bias.

    Returns:
        Losses ``[N]``, fp32 (fp64 for fp64 features), and the gradients.
    """
    needed = (needed[0], needed[1], needed[2] and bias is not None)
    go_through = _go_through_rows if loss.tau is None else _go_through_classes
    with torch.no_grad(), without_autocast(features):
        bias = None if bias is None else bias.to(features.dtype)
        losses, gradients = go_through(features, weight, bias, target.contiguous(), loss, needed)
        if loss.label_smoothing > 0:
            counts = loss.counts(target)
            _add_uniform(gradients, features, weight, counts, loss.label_smoothing)
    return losses, gradients


class _SummedLinearLoss(Function):
    @staticmethod
    def forward(ctx, features, weight, bias, target, loss):
        needed = ctx.needs_input_grad[:3]
        losses, gradients = losses_and_gradients(features, weight, bias, target, loss, needed)
        ctx.save_for_backward(*gradients[:3])
        ctx.scale = gradients.scale
        ctx.dtypes = [None if x is None else x.dtype for x in (features, weight, bias)]
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        factor = grad / ctx.scale
        gradients = [
            # The product is rounded once: it may fit into fp16 where the factors do not.
            None if x is None else torch.mul(x, factor, out=torch.empty_like(x, dtype=dtype))
            for x, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *gradients, None, None


def _go_through_classes(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    loss: FenchelYoungLoss,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor, Gradients]:
    size = weight.size(0)
    gradients = _empty_gradients(x, weight, needed)
    losses = starting_losses(x, loss, size)
    for classes in _parts(size, x.size(0) * x.element_size(), _CLASSES_AT_A_TIME):
        w = weight[classes]
        logits = _logits(x, w, None if bias is None else bias[classes])
        add_alpha_relu_losses(
            logits,
            target,
            loss,
            losses,
            first=classes.start,
            classes=size,
            residual=logits if any(needed) else None,
            scale=gradients.scale,
            uniform=False,
        )
        if needed[0]:
            _put_product(logits, w, gradients.features, add=classes.start > 0)
        if needed[1]:
            _put_product(logits.t(), x, gradients.weight[classes])
        if needed[2]:
            gradients.bias[classes] = logits.sum(0, dtype=gradients.bias.dtype)
    return losses.clamp_(min=0), gradients  # rounding


def _go_through_rows(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    loss: FenchelYoungLoss,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor, Gradients]:
    gradients = _empty_gradients(x, weight, needed)
    losses = starting_losses(x, loss, weight.size(0))
    for rows in _parts(x.size(0), weight.size(0) * x.element_size(), _ROWS_AT_A_TIME):
        logits = _logits(x[rows], weight, bias)
        if not any(needed):
            losses[rows] = losses_of_rows(logits, target[rows], loss)
            continue
        losses[rows] = losses_and_residual(
            logits, target[rows], loss, scale=gradients.scale, uniform=False
        )
        later = rows.start > 0
        if needed[0]:
            _put_product(logits, weight, gradients.features[rows])
        if needed[1]:
            _put_product(logits.t(), x[rows], gradients.weight, add=later)
        if needed[2]:
            more = logits.sum(0, dtype=gradients.bias.dtype)
            gradients.bias.copy_(gradients.bias + more if later else more)
    return losses, gradients


def _parts(count: int, bytes_each: int, bytes_at_a_time: int) -> list[slice]:
    """Return slices of ``count`` rows or classes, as even as whole tiles can be."""
    parts = max(1, -(-count * bytes_each // bytes_at_a_time))
    step = -(-count // (parts * _TILE)) * _TILE
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _empty_gradients(x: Tensor, weight: Tensor, needed: tuple[bool, bool, bool]) -> Gradients:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    shapes = (x.shape, weight.shape, weight.shape[:1])
    return Gradients(
        *(
            x.new_empty(shape, dtype=dtype) if is_needed else None
            for shape, is_needed in zip(shapes, needed, strict=True)
        ),
        scale=_FP16_SCALE if x.dtype == torch.float16 else 1.0,
    )


def _logits(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def _put_product(a: Tensor, b: Tensor, result: Tensor, add: bool = False) -> None:
    """Put ``a @ b`` into ``result``, or add it; in its precision, which may be more than theirs."""
    if a.dtype == result.dtype:
        torch.addmm(result, a, b, beta=float(add), out=result)
    elif a.is_cuda and _HAS_OUT_DTYPE:
        if add:
            result.add_(torch.mm(a, b, out_dtype=result.dtype))
        else:
            torch.mm(a, b, out_dtype=result.dtype, out=result)
    else:
        # fp16 could not hold the product.
        product = torch.mm(a.float(), b.float()) if a.dtype == torch.float16 else torch.mm(a, b)
        result.copy_(result + product if add else product)


def _add_uniform(
    gradients: Gradients, x: Tensor, weight: Tensor, counts: Tensor, label_smoothing: float
) -> None:
    """Add the products of ``-label_smoothing / V``, R's part in the rows that count."""
    constant = -gradients.scale * label_smoothing / weight.size(0)
    if gradients.features is not None:
        dtype = gradients.features.dtype
        total = constant * weight.sum(0, dtype=dtype)
        gradients.features.addcmul_(counts.unsqueeze(1).to(dtype), total)
    if gradients.weight is not None:
        total = x.masked_fill(~counts.unsqueeze(1), 0.0).sum(0, dtype=gradients.weight.dtype)
        gradients.weight.add_(total, alpha=constant)
    if gradients.bias is not None:
        gradients.bias.add_(counts.sum(), alpha=constant)
