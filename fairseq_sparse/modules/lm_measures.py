"""Measures of how well distributions that can be sparse predict a text, by Martins, Marinho and
Martins, *Sparse Text Generation* (EMNLP 2020)."""

import math

import torch
from torch import Tensor

# The default of the authors' evaluation script.
DEFAULT_EPSILON = 1e-6


def lm_measures(p: Tensor, target: Tensor, epsilon: float) -> dict[str, Tensor]:
    """Return the measures of each row.

    With ``p`` the distribution, ``y`` the target and ``V`` the size of the vocabulary:

    - ``sparsemax_score``: ``p_y + (1 - sum p^2) / 2``, that is, 1 minus the smallest sparsemax loss
      among the logits that sparsemax maps to ``p``; in [0, 1], 1 if ``p_y = 1``;
    - ``js_divergence``: the Jensen-Shannon divergence of ``p`` and the one-hot ``e_y`` in nats; in
      [0, log 2], 0 if ``p_y = 1``;
    - ``eps_nll``: ``-log((p_y + eps) / (1 + eps V))``. The exponential of its mean is the
      eps-perplexity.

    Weights that do not sum to 1, as in alpha-ReLU, are divided by their sum. A row of zeros gets
    the measures of a prediction that is certain and wrong.

    Args:
        p: non-negative weights, ``[rows, V]``.
        target: ``[rows]``.
        epsilon: >= 0; with 0, ``eps_nll`` is infinite where ``p_y`` is 0.

    Returns:
        Tensors ``[rows]`` in float64: the measures above, and ``gold``, which is ``p_y``.
    """
    total = p.sum(-1, dtype=torch.float64)
    has_mass = total > 0
    divisor = total.masked_fill(~has_mass, 1.0)
    gold = p.gather(-1, target.unsqueeze(-1)).squeeze(-1).double() / divisor
    squares = torch.linalg.vector_norm(p, dim=-1).double().div(divisor).square()
    entropy = (has_mass.double() - squares) / 2  # the Gini entropy
    divergence = math.log(2) + (torch.xlogy(gold, gold) - (1 + gold) * gold.log1p()) / 2
    return {
        "gold": gold,
        "sparsemax_score": gold + entropy,
        "js_divergence": divergence,
        "eps_nll": math.log1p(epsilon * p.size(-1)) - (gold + epsilon).log(),
    }


def best_epsilon(gold: Tensor, vocabulary: int) -> float:
    """Return the epsilon with the smallest eps-perplexity.

    Smoothing by epsilon mixes ``p`` with the uniform distribution, whose weight is
    ``eps V / (1 + eps V)``. The mean of ``-log p`` is a convex function of this weight.

    Args:
        gold: probabilities of the target tokens, ``[rows]``.
        vocabulary: its size ``V``.

    Returns:
        Epsilon; 0 if any smoothing harms, infinite if the uniform distribution is best.
    """
    excess = gold.double() * vocabulary - 1  # V (p_y - 1 / V)
    low, high = 0.0, 1.0
    for _ in range(100):
        weight = (low + high) / 2
        slope = (excess / (1 + (1 - weight) * excess)).sum()
        low, high = (weight, high) if slope < 0 else (low, weight)
    if low == 0:
        return 0.0
    return low / (vocabulary * (1 - low)) if low < 1 - 1e-12 else math.inf
