"""Diversity of the heads of a layer, as in Correia, Niculae, Martins 2019.

"Adaptively Sparse Transformers" measures it by the generalised Jensen-Shannon divergence of the
heads' distributions over the keys, for each query; a layer has the mean over its queries. It is in
nats: 0 if all heads are the same, and at most the logarithm of the number of heads, reached by
heads that share no key.

Weights that do not sum to 1 are first turned into distributions, as in ReLA (Zhang, Titov, Sennrich
2021, "Sparse Attention with Linear Units", Fig. 5 and Table 6): by the softmax of the weights,
raised to an exponent, which ReLA calls a temperature τ. A lower exponent gives a smoother
distribution. In the limit every nonzero weight counts as 1, so that only the places of the zeros
matter.
"""

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.precision import at_least_fp32

# The exponents of ReLA's Table 6.
EXPONENTS = (1.0, 0.5, 0.25, 0.1)


def jensen_shannon(p: Tensor) -> Tensor:
    """Return the generalised Jensen-Shannon divergence of distributions, in nats.

    It is ``H(mean of the p) - mean of H(p)`` with Shannon's entropy ``H``.

    Args:
        p: ``[heads, ..., keys]``; a row that sums to 1 is the distribution of a head.

    Returns:
        ``[...]``, from 0 to the logarithm of the number of heads.
    """
    divergence = _entropy(p.mean(0)) - _entropy(p).mean(0)
    return divergence.clamp(min=0)  # equal heads differ by rounding


def as_distributions(weights: Tensor, masked: Tensor, exponent: float) -> Tensor:
    """Turn weights into distributions over the keys and one dummy position.

    A query whose weights are all 0 ("null attention") gives everything to the dummy. Any other has
    ``softmax(weights ** exponent)`` over the keys that it sees, and 0 on the dummy. A weight of
    0 stays 0 under the power, so it keeps some probability, less than any weight above 0.

    Args:
        weights: ``[heads, batch, queries, keys]``.
        masked: boolean, true for keys that a query may not see; broadcasts with
            ``[batch, queries, keys]``.
        exponent: above 0; the lower, the smoother. Weights below 0, which GELU and leaky ReLU
            give, can only have exponent 1.

    Returns:
        ``[heads, batch, queries, keys + 1]`` in fp32 or better, the dummy last.

    Raises:
        ValueError: a weight is below 0, and the exponent is not 1.
    """
    weights = at_least_fp32(weights).masked_fill(masked, 0)
    null = weights.abs().sum(-1, keepdim=True) == 0
    if exponent != 1:
        if (weights < 0).any():
            raise ValueError(
                f"weights below 0 cannot be raised to {exponent:g}: measure the diversity of "
                "GELU and leaky ReLU with exponent 1"
            )
        weights = weights.pow(exponent)
    scores = weights.masked_fill(masked, -torch.inf)
    # Several times as fast as torch.softmax on a CPU, for rows of a few dozen keys.
    p = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return torch.cat([p.masked_fill(null, 0), null.to(p)], dim=-1)


def sum_of_divergences(
    weights: Tensor, masked: Tensor, padding: Tensor, exponent: Optional[float] = None
) -> Tensor:
    """Add up the Jensen-Shannon divergences of the heads over the queries.

    Args:
        weights, masked, padding: as for :func:`~.attention_sinks.sum_of_shares`.
        exponent: of :func:`as_distributions`; None for weights that sum to 1.

    Returns:
        A number in fp64. Padding adds nothing, and neither does a query that sees no key, because
        its heads are all the same.
    """
    if exponent is None:
        p = at_least_fp32(weights).masked_fill(masked, 0)
    else:
        p = as_distributions(weights, masked, exponent)
    return jensen_shannon(p).masked_fill(padding, 0).sum(dtype=torch.float64)


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
