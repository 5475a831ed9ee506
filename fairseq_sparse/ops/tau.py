"""Three ways to find the constant threshold tau of alpha-ReLU before training.

*data*: the mean threshold of alpha-entmax on logits of the untrained model.
*formula*: Lemmas 2 and 3 of Tezekbayev et al., "Speeding Up Entmax" (SUE), for alpha = 1.5.
*weights*: the average threshold of alpha-entmax for logits whose spread follows from the output
layer's own weights, for any alpha and any initialisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from torch import Tensor

from fairseq_sparse.ops.checks import check_alpha
from fairseq_sparse.ops.mappings import entmax_threshold

_NORMAL = NormalDist()
# The tail of the standard normal beyond this many standard deviations is left out.
_TAIL = 12.0
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(256)


def tau_from_logits(z: Tensor, alpha: float = 1.5) -> Tensor:
    """Return the mean threshold tau(z) of alpha-entmax over the rows of ``z`` (SUE 3.1).

    Args:
        z: logits ``[..., V]``, at least one row.
        alpha: a number > 1.

    Returns:
        A tensor with one element, fp32 (fp64 for fp64 logits); no synchronisation.
    """
    return entmax_threshold(z, alpha).mean()


def tau_from_weights(weight: Tensor, alpha: float = 1.5, mean_square: float = 1.0) -> float:
    """Return tau for logits ``weight @ h`` of untrained weights.

    Such logits are about N(0, sigma^2), with ``sigma^2`` the mean squared norm of the rows of
    ``weight`` times the mean square of h, and tau is the root of the mean-field equation

        V * E[[(alpha - 1) sigma g - tau]_+ ** (1 / (alpha - 1))] = 1,    g ~ N(0, 1).

    Args:
        weight: the untrained output layer ``[V, d]``.
        alpha: a number > 1.
        mean_square: of the features h; layer normalisation makes it 1.

    Raises:
        ValueError: ``alpha`` is out of range, ``weight`` is empty, or a number is not finite.
    """
    check_alpha(alpha)
    if weight.dim() != 2 or weight.numel() == 0:
        raise ValueError(f"weight must be a matrix [V, d], got shape {tuple(weight.shape)}")
    variance = logit_variance(weight, mean_square)
    if not math.isfinite(variance):
        raise ValueError("weight or mean_square holds values that are not finite")
    return mean_field_tau(math.sqrt(variance), weight.size(0), alpha)


def logit_variance(weight: Tensor, mean_square: float) -> float:
    """Return the ``sigma^2`` of :func:`tau_from_weights`."""
    return float(weight.detach().double().pow(2).sum(-1).mean()) * mean_square


def mean_field_tau(sigma: float, vocab_size: int, alpha: float = 1.5) -> float:
    """Return the root tau of the mean-field equation of :func:`tau_from_weights`."""
    beta = 1 / (alpha - 1)
    scale = (alpha - 1) * sigma
    # Below this tau a single logit at the mean already has p >= 1 / V; far above the largest
    # logit that can be expected no mass is left.
    low = -(vocab_size ** (1 - alpha)) - scale * _TAIL
    high = scale * (_TAIL + math.sqrt(beta))
    return _bisect(lambda tau: _log_mass(tau, scale, beta) + math.log(vocab_size), low, high)


def _log_mass(tau: float, scale: float, beta: float) -> float:
    """Return ``log E[[scale g - tau]_+ ** beta]`` by Gauss-Legendre quadrature, -inf for 0."""
    if scale == 0:
        return beta * math.log(-tau) if tau < 0 else -math.inf
    start = max(tau / scale, -_TAIL)
    stop = max(start, 0.0) + _TAIL + math.sqrt(beta)
    # Cubed nodes: dense near the start, where the integrand behaves like a power.
    unit = (_NODES + 1) / 2
    g = start + (stop - start) * unit**3
    log_weight = np.log(_NODE_WEIGHTS / 2 * 3 * unit**2 * (stop - start))
    log_density = -(g**2) / 2 - math.log(2 * math.pi) / 2
    with np.errstate(divide="ignore"):
        log_power = beta * np.log(np.maximum(scale * g - tau, 0.0))
    terms = log_weight + log_density + log_power
    peak = float(terms.max())
    return peak + math.log(float(np.exp(terms - peak).sum())) if peak > -math.inf else peak


def tau_from_formula(
    d_model: int, vocab_size: int, sigma2: float | None = None, alpha: float = 1.5
) -> float:
    """Return tau by Lemma 2 of SUE for logits N(0, sigma2): ``(sigma / 2) * Phi^-1(1 - p*)``.

    Args:
        d_model: the width d of the features.
        vocab_size: the number of classes V.
        sigma2: the variance of the logits; by default Lemma 3's ``2 d / (d + V)``, which holds
            for output weights drawn Xavier-uniform. fairseq draws them N(0, 1 / d), with variance
            1: :func:`tau_from_weights` takes that into account.
        alpha: must be 1.5, the only alpha that the lemma covers.

    Raises:
        ValueError: ``alpha`` is not 1.5, or a size or the variance is out of range.
    """
    if alpha != 1.5:
        raise ValueError(
            f"the formula for tau holds for alpha = 1.5 alone, got {alpha}; "
            "use tau_from_weights (--output-tau weights), which holds for any alpha"
        )
    if d_model < 1 or vocab_size < 3:
        raise ValueError(f"need d_model >= 1 and vocab_size >= 3, got {d_model}, {vocab_size}")
    if sigma2 is None:
        sigma2 = xavier_variance(d_model, vocab_size)
    if not 0 < sigma2 < math.inf:
        raise ValueError(f"sigma2 must be a positive number, got {sigma2}")
    p_star = expected_support_share(vocab_size, sigma2)
    return math.sqrt(sigma2) / 2 * _upper_quantile(p_star)


def xavier_variance(d_model: int, vocab_size: int) -> float:
    """Return the variance of logits of Xavier-uniform weights (SUE, Lemma 3)."""
    return 2 * d_model / (d_model + vocab_size)


def expected_support_share(vocab_size: int, sigma2: float) -> float:
    """Return p* of Lemma 2, the share of the vocabulary in the support of 1.5-entmax.

    With t = Phi^-1(1 - p) and g standard normal, p* solves

        p V (sigma2 / 4) E[(g - t)^2 | t < g < Phi^-1(1 - eps)] = 1,    eps = 1 / V.
    """
    eps = 1 / vocab_size
    top = _upper_quantile(eps)

    def residual(p: float) -> float:
        t = _upper_quantile(p)
        # Partial moments of g between t and top.
        first = _NORMAL.pdf(t) - _NORMAL.pdf(top)
        second = p + t * _NORMAL.pdf(t) - eps - top * _NORMAL.pdf(top)
        square = (second - 2 * t * first + t * t * (p - eps)) / (p - eps)
        return 1 - p * vocab_size * sigma2 / 4 * square

    # Logits too flat for the lemma: the whole vocabulary is in the support.
    largest = 1 - 1e-9
    if residual(largest) > 0:
        raise ValueError(
            f"the formula for tau has no solution for {vocab_size} classes and logits of variance "
            f"{sigma2:.3g}; use tau_from_weights (--output-tau weights)"
        )
    return _bisect(residual, eps * (1 + 1e-9), largest)


def _upper_quantile(p: float) -> float:
    return -_NORMAL.inv_cdf(p)


def _bisect(decreasing: Callable[[float], float], low: float, high: float) -> float:
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if decreasing(middle) > 0 else (low, middle)
    return middle
