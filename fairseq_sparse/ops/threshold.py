"""The threshold of alpha-entmax, found row by row without sorting the vocabulary.

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

from fairseq_sparse.ops.capture import is_captured
from fairseq_sparse.ops.cpu.rows import SolvedRows, solve_entmax, solves
from fairseq_sparse.ops.gpu import usable
from fairseq_sparse.ops.operators import define_entmax_rows, solve_captured
from fairseq_sparse.ops.precision import at_least_fp32

# 2 MiB of fp32 logits.
_CPU_CHUNK_ELEMENTS = 1 << 19
# Convex Newton at least quarters (residual x slope) at each step, and bisection halves the bracket
# of log(-tau); these bounds cover any row.
_MAX_STEPS = {torch.float32: 32, torch.float64: 64}

# On a CPU, picking out the candidates of a row costs more than it saves up to this size.
_SHORT_ROW = 256

# The entries of a long row that a first bound is found from: one of this many.
_BLOCK = 16

Alpha = Union[float, Tensor]


class EntmaxRows(NamedTuple):
    """What the search finds for ``rows`` rows of ``size`` logits."""

    p: Tensor  # [rows, size], the probabilities, in the dtype of the logits
    tau: Tensor  # [rows], the threshold of (alpha - 1) * z, fp32 or fp64
    conjugate: Optional[Tensor]  # [rows], max_p <p, z> + H_alpha(p), less the row's maximum
    maximum: Tensor  # [rows], the largest logit (0 where every logit is -inf)


def entmax_rows(z: Tensor, alpha: Alpha, topk: int = 0, conjugate: bool = True) -> EntmaxRows:
    """Solve alpha-entmax for each row of ``z``.

    The kernels for the device do it where they can. Otherwise long rows on a CPU are searched in
    double precision over the few entries that can be in the support. Short ones, and all rows on
    other devices, where compacting would cost a synchronisation, are searched as a whole in fp32
    (fp64 for fp64 logits).

    Args:
        z: logits, ``[rows, size]``, any floating dtype.
        alpha: a float > 1, or a tensor ``[rows, 1]``.
        topk: if > 0, only the ``topk`` largest logits of a row take part.
        conjugate: whether the conjugate is wanted.
    """
    if is_captured(z, *([alpha] if torch.is_tensor(alpha) else [])):
        each = (alpha, 0.0) if torch.is_tensor(alpha) else (None, float(alpha))
        return EntmaxRows(*solve_captured(z, *each, topk))
    return _solve_rows(z, alpha, topk, conjugate)


def _solve_rows(z: Tensor, alpha: Alpha, topk: int, conjugate: bool) -> EntmaxRows:
    if 0 < topk < z.size(-1):
        # Ties at the k-th place are broken by torch.topk.
        values, index = z.topk(topk, dim=-1)
        rows = _solve_rows(values, alpha, 0, conjugate)
        return rows._replace(p=torch.zeros_like(z).scatter_(-1, index, rows.p))
    if usable(z):
        from fairseq_sparse.ops.gpu import entmax as kernels

        return kernels.entmax_rows(z, alpha, conjugate)
    if solves(z, alpha):
        return _solve_compiled(z, alpha)
    if z.device.type != "cpu" or z.numel() == 0:
        return _solve_dense(z, alpha, conjugate)
    solve = _solve_dense if z.size(-1) <= _SHORT_ROW else _solve_candidates
    chunks = [
        solve(z[rows], alpha[rows] if torch.is_tensor(alpha) else alpha, conjugate)
        for rows in row_chunks(z)
    ]
    if len(chunks) == 1:
        return chunks[0]
    return EntmaxRows(
        *(None if part[0] is None else torch.cat(part) for part in zip(*chunks, strict=True))
    )


def _solve_as_operator(z: Tensor, row_alpha: Optional[Tensor], alpha: float, topk: int):
    """Solve the rows for ``operators.py``: results must not share memory with arguments."""
    if z.numel() == 0:
        nothing = at_least_fp32(z).new_zeros(3, z.size(0))
        return torch.zeros_like(z, memory_format=torch.contiguous_format), *nothing.clone()
    rows = _solve_rows(z, alpha if row_alpha is None else row_alpha, topk, True)
    return rows.p, *(x.clone() for x in rows[1:])


define_entmax_rows(_solve_as_operator)


def entmax_probabilities(z: Tensor, alpha: Alpha, topk: int = 0) -> Tensor:
    """The probabilities that :func:`entmax_rows` finds, ``[rows, size]``, and nothing else."""
    if not 0 < topk < z.size(-1) and solves(z, alpha):
        return _solved(z, alpha).probabilities().to(z.dtype)
    return entmax_rows(z, alpha, topk, conjugate=False).p


def row_chunks(z: Tensor) -> list[slice]:
    """Slices of the rows of ``z [rows, size]`` to work on in turn: all at once but on a CPU,
    where a chunk and its temporaries should stay in cache."""
    step = max(1, _CPU_CHUNK_ELEMENTS // max(1, z.size(-1)))
    if z.device.type != "cpu":
        step = max(1, z.size(0))
    return [slice(start, start + step) for start in range(0, z.size(0), step)]


def _solve_compiled(z: Tensor, alpha: Alpha) -> EntmaxRows:
    """Solve the rows of ``z`` by the compiled kernels."""
    solved = _solved(z, alpha)
    p = solved.probabilities().to(z.dtype)
    step = alpha.squeeze(-1) - 1 if torch.is_tensor(alpha) else alpha - 1
    tau = solved.tau + step * solved.shift
    return EntmaxRows(p, tau.float(), solved.conjugate.float(), solved.shift.float())


def _solved(z: Tensor, alpha: Alpha) -> SolvedRows:
    return solve_entmax(at_least_fp32(z).contiguous(), alpha)


def _solve_dense(z: Tensor, alpha: Alpha, conjugate: bool = True) -> EntmaxRows:
    """Solve the rows of ``z`` over all of their entries."""
    logits = at_least_fp32(z)
    if z.size(-1) == 0:
        nothing = logits.new_zeros(z.size(0))
        return EntmaxRows(z, nothing, nothing, nothing)
    maximum = _finite_maximum(logits)
    p, tau, value = _solve((logits - maximum).mul_(alpha - 1), alpha, conjugate)
    return _in_rows(p.to(z.dtype), tau, value, maximum, alpha)


def _solve_candidates(z: Tensor, alpha: Alpha, conjugate: bool = True) -> EntmaxRows:
    """Solve the rows of ``z`` over their candidates."""
    logits = at_least_fp32(z)
    maximum = _finite_maximum(logits)
    # Written so that every entry of a row that holds a NaN is a candidate.
    candidate = ~(logits < _support_floor(logits, maximum, alpha))
    count = candidate.sum(-1, keepdim=True)
    width = max(1, int(count.max()))
    filled = torch.arange(width, device=z.device) < count
    packed = torch.full_like(filled, -float("inf"), dtype=torch.float64)
    packed.masked_scatter_(filled, logits[candidate].double())  # [rows, width]
    found, tau, value = _solve((packed - maximum) * (alpha - 1), alpha, conjugate)
    p = torch.zeros_like(z, memory_format=torch.contiguous_format)
    p.masked_scatter_(candidate, found[filled].to(z.dtype))
    return _in_rows(p, tau, value, maximum, alpha)


def _in_rows(
    p: Tensor, tau: Tensor, conjugate: Optional[Tensor], maximum: Tensor, alpha: Alpha
) -> EntmaxRows:
    """What was found for logits less their maximum, for the logits; one value a row."""
    tau = (tau + (alpha - 1) * maximum).to(maximum.dtype).squeeze(-1)
    if conjugate is not None:
        conjugate = conjugate.to(maximum.dtype).squeeze(-1)
    return EntmaxRows(p, tau, conjugate, maximum.squeeze(-1))


def _support_floor(logits: Tensor, maximum: Tensor, alpha: Alpha) -> Tensor:
    """A bound below which no logit of a row is in the support, ``[rows, 1]``.

    It is the threshold for some of the row's entries: more entries can only raise it. The maxima
    of blocks hold most of the large entries, and so bring the bound near the true threshold.
    """
    width = 1 / (alpha - 1)
    # The comparison is rounded: let a few entries too many in rather than one too few.
    slack = 4 * torch.finfo(logits.dtype).eps * (maximum.abs() + width)
    blocks = logits.size(-1) // _BLOCK
    if blocks < _BLOCK or (not torch.is_tensor(alpha) and alpha > 2):  # then it costs too much
        return maximum - width - slack
    maxima = logits[:, : blocks * _BLOCK].unflatten(-1, (_BLOCK, blocks)).amax(1)
    # maxima: [rows, blocks]
    tau = _find_threshold((maxima.double() - maximum) * (alpha - 1), alpha)
    return maximum + (tau * width).to(logits.dtype) - slack


def _finite_maximum(logits: Tensor) -> Tensor:
    maximum = logits.amax(-1, keepdim=True)
    return maximum.masked_fill(torch.isneginf(maximum), 0.0)


def _solve(x: Tensor, alpha: Alpha, conjugate: bool) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """alpha-entmax of rows ``x = (alpha - 1) * (z - max(z))``: p, tau and the conjugate."""
    tau = _find_threshold(x, alpha)
    above = torch.sub(x, tau)
    if torch.is_tensor(alpha) or alpha <= 2:
        # Entries on the threshold, which it does not count, stay there.
        above = torch.where(above > 0, above - _rest_of_threshold(above, alpha), above)
    p = positive_power(above.clamp_(min=0), 1 / (alpha - 1))
    total = p.sum(-1, keepdim=True)
    # Dividing removes the last error where beta is large.
    p = p.div_(total.masked_fill(total == 0, 1.0))
    # A row without a maximum (a NaN in it) has no solution.
    tau = tau + 0 * total
    if not conjugate:
        return p, tau, None
    # H_alpha(p) + <p, z - max(z)>, with 0 * -inf = 0.
    score = torch.where(p > 0, p * x, torch.zeros_like(x)).sum(-1, keepdim=True) / (alpha - 1)
    entropy = (p - p * positive_power(p, alpha - 1)).sum(-1, keepdim=True) / (alpha * (alpha - 1))
    return p, tau, score + entropy


def _find_threshold(x: Tensor, alpha: Alpha) -> Tensor:
    """The root of ``||[x - tau]_+||_beta = 1`` in ``[-1, -size ** (1 - alpha)]``, one a row."""
    if not torch.is_tensor(alpha):
        return _halve_bracket(x, alpha) if alpha > 2 else _newton(x, alpha)
    concave = alpha > 2
    # On other devices, looking at alpha would be a synchronisation.
    if x.device.type == "cpu" and not concave.any():
        return _newton(x, alpha)
    return torch.where(concave, _halve_bracket(x, alpha), _newton(x, alpha))


def _rest_of_threshold(above: Tensor, alpha: Alpha) -> Tensor:
    """What tau lacks by its own rounding, ``[rows, 1]``; 0 above alpha = 2.

    Each entry of a large support has this error, and so the mass that is not 1 has it many times:
    to divide by the mass would make the largest entry pay for all others.
    """
    above = above.clamp(min=0)
    weight = positive_power(above, 1 / (alpha - 1) - 1)
    slope = weight.sum(-1, keepdim=True)
    rest = ((weight * above).sum(-1, keepdim=True) - 1) * (alpha - 1) / slope
    rest = rest.masked_fill(slope == 0, 0.0)  # a row of -inf alone
    return torch.where(alpha > 2, 0.0, rest) if torch.is_tensor(alpha) else rest


def _newton(x: Tensor, alpha: Alpha) -> Tensor:
    """For alpha <= 2: Newton steps from the left end."""
    beta = 1 / (alpha - 1)
    tau = torch.full_like(x[:, :1], -1.0)
    # Entries below -1 are never in the support; this spares us 0 * -inf.
    reachable = x.clamp(min=-1)
    above = torch.empty_like(x)
    for _ in range(_MAX_STEPS[x.dtype]):
        torch.sub(reachable, tau, out=above).clamp_(min=0)
        weight = positive_power(above, beta - 1)
        total = (weight * above).sum(-1, keepdim=True)
        # This is tau + (total - total^(2 - alpha)) / sum(weight) without its cancellation: both
        # terms are negative, so that a tau near 0 is as exact as one near -1.
        newton = (weight * reachable).sum(-1, keepdim=True) - positive_power(total, 2 - alpha)
        newton = newton / weight.sum(-1, keepdim=True)
        moved = newton > tau
        tau = torch.where(moved, newton, tau)
        if x.device.type == "cpu" and not moved.any():
            break
    return tau


def _halve_bracket(x: Tensor, alpha: Alpha) -> Tensor:
    """For alpha > 2, where each entry is a kink of infinite slope: bisection.

    At the geometric mean, for the root may be many orders of magnitude nearer to 0 than -1 is.
    """
    low = torch.full_like(x[:, :1], -1.0)
    high = (low * x.size(-1) ** (1 - alpha)).clamp(max=-torch.finfo(x.dtype).tiny)
    for _ in range(_MAX_STEPS[x.dtype]):
        middle = -(low.neg().sqrt() * high.neg().sqrt())
        too_low = positive_power((x - middle).clamp(min=0), 1 / (alpha - 1)).sum(-1, True) >= 1
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return low


def positive_power(x: Tensor, exponent: Alpha) -> Tensor:
    """``x ** exponent`` where ``x > 0``, and 0 where ``x = 0``, whatever the exponent's sign.

    NaN stays NaN, though ``pow`` says that NaN ** 0 = 1. The exponents of alpha = 1.5 and 2 are
    taken without ``pow``.
    """
    if not torch.is_tensor(exponent):
        if exponent == 0:
            return x.clamp(max=1).ceil()
        if exponent == 1:
            return x
        if exponent == 2:
            return x * x
        if exponent == 0.5:
            return x.sqrt()
        if exponent > 0:
            return x.pow(exponent)
    return torch.where(x > 0, x.pow(exponent), x)
