"""Mappings from logits to sparse probabilities: softmax, sparsemax, entmax, alpha-ReLU.

alpha-entmax (Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models", Eq. 8-10):

    entmax_alpha(z) = argmax_{p in simplex} <p, z> + H_alpha(p)
                    = [(alpha - 1) z - tau(z)]_+ ** (1 / (alpha - 1)),

where ``H_alpha(p) = sum(p - p ** alpha) / (alpha (alpha - 1))`` is Tsallis' entropy and tau(z) the
one threshold for which the result sums to 1. alpha -> 1 is softmax, alpha = 2 is sparsemax.

alpha-ReLU (Tezekbayev, Nikoulina, Galle, Assylbekov, "Speeding Up Entmax", Eq. 2) is the same with
a threshold that is a constant of the model. Each coordinate is mapped by itself: there is no
maximum, no sort and no normaliser, and the result is not a distribution, though training with its
loss brings the sum near 1 (self-normalisation).

Probabilities have the dtype of the logits, are computed in fp32 or better, and are exactly 0
outside the support; logarithms and thresholds are fp32 or better. NaN stays NaN. The functions that
normalise give a row of zeros where every logit is -inf, and of NaN where one is NaN or +inf.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.ops import operators
from fairseq_sparse.ops.checks import Tau, check_algorithm, check_alpha, check_logits, check_tau
from fairseq_sparse.ops.precision import at_least_fp32, wide
from fairseq_sparse.ops.reference import rows
from fairseq_sparse.ops.reference.thresholds import Alpha

# The k of the papers' experiments: how many of the largest logits ``partial`` begins with.
TOPK = 100


def softmax(z: Tensor, dim: int = -1) -> Tensor:
    """Apply softmax, ``argmax_p <p, z> + H_1(p)``; a row of zeros where every logit is -inf.

    Args:
        z: logits of any shape and floating dtype.
        dim: the dimension that is normalised.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        TypeError: ``z`` is not floating point.
    """
    check_logits(z)
    logits = at_least_fp32(z)
    masked = torch.isneginf(logits).all(dim, keepdim=True)
    # Both fills matter: the first keeps NaN out of the gradient, the second gives zeros.
    p = torch.softmax(logits.masked_fill(masked, 0.0), dim).masked_fill(masked, 0.0)
    return p.to(z.dtype)


def sparsemax(z: Tensor, dim: int = -1, algorithm: str = "newton", topk: int = TOPK) -> Tensor:
    """Apply sparsemax (Martins & Astudillo 2016): project ``z`` onto the simplex.

    This is ``entmax(z, alpha=2)``; for the arguments see there.
    """
    return _entmax(z, 2.0, dim, algorithm, topk, log=False)


def entmax15(z: Tensor, dim: int = -1, algorithm: str = "newton", topk: int = TOPK) -> Tensor:
    """Apply 1.5-entmax, ``p = [z / 2 - tau]_+ ** 2``.

    This is ``entmax(z, alpha=1.5)``; for the arguments see there.
    """
    return _entmax(z, 1.5, dim, algorithm, topk, log=False)


def entmax(
    z: Tensor, alpha: Alpha, dim: int = -1, algorithm: str = "newton", topk: int = TOPK
) -> Tensor:
    """Apply alpha-entmax for alpha >= 1, see the docstring of this module.

    Args:
        z: logits of any shape and floating dtype.
        alpha: a number, or a tensor that broadcasts over ``z`` with size 1 in ``dim`` (one alpha
            per row). A tensor gets its gradient (Correia, Niculae, Martins 2019, "Adaptively Sparse
            Transformers", Prop. 2). On a GPU, where checking the tensor would cause a stall, a row
            whose alpha is 1 or less is NaN. The number 1 is softmax. Near 1 p loses digits: at
            1.001, the smallest number for fp32, it is exact to 1e-5.
        dim: the dimension that is normalised.
        algorithm: how the threshold is found; the result is the same. ``newton`` is a search
            without a sort, and the only one with kernels. The papers' are ``bisect`` (S2S,
            Algorithm 1), ``sort`` (Algorithm 2) and ``partial``, which sorts the ``topk`` largest
            logits, and twice as many where these do not hold the support. The last two take an
            alpha of 1.5 or 2.
        topk: how many logits ``partial`` begins with.

    Returns:
        Probabilities in the shape and dtype of ``z``.

    Raises:
        ValueError: ``alpha`` is a number below 1, above 1e6 or, unless ``z`` is fp64, between 1 and
            1.001, a tensor of a wrong shape or, on a CPU, a tensor with a value of 1 or less; the
            algorithm is unknown or does not take this alpha, or ``topk`` is below 1.
        TypeError: ``z`` is not floating point, or ``alpha`` is neither a number nor a tensor.
    """
    if not torch.is_tensor(alpha) and alpha == 1:
        check_algorithm(algorithm, 1.0, topk)
        return softmax(z, dim)
    return _entmax(z, alpha, dim, algorithm, topk, log=False)


def log_entmax(z: Tensor, alpha: float, algorithm: str = "newton", topk: int = TOPK) -> Tensor:
    """Return the logarithm of alpha-entmax over the last dimension, exactly -inf where p is 0.

    The gradient of an entry that is -inf counts as 0. With ``alpha=1`` this is ``F.log_softmax``,
    which passes such gradients on, and gives a row of NaN where every logit is -inf. For the
    arguments and errors see :func:`entmax`.

    Returns:
        Log-probabilities in the shape of ``z``, fp32 or better.
    """
    if not torch.is_tensor(alpha) and alpha == 1:
        check_logits(z)
        check_algorithm(algorithm, 1.0, topk)
        return F.log_softmax(at_least_fp32(z), dim=-1)
    return _entmax(z, alpha, -1, algorithm, topk, log=True)


def alpha_relu(z: Tensor, tau: Tau, alpha: float = 1.5) -> Tensor:
    """Apply alpha-ReLU, see the docstring of this module.

    Args:
        z: logits of any shape and floating dtype; computed in fp32 or better.
        tau: the threshold of ``(alpha - 1) * z``, a finite number or a tensor that broadcasts to
            the shape of ``z``. No gradient flows to it.
        alpha: a number > 1.

    Returns:
        Non-negative weights in the shape and dtype of ``z``, exactly 0 where
        ``(alpha - 1) z <= tau``. NaN stays NaN.

    Raises:
        ValueError: ``alpha`` is <= 1 or not finite, or ``tau`` is a number that is not finite or a
            tensor that does not broadcast.
        TypeError: ``z`` is not floating point, or ``alpha`` or ``tau`` is not a number.
    """
    return rows.alpha_relu(z, _checked_tau(tau, z), check_alpha(alpha, z.dtype), False)


def log_alpha_relu(z: Tensor, tau: Tau, alpha: float = 1.5) -> Tensor:
    """Return the logarithm of alpha-ReLU, exactly -inf where that is 0, fp32 or better.

    The gradient of an entry that is -inf counts as 0. For the arguments and errors see
    :func:`alpha_relu`.
    """
    return rows.alpha_relu(z, _checked_tau(tau, z), check_alpha(alpha, z.dtype), True)


def entmax_threshold(z: Tensor, alpha: float = 1.5, dim: int = -1) -> Tensor:
    """Return the threshold tau(z) of alpha-entmax: with it the probabilities sum to 1.

    Returns:
        A tensor of the shape of ``z`` without ``dim``, fp32 (fp64 for fp64 logits). It has
        no gradient.

    Raises:
        ValueError: ``alpha`` is <= 1 or not finite: softmax has no threshold.
        TypeError: ``z`` is not floating point.
    """
    check_logits(z)
    if z.dim() == 0:
        return entmax_threshold(z[None], alpha)
    logits = z.detach().movedim(dim, -1)
    tau = entmax_and_threshold(as_rows(logits), check_alpha(alpha, z.dtype))[1]
    return tau.view(logits.shape[:-1])


def _entmax(z: Tensor, alpha: Alpha, dim: int, algorithm: str, topk: int, log: bool) -> Tensor:
    check_logits(z)
    check_algorithm(algorithm, alpha, topk)
    if z.dim() == 0:
        return _entmax(z[None], alpha, 0, algorithm, topk, log)[0]
    operators.share_rows(z)
    row_alpha = None
    if torch.is_tensor(alpha):
        row_alpha = as_rows(_alpha_of_rows(alpha, z, dim).movedim(dim, -1))
        alpha = 0.0
    else:
        alpha = check_alpha(alpha, z.dtype)
    if z.dim() == 2 and dim == -1:
        return rows.entmax(z, row_alpha, alpha, algorithm, topk, log)[0]
    logits = z.movedim(dim, -1)
    p, _ = rows.entmax(as_rows(logits), row_alpha, alpha, algorithm, topk, log)
    return p.view(logits.shape).movedim(-1, dim)


def _alpha_of_rows(alpha: Tensor, z: Tensor, dim: int) -> Tensor:
    """Return one alpha per row, in the shape of ``z`` with size 1 in ``dim``, fp32 or better."""
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must be floating point, got {alpha.dtype}")
    z.size(dim)  # raises IndexError, as for a number alpha
    shape = list(z.shape)
    shape[dim] = 1
    try:
        return at_least_fp32(alpha).expand(shape)  # in half precision 1 / (alpha - 1) is far off
    except RuntimeError as error:
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} does not broadcast to {tuple(shape)}, "
            f"one value for each row of z {tuple(z.shape)} along dimension {dim}"
        ) from error


def _checked_tau(tau: Tau, z: Tensor) -> Tensor:
    """Return tau in the shape of ``z``, or without dimensions if it is one number."""
    check_logits(z)
    check_tau(tau)
    if not torch.is_tensor(tau):
        return torch.full((), tau, dtype=wide(z.dtype), device=z.device)
    tau = tau.to(wide(z.dtype))
    if tau.numel() == 1:
        return tau.reshape(())
    try:
        return tau.expand(z.shape)
    except RuntimeError as error:
        raise ValueError(
            f"tau of shape {tuple(tau.shape)} does not broadcast to that of z, {tuple(z.shape)}"
        ) from error


def as_rows(logits: Tensor) -> Tensor:
    """Return ``[..., size]`` as ``[rows, size]``, also where size is 0."""
    return logits.reshape(logits.shape[:-1].numel(), logits.size(-1))


def entmax_and_threshold(
    z: Tensor, alpha: float, algorithm: str = "newton", topk: int = TOPK
) -> tuple[Tensor, Tensor]:
    """Return alpha-entmax of rows ``[rows, V]`` and their thresholds ``[rows]``, without gradients.

    For the arguments see :func:`entmax`.
    """
    return rows.entmax_without_gradient(z.detach(), None, alpha, algorithm, topk, False)
