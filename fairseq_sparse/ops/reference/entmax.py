"""alpha-entmax of rows of logits, without sorting them.

With ``x = (alpha - 1) * (z - max(z))`` and ``beta = 1 / (alpha - 1)``, alpha-entmax is
``p = [x - tau]_+ ** beta`` for the one ``tau`` with ``sum(p) = 1`` (Peters et al. 2019, Eq. 10).
We look for the root of ``||[x - tau]_+||_beta = 1`` rather than of ``sum(p) = 1``: for alpha <= 2
the left side is a convex, decreasing function of tau that is straight wherever the row is
constant, so that Newton steps from the left end ``tau = -1`` never overshoot and are few. Above
alpha = 2 it is not convex, and we bisect.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from fairseq_sparse.ops.precision import at_least_fp32
from fairseq_sparse.ops.reference.powers import positive_power, slope

# Convex Newton at least quarters (residual x slope) at each step, and bisection halves the bracket
# of log(-tau); these bounds cover any row.
_MAX_STEPS = {torch.float32: 32, torch.float64: 64}

# Number of Newton steps that correct the rounding error of tau.
_CORRECTIONS = 4

Alpha = Union[float, Tensor]


class EntmaxRows(NamedTuple):
    """The solution of alpha-entmax for ``rows`` rows of ``size`` logits."""

    p: Tensor  # [rows, size], the probabilities, in the dtype of the logits
    tau: Tensor  # [rows], the threshold of (alpha - 1) * z, fp32 or fp64
    conjugate: Optional[Tensor]  # [rows], max_p <p, z> + H_alpha(p), less the row's maximum
    maximum: Tensor  # [rows], the largest logit (0 where every logit is -inf)


def entmax_probabilities(z: Tensor, alpha: Alpha) -> Tensor:
    """Return the probabilities of :func:`entmax_rows`, ``[rows, size]``."""
    return entmax_rows(z, alpha, conjugate=False).p


def entmax_rows(z: Tensor, alpha: Alpha, conjugate: bool = True) -> EntmaxRows:
    """Solve alpha-entmax for each row of ``z``, in fp32 (fp64 for fp64 logits).

    Args:
        z: logits, ``[rows, size]``, any floating dtype.
        alpha: a float > 1, or a tensor ``[rows, 1]``.
        conjugate: whether the conjugate is wanted.
    """
    logits = at_least_fp32(z)
    if z.size(-1) == 0:
        nothing = logits.new_zeros(z.size(0))
        return EntmaxRows(z, nothing, nothing, nothing)
    maximum = logits.amax(-1, keepdim=True)
    maximum = maximum.masked_fill(torch.isneginf(maximum), 0.0)
    x = (logits - maximum).mul_(alpha - 1)
    tau = _threshold(x, alpha)
    above = _above_threshold(x, tau, alpha)
    p = positive_power(above, 1 / (alpha - 1))
    total = p.sum(-1, keepdim=True)
    p = p.div_(total.masked_fill(total == 0, 1.0))  # removes the last error where beta is large
    # A row without a maximum (a NaN in it) has no solution.
    tau = (tau + 0 * total + (alpha - 1) * maximum).to(logits.dtype).squeeze(-1)
    value = _conjugate(p, x, alpha).to(logits.dtype) if conjugate else None
    return EntmaxRows(p.to(z.dtype), tau, value, maximum.squeeze(-1))


def _conjugate(p: Tensor, x: Tensor, alpha: Alpha) -> Tensor:
    """Return ``<p, z - max(z)> + H_alpha(p)`` of each row, with 0 * -inf = 0."""
    score = torch.where(p > 0, p * x, 0.0).sum(-1, keepdim=True) / (alpha - 1)
    entropy = (p - p * positive_power(p, alpha - 1)).sum(-1, keepdim=True) / (alpha * (alpha - 1))
    return (score + entropy).squeeze(-1)


def _threshold(x: Tensor, alpha: Alpha) -> Tensor:
    """Find the root, which lies in ``[-1, -size ** (1 - alpha)]``, of each row: ``[rows, 1]``."""
    if not torch.is_tensor(alpha):
        return _halve_bracket(x, alpha) if alpha > 2 else _newton(x, alpha)
    concave = alpha > 2
    # On other devices, looking at alpha would be a synchronisation.
    if x.device.type == "cpu" and not concave.any():
        return _newton(x, alpha)
    return torch.where(concave, _halve_bracket(x, alpha), _newton(x, alpha))


def _newton(x: Tensor, alpha: Alpha) -> Tensor:
    """Take Newton steps from the left end; for alpha <= 2."""
    tau = torch.full_like(x[:, :1], -1.0)
    # Entries below -1 are never in the support; this avoids 0 * -inf.
    reachable = x.clamp(min=-1)
    for _ in range(_MAX_STEPS[x.dtype]):
        above = torch.sub(reachable, tau).clamp_(min=0)
        weight = positive_power(above, 1 / (alpha - 1) - 1)
        total = (weight * above).sum(-1, keepdim=True)
        # This is tau + (total - total^(2 - alpha)) / sum(weight) without its cancellation: both
        # terms are negative, so that a tau near 0 is as exact as one near -1.
        newton = (weight * reachable).sum(-1, keepdim=True) - slope(total, alpha)
        newton = newton / weight.sum(-1, keepdim=True)
        moved = newton > tau
        tau = torch.where(moved, newton, tau)
        if x.device.type == "cpu" and not moved.any():
            break
    return tau


def _halve_bracket(x: Tensor, alpha: Alpha) -> Tensor:
    """Bisect; for alpha > 2, where each entry adds a kink of infinite slope.

    It takes geometric means, because the root may be many orders of magnitude closer to 0 than -1.
    """
    low = torch.full_like(x[:, :1], -1.0)
    high = (low * x.size(-1) ** (1 - alpha)).clamp(max=-torch.finfo(x.dtype).tiny)
    for _ in range(_MAX_STEPS[x.dtype]):
        middle = -(low.neg().sqrt() * high.neg().sqrt())
        too_low = positive_power((x - middle).clamp(min=0), 1 / (alpha - 1)).sum(-1, True) >= 1
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return low


def _above_threshold(x: Tensor, tau: Tensor, alpha: Alpha) -> Tensor:
    """Return ``[x - tau]_+`` without the rounding error of ``tau``, except for alpha > 2.

    Each entry of a large support has this error, so the total mass has it many times over. Dividing
    by the mass would put the errors of all entries on the largest one. The correction takes Newton
    steps, too. It starts slightly to the left of tau: if tau was rounded up, the sums would miss
    entries of the support.
    """
    if not torch.is_tensor(alpha) and alpha > 2:
        return (x - tau).clamp_(min=0)
    left = tau * (1 + 8 * torch.finfo(tau.dtype).eps)
    if torch.is_tensor(alpha):
        left = torch.where(alpha > 2, tau, left)
    above = (x - left).clamp_(min=0)
    for _ in range(_CORRECTIONS):
        weight = positive_power(above, 1 / (alpha - 1) - 1)
        derivative = weight.sum(-1, keepdim=True)
        rest = ((weight * above).sum(-1, keepdim=True) - 1) * (alpha - 1) / derivative
        rest = rest.masked_fill(derivative == 0, 0.0)  # a row of -inf alone
        if torch.is_tensor(alpha):
            rest = torch.where(alpha > 2, 0.0, rest)
        # Entries on the threshold, which the sums do not count, stay there.
        above = torch.where(above > 0, above - rest, above).clamp_(min=0)
    return above


def entmax_gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Return ``grad`` times the Jacobian of alpha-entmax with respect to ``z [rows, size]``."""
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
