"""Four ways to find the threshold of alpha-entmax; all are exact.

With ``x = (alpha - 1) * (z - max(z))`` and ``beta = 1 / (alpha - 1)``, alpha-entmax is
``p = [x - tau]_+ ** beta`` for the one ``tau`` with ``sum(p) = 1`` (Peters et al. 2019, Eq. 10). It
lies in ``[-1, -size ** (1 - alpha)]``. The functions take ``x [rows, size]``, fp32 or fp64, and
return ``[rows, 1]``. A row without a finite entry, or with a NaN, gets any number, or NaN.
"""

from __future__ import annotations

from typing import Union

import torch
from torch import Tensor

from fairseq_sparse.ops.reference.powers import positive_power, slope

Alpha = Union[float, Tensor]

# Convex Newton at least quarters (residual x slope) at each step, and bisection halves the bracket
# of log(-tau); these bounds cover any row.
_MAX_STEPS = {torch.float32: 32, torch.float64: 64}


def threshold(x: Tensor, alpha: Alpha, algorithm: str, topk: int) -> Tensor:
    """Return tau, by the algorithm of this name; Newton's method hands over above alpha = 2.

    Args:
        x: ``[rows, size]``; at least one column.
        alpha: a number > 1, or a tensor ``[rows, 1]``.
        algorithm: ``newton``, ``sort``, ``partial`` or ``bisect``.
        topk: how many of the largest entries ``partial`` begins with.
    """
    if algorithm == "sort":
        return sort(x, alpha)
    if algorithm == "partial":
        return partial_sort(x, alpha, topk)
    if algorithm == "bisect" or (not torch.is_tensor(alpha) and alpha > 2):
        return bisect(x, alpha)
    if not torch.is_tensor(alpha):
        return newton(x, alpha)
    concave = alpha > 2
    # On other devices, looking at alpha would be a synchronisation.
    if x.device.type == "cpu" and not concave.any():
        return newton(x, alpha)
    return torch.where(concave, bisect(x, alpha), newton(x, alpha))


def newton(x: Tensor, alpha: Alpha) -> Tensor:
    """Take Newton steps from the left end; for alpha <= 2, without a sort.

    We look for the root of ``||[x - tau]_+||_beta = 1`` rather than of ``sum(p) = 1``: the left
    side is a convex, decreasing function of tau that is straight wherever the row is constant, so
    that the steps never overshoot and are few. Above alpha = 2 it is not convex.
    """
    tau = torch.full_like(x[:, :1], -1.0)
    # Entries below -1 are never in the support; this avoids 0 * -inf.
    reachable = x.clamp(min=-1)
    for _ in range(_MAX_STEPS[x.dtype]):
        above = torch.sub(reachable, tau).clamp_(min=0)
        weight = positive_power(above, 1 / (alpha - 1) - 1)
        total = (weight * above).sum(-1, keepdim=True)
        # This is tau + (total - total^(2 - alpha)) / sum(weight) without its cancellation: both
        # terms are negative, so that a tau near 0 is as exact as one near -1.
        step = (weight * reachable).sum(-1, keepdim=True) - slope(total, alpha)
        step = step / weight.sum(-1, keepdim=True)
        moved = step > tau
        tau = torch.where(moved, step, tau)
        if x.device.type == "cpu" and not moved.any():
            break
    return tau


def bisect(x: Tensor, alpha: Alpha) -> Tensor:
    """Halve the bracket of tau (S2S, Algorithm 1); for any alpha.

    It takes geometric means, because for a large alpha the root may be many orders of magnitude
    closer to 0 than -1.
    """
    low = torch.full_like(x[:, :1], -1.0)
    high = (low * x.size(-1) ** (1 - alpha)).clamp(max=-torch.finfo(x.dtype).tiny)
    for _ in range(_MAX_STEPS[x.dtype]):
        middle = -(low.neg().sqrt() * high.neg().sqrt())
        too_low = positive_power((x - middle).clamp(min=0), 1 / (alpha - 1)).sum(-1, True) >= 1
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return low


def sort(x: Tensor, alpha: float) -> Tensor:
    """Sort the row and solve for each size of the support (S2S, Algorithm 2); alpha 1.5 or 2."""
    # Entries below -1 are never in the support; this avoids -inf - -inf.
    ordered = x.clamp(min=-1).sort(dim=-1, descending=True).values
    return _candidates(ordered, alpha)[0]


def partial_sort(x: Tensor, alpha: float, topk: int) -> Tensor:
    """Run :func:`sort` on the ``topk`` largest entries, and on twice as many in those rows whose
    support they do not hold, until all do. It reads values, so it waits for a GPU."""
    topk = min(max(topk, 1), x.size(-1))
    tau, inside = _candidates(x.clamp(min=-1).topk(topk, dim=-1).values, alpha)
    unsolved = (inside == topk).squeeze(-1)
    if topk < x.size(-1) and unsolved.any():
        tau[unsolved] = partial_sort(x[unsolved], alpha, 2 * topk)
    return tau


def _candidates(ordered: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return tau and the size of the support, for rows in descending order.

    If the support were the first k entries, tau would be the root of ``sum(x) - k tau = 1`` for
    alpha = 2, and of ``sum((x - tau) ** 2) = 1`` for alpha = 1.5.
    """
    count = torch.arange(1, ordered.size(-1) + 1, dtype=ordered.dtype, device=ordered.device)
    # A wide support consists of most entries, whose sums are exact around the mean of all.
    centre = ordered.mean(-1, keepdim=True)
    ordered = ordered - centre
    mean = ordered.cumsum(-1) / count
    if alpha == 2:
        tau = mean - 1 / count
    else:
        variance = ordered.square().cumsum(-1) / count - mean.square()
        tau = mean - ((1 / count) - variance).clamp(min=0).sqrt()
    inside = (tau <= ordered).sum(-1, keepdim=True)
    return centre + tau.gather(-1, inside.clamp(min=1) - 1), inside
