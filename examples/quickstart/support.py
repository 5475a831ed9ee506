"""Compare the support of a model with the tokens that can follow each prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """A prefix of correct translations, and the truth about the next token.

    Attributes:
        target: number of the first translation that has this prefix.
        position: length of the prefix in tokens.
        following: the correct next tokens with their probabilities, which sum to 1.
    """

    target: int
    position: int
    following: dict[int, float]


def steps_of(targets: Sequence[tuple[Sequence[int], float]]) -> list[Step]:
    """Return the inner nodes of the trie of some translations: every prefix, once.

    Args:
        targets: tokens, EOS at the end, and probability of each translation.

    Returns:
        The steps, ordered by ``target`` and then ``position``.
    """
    following: dict[tuple[int, ...], dict[int, float]] = {}
    places = {}
    for number, (tokens, probability) in enumerate(targets):
        for position, token in enumerate(tokens):
            prefix = tuple(tokens[:position])
            places.setdefault(prefix, (number, position))
            masses = following.setdefault(prefix, {})
            masses[token] = masses.get(token, 0.0) + probability
    return [Step(*places[prefix], _scaled(masses)) for prefix, masses in following.items()]


def _scaled(masses: dict[int, float]) -> dict[int, float]:
    total = sum(masses.values())
    return {token: mass / total for token, mass in masses.items()}


def compare(log_p: Tensor, steps: Sequence[Step]) -> dict[str, Tensor]:
    """Compare the probabilities of a model with the truth, step by step.

    Args:
        log_p: the model's log-probabilities of the next token, ``[steps, V]``, -inf where the
            probability is 0. Rows that do not sum to 1 (alpha-ReLU) are scaled to do so, but a row
            without any probability stays as it is.
        steps: the truth.

    Returns:
        fp64 tensors ``[steps]``, NaN where ``log_p`` has a NaN: ``support_exact`` (1 where the
        tokens of non-zero probability are exactly the correct ones, else 0), ``support_covers`` (1
        where all correct tokens are among them), ``wrong_mass`` (probability of the other tokens),
        ``distance`` (total variation from the truth: the probability that the correct tokens lack),
        and the numbers of tokens ``support`` and ``correct``.
    """
    entries = [(row, *item) for row, step in enumerate(steps) for item in step.following.items()]
    rows, tokens, masses = (list(column) for column in zip(*entries, strict=True))
    truth = torch.zeros_like(log_p)
    truth[rows, tokens] = torch.tensor(masses, device=log_p.device, dtype=log_p.dtype)
    correct, support = truth > 0, log_p != -torch.inf
    p = log_p.exp()
    p = p / p.sum(1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
    values = {
        "support_exact": (support == correct).all(1),
        "support_covers": (support | ~correct).all(1),
        "wrong_mass": p.masked_fill(correct, 0.0).sum(1),
        "distance": (truth - p).clamp(min=0.0).sum(1),
        "support": support.sum(1),
        "correct": correct.sum(1),
    }
    nan = log_p.isnan().any(1)
    return {name: value.double().masked_fill(nan, torch.nan) for name, value in values.items()}
