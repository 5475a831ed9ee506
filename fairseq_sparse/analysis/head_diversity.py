"""How differently the heads of a layer attend: the diversity of Correia, Niculae, Martins 2019.

"Adaptively Sparse Transformers" measures it by the generalised Jensen-Shannon divergence of the
heads' distributions over the keys, for each query; a layer has the mean over its queries. It is in
nats: 0 where all heads are the same, and at most the logarithm of the number of heads, which heads
reach that share no key.

Weights that do not sum to 1 are made distributions first, as in ReLA (Zhang, Titov, Sennrich 2021,
"Sparse Attention with Linear Units", Fig. 5 and Table 6), by a softmax with a temperature.
"""

from typing import Optional

import torch
from torch import Tensor

from fairseq_sparse.ops.precision import at_least_fp32

# Those of ReLA's Table 6; the first is that of Fig. 5.
TEMPERATURES = (1.0, 0.5, 0.25, 0.1)


def jensen_shannon(p: Tensor) -> Tensor:
    """The generalised Jensen-Shannon divergence of distributions, in nats.

    It is ``H(mean of the p) - mean of H(p)`` with Shannon's entropy ``H``.

    Args:
        p: ``[heads, ..., keys]``; a row that sums to 1 is the distribution of a head.

    Returns:
        ``[...]``, from 0 to the logarithm of the number of heads.
    """
    divergence = _entropy(p.mean(0)) - _entropy(p).mean(0)
    return divergence.clamp(min=0)  # equal heads differ by rounding


def as_distributions(weights: Tensor, hidden: Tensor, temperature: float) -> Tensor:
    """Weights of any size and sign as distributions over the keys and one dummy position.

    A query whose weights are all 0 ("null attention") gives everything to the dummy. Any other has
    ``softmax(weights / temperature)`` over the keys that it sees, and 0 on the dummy. So a weight
    of 0 beside others keeps some probability, and weights below 0 (of GELU and leaky ReLU) have
    less than those: the order of the weights is kept.

    Args:
        weights: ``[heads, batch, queries, keys]``.
        hidden: boolean, true for keys that a query may not see; broadcasts with
            ``[batch, queries, keys]``.
        temperature: above 0; the lower, the closer to a one-hot of the largest weight.

    Returns:
        ``[heads, batch, queries, keys + 1]`` in fp32 or better, the dummy last.
    """
    weights = at_least_fp32(weights).masked_fill(hidden, 0)
    null = weights.abs().sum(-1, keepdim=True) == 0
    scores = (weights / temperature).masked_fill(hidden, -torch.inf)
    # Over rows of some dozen keys several times as fast as torch.softmax on a CPU.
    p = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return torch.cat([p.masked_fill(null, 0), null.to(p)], dim=-1)


def sum_of_divergences(
    weights: Tensor, hidden: Tensor, padding: Tensor, temperature: Optional[float] = None
) -> Tensor:
    """The Jensen-Shannon divergences of the heads, added up over the queries.

    Args:
        weights: ``[heads, batch, queries, keys]``.
        hidden: boolean, true for keys that a query may not see; broadcasts with
            ``[batch, queries, keys]``.
        padding: ``[batch, queries]``, boolean, true for queries that are padding.
        temperature: of :func:`as_distributions`; None for weights that sum to 1.

    Returns:
        A number in fp64. Padding adds nothing, and neither does a query that sees no key at all,
        in which the heads are the same.
    """
    if temperature is None:
        p = at_least_fp32(weights).masked_fill(hidden, 0)
    else:
        p = as_distributions(weights, hidden, temperature)
    return jensen_shannon(p).masked_fill(padding, 0).sum(dtype=torch.float64)


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
