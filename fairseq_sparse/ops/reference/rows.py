"""alpha-entmax and alpha-ReLU of rows of logits, and their losses.

A row is first solved, and then filled in from its solution as

    p = scale * [(alpha - 1) (z - shift) - tau]_+ ** (1 / (alpha - 1)).

alpha-entmax has the maximum of the row as shift and normalises by the scale; alpha-ReLU ("Speeding
Up Entmax", Eq. 2) has shift 0, scale 1 and a given tau.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.operators import differentiable, once_differentiable, operator
from fairseq_sparse.ops.precision import at_least_fp32, wide
from fairseq_sparse.ops.reference.powers import positive_power, slope
from fairseq_sparse.ops.reference.thresholds import Alpha, threshold

# The rows of a solution, [4, rows], fp64. Where z <= CUT, p is 0: so that a kernel can look for the
# support without computing p; -inf says nothing.
SHIFT, TAU, SCALE, CUT = range(4)

# Number of Newton steps that correct the rounding error of tau.
_CORRECTIONS = 4


def _like(z: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    return torch.empty_like(z, dtype=dtype, memory_format=torch.contiguous_format)


def _fake_entmax(z, row_alpha, alpha, algorithm, topk, log):
    return _like(z, wide(z.dtype) if log else z.dtype), z.new_empty(z.size(0), dtype=wide(z.dtype))


@operator(
    "entmax(Tensor z, Tensor? row_alpha, float alpha, str algorithm, int topk, bool log)"
    " -> (Tensor, Tensor)",
    _fake_entmax,
)
def entmax_without_gradient(
    z: Tensor, row_alpha: Optional[Tensor], alpha: float, algorithm: str, topk: int, log: bool
) -> tuple[Tensor, Tensor]:
    """Return alpha-entmax of ``z [rows, size]``, or its logarithm, and tau of ``(alpha - 1) z``.

    Raises:
        ValueError: a value of ``row_alpha [rows, 1]`` is 1 or less; on a GPU its row is NaN.
    """
    each_alpha = alpha
    if row_alpha is not None:
        if row_alpha.is_cpu and (row_alpha <= 1).any():
            raise ValueError(f"alpha must exceed 1, its least value is {float(row_alpha.min())}")
        each_alpha = row_alpha.masked_fill(row_alpha <= 1, torch.nan)
    solution, p = solve_entmax(z, each_alpha, algorithm, topk)
    rate = (each_alpha - 1) if row_alpha is None else row_alpha.squeeze(-1).double() - 1
    tau = (solution[TAU] + rate * solution[SHIFT]).to(wide(z.dtype))
    # With an fp64 alpha for each row, p is fp64.
    return (p.log().to(wide(z.dtype)) if log else p.to(z.dtype)).contiguous(), tau


def _save_entmax(ctx, inputs, output):
    _, row_alpha, ctx.alpha, _, _, ctx.log = inputs
    ctx.dtype = inputs[0].dtype
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[0], row_alpha)


def _entmax_gradient(ctx, grad, _):
    p, row_alpha = ctx.saved_tensors
    grad_alpha = None
    if ctx.log:
        grad_z, grad_alpha = log_entmax_gradients(p, grad, ctx.alpha, row_alpha)
    elif row_alpha is not None:
        grad_z, grad_alpha = entmax_gradients(p, grad, row_alpha)
    elif torch.is_grad_enabled():  # a second derivative is wanted
        grad_z = entmax_gradient(p, grad, ctx.alpha)
    else:
        grad_z = entmax_backward(p, grad, ctx.alpha)
    grad_alpha = None if row_alpha is None else grad_alpha.to(row_alpha.dtype)
    return grad_z.to(ctx.dtype), grad_alpha, *[None] * 4


entmax = differentiable(entmax_without_gradient, _save_entmax, _entmax_gradient)


def solve_entmax(
    z: Tensor, alpha: Alpha, algorithm: str = "newton", topk: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the solution ``[4, rows]`` of alpha-entmax, and p, fp32 or better."""
    logits = at_least_fp32(z)
    if z.size(-1) == 0:
        return z.new_zeros(4, z.size(0), dtype=torch.float64), logits.clone()
    maximum = logits.amax(-1, keepdim=True)
    maximum = maximum.masked_fill(torch.isneginf(maximum), 0.0)
    x = (logits - maximum).mul_(alpha - 1)
    tau = threshold(x, alpha, algorithm, topk)
    rest = _rounding(x, tau, alpha) if algorithm == "newton" else torch.zeros_like(tau)
    p = positive_power(_above(x, tau, rest), 1 / (alpha - 1))
    tau = tau.double() + rest.double()
    # Removes the last error where beta is large. A NaN stays one.
    scale = p.sum(-1, keepdim=True).double()
    scale = scale.masked_fill(scale == 0, 1.0).reciprocal()
    p = p.mul_(scale.to(p.dtype))
    cut = torch.full_like(scale, -torch.inf)
    return torch.cat([maximum.double(), tau + 0 * scale, scale, cut], dim=-1).t().contiguous(), p


def _above(x: Tensor, tau: Tensor, rest: Tensor) -> Tensor:
    """Return ``[x - (tau + rest)]_+``, where ``rest`` is too small to be added to ``tau``."""
    return (x - tau).sub_(rest).clamp_(min=0)


def _rounding(x: Tensor, tau: Tensor, alpha: Alpha) -> Tensor:
    """Return what ``tau`` lacks of the root; 0 for alpha > 2.

    Each entry of a large support has this error, so the total mass has it many times over. Dividing
    by the mass would put the errors of all entries on the largest one. The correction takes Newton
    steps, too. It starts slightly to the left of tau: if tau was rounded up, the sums would miss
    entries of the support.
    """
    concave = alpha > 2
    if concave is True:
        return torch.zeros_like(tau)
    rest = tau * (8 * torch.finfo(tau.dtype).eps)
    for _ in range(_CORRECTIONS):
        above = _above(x, tau, rest)
        weight = positive_power(above, 1 / (alpha - 1) - 1)
        derivative = weight.sum(-1, keepdim=True)
        step = ((weight * above).sum(-1, keepdim=True) - 1) * (alpha - 1) / derivative
        rest = rest + step.masked_fill(derivative == 0, 0.0)  # 0: a row of -inf alone
    return rest if concave is False else rest.masked_fill(concave, 0.0)


def probabilities(z: Tensor, solution: Tensor, alpha: float) -> Tensor:
    """Return p of solved rows, fp32 or better."""
    shift, tau, scale = solution[:CUT].unsqueeze(-1)
    logits = at_least_fp32(z)
    rounded = tau.to(logits.dtype)
    x = (logits - shift.to(logits.dtype)).mul_(alpha - 1)
    above = _above(x, rounded, (tau - rounded).to(logits.dtype))
    return positive_power(above, 1 / (alpha - 1)).mul_(scale.to(logits.dtype))


@operator(
    "entmax_backward(Tensor p, Tensor grad, float alpha) -> Tensor",
    lambda p, grad, alpha: _like(p),
)
def entmax_backward(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return the :func:`entmax_gradient` of rows ``[rows, size]``."""
    return entmax_gradient(p, grad, alpha).contiguous()


def entmax_gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian of alpha-entmax with respect to ``z [..., size]``."""
    s, _, centred = _through_jacobian(p, grad, alpha)
    return (s * centred).to(p.dtype)


def entmax_gradients(p: Tensor, grad: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``z`` and, one value a row, of a tensor alpha.

    The latter is by Correia, Niculae, Martins 2019, "Adaptively Sparse Transformers", Prop. 2:

        d p / d alpha = (p - share) / (alpha - 1)^2 + (h - share sum(h)) / (alpha - 1),

    with share = s / sum(s) and h = -p log p.
    """
    s, exact, centred = _through_jacobian(p, grad, alpha)
    alpha = alpha.to(exact.dtype)
    # <grad, v - share sum(v)> = <centred, v> and <centred, s> = 0, so with y = -(alpha - 1) log p,
    # s = p exp(y), both terms are <centred, p (1 + y - exp(y))> over (alpha - 1)^2, which is exact
    # also where alpha is near 1.
    y = (1 - alpha) * torch.where(exact > 0, exact, 1.0).log()
    rate = (centred * exact * (y - torch.expm1(y))).sum(-1, keepdim=True) / (alpha - 1) ** 2
    return (s * centred).to(p.dtype), rate


def log_entmax_gradients(
    log_p: Tensor, grad: Tensor, alpha: float, row_alpha: Optional[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return what :func:`entmax_gradients` does, given log p and the gradient with respect to it.

    Not by way of p: where it is tiny, ``grad / p`` overflows, but ``p ** (1 - alpha) grad`` does
    not. ``alpha`` is that of all rows if they have no ``row_alpha``.
    """
    rate = (alpha if row_alpha is None else row_alpha.to(log_p.dtype)) - 1
    inside, finite = _split(log_p)
    grad = grad.masked_fill(~inside, 0.0)
    y = -rate * finite
    p = finite.exp().masked_fill(~inside, 0.0)
    s = (finite + y).exp().masked_fill(~inside, 0.0)  # p ** (2 - alpha)
    weighted = grad * y.exp()
    total = s.sum(-1, keepdim=True)
    mean = weighted.sum(-1, keepdim=True) / total.masked_fill(total == 0, 1.0)
    of_alpha = ((grad - p * mean) * (y - torch.expm1(y))).sum(-1, keepdim=True) / rate**2
    return weighted - s * mean, of_alpha


def _split(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return where log p is not -inf, and log p with 0 elsewhere."""
    inside = ~torch.isneginf(log_p)
    return inside, log_p.masked_fill(~inside, 0.0)


def _through_jacobian(p: Tensor, grad: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, Tensor]:
    """Factor ``grad`` times the Jacobian ``diag(s) - s s^T / sum(s)`` (S2S, Prop. 1).

    Returns:
        ``s = p ** (2 - alpha)``, 0 off the support; ``p`` in the precision of the computation;
        ``grad - <s, grad> / sum(s)``, whose product with s is the gradient.
    """
    exact = at_least_fp32(p)
    grad = grad.to(exact.dtype).masked_fill(~(exact > 0), 0.0)
    s = slope(exact, alpha.to(exact.dtype) if torch.is_tensor(alpha) else alpha)
    total = s.sum(-1, keepdim=True)
    share = s / total.masked_fill(total == 0, 1.0)
    return s, exact, grad - (share * grad).sum(-1, keepdim=True)


@operator(
    "alpha_relu(Tensor z, Tensor tau, float alpha, bool log) -> Tensor",
    lambda z, tau, alpha, log: _like(z, wide(z.dtype) if log else z.dtype),
)
def _alpha_relu(z: Tensor, tau: Tensor, alpha: float, log: bool) -> Tensor:
    """Return ``[(alpha - 1) z - tau]_+ ** (1 / (alpha - 1))`` of any shape, or its logarithm."""
    p = positive_power(_base(z, tau, alpha), 1 / (alpha - 1))
    return (p.log() if log else p.to(z.dtype)).contiguous()


def _save_alpha_relu(ctx, inputs, output):
    z, _, ctx.alpha, ctx.log = inputs
    ctx.dtype = z.dtype
    ctx.save_for_backward(output)


def _alpha_relu_gradient(ctx, grad):
    (p,) = ctx.saved_tensors
    if ctx.log:  # p ** (1 - alpha), which grows less than 1 / p
        inside, finite = _split(p)
        grad = ((1 - ctx.alpha) * finite).exp() * grad.masked_fill(~inside, 0.0)
    else:
        grad = slope(at_least_fp32(p), ctx.alpha) * grad.masked_fill(p == 0, 0.0)
    return grad.to(ctx.dtype), None, None, None


alpha_relu = differentiable(_alpha_relu, _save_alpha_relu, _alpha_relu_gradient)


def _base(z: Tensor, tau: Tensor, alpha: float) -> Tensor:
    return ((alpha - 1) * at_least_fp32(z) - tau).clamp(min=0)


def _fake_row_loss(z, target, tau, alpha, label_smoothing, ignore_index, algorithm, topk):
    rows = z.size(0)
    return z.new_empty(rows, dtype=wide(z.dtype)), z.new_empty(4, rows, dtype=torch.float64)


@operator(
    "row_loss(Tensor z, Tensor target, Tensor? tau, float alpha, float label_smoothing,"
    " int ignore_index, str algorithm, int topk) -> (Tensor, Tensor)",
    _fake_row_loss,
)
def _row_loss(
    z: Tensor,
    target: Tensor,
    tau: Optional[Tensor],
    alpha: float,
    label_smoothing: float,
    ignore_index: int,
    algorithm: str,
    topk: int,
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows ``[rows, V]``, fp32 or better, and their solutions ``[4, rows]``.

    ``tau`` is None for alpha-entmax, and the constant threshold of alpha-ReLU.
    """
    options = RowLoss(alpha, tau, label_smoothing, ignore_index)
    losses, solution, _ = _solve_loss(at_least_fp32(z), target, options, algorithm, topk)
    return losses, solution


def _save_row_loss(ctx, inputs, output):
    z, target, _, *ctx.options = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(z, target, output[1])


def _row_loss_gradient(ctx, grad, _):
    grad_z = row_loss_backward(grad, *ctx.saved_tensors, *ctx.options[:3])
    return once_differentiable(grad_z, ctx.saved_tensors[0], grad), *[None] * 7


row_loss = differentiable(_row_loss, _save_row_loss, _row_loss_gradient)


def _solve_loss(
    z: Tensor, target: Tensor, options: RowLoss, algorithm: str, topk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses, solutions and p of logits in fp32 or better."""
    alpha = options.alpha
    if options.tau is None:
        solution, p = solve_entmax(z, alpha, algorithm, topk)
        shift = solution[SHIFT].to(z.dtype)
        score = torch.where(p > 0, p * (z - shift.unsqueeze(-1)), 0.0).sum(-1)  # 0 * -inf = 0
        entropy = (p - p * positive_power(p, alpha - 1)).sum(-1) / (alpha * (alpha - 1))
        conjugate = score + entropy
    else:
        base = _base(z, options.tau, alpha)
        p = positive_power(base, 1 / (alpha - 1))
        conjugate = (p * base).sum(-1) / alpha  # p ** alpha = p * p ** (alpha - 1)
        solution = z.new_tensor([0.0, 0.0, 1.0, -torch.inf], dtype=torch.float64)
        solution = solution.unsqueeze(-1).repeat(1, z.size(0))
        solution[TAU] = options.tau
        shift = options.tau / (alpha - 1)
    return options.losses(z, target, conjugate, shift), solution, p


@operator(
    "row_loss_backward(Tensor grad, Tensor z, Tensor target, Tensor solution, float alpha,"
    " float label_smoothing, int ignore_index) -> Tensor",
    lambda grad, z, *others: _like(z),
)
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
    options = RowLoss(alpha, None, label_smoothing, ignore_index)
    residual = _residual(probabilities(z, solution, alpha), target, options)
    # A scaled loss can have a grad that fp16 cannot hold, though it can hold the product.
    grad = grad.to(residual.dtype).masked_fill(~options.counts(target), 0.0)
    return residual.mul_(grad.unsqueeze(-1)).to(z.dtype).contiguous()


def _residual(p: Tensor, target: Tensor, options: RowLoss) -> Tensor:
    """Return ``p - q``, in place; 0 in the rows that are ignored."""
    ignored = ~options.counts(target).unsqueeze(-1)
    label = target.unsqueeze(-1).masked_fill(ignored, 0)
    p.scatter_add_(-1, label, p.new_full(label.shape, options.label_smoothing - 1))
    if options.label_smoothing > 0:
        p.sub_(options.label_smoothing / p.size(-1))
    return p.masked_fill_(ignored, 0.0)


def residual_(z: Tensor, target: Tensor, options: RowLoss, algorithm: str, topk: int) -> Tensor:
    """Return the losses of logits in fp32 or better, over which ``p - q`` is written."""
    losses, _, p = _solve_loss(z, target, options, algorithm, topk)
    z.copy_(_residual(p, target, options))
    return losses
