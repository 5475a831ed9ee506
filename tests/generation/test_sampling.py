"""--sampling draws whole sentences from the sparse distribution itself, p or p / sum p."""

from __future__ import annotations

import math

import pytest
import torch

from automata import EOS, FIRST_WORD, Script
from table_options import as_triples, build_generator, decode

A, B, C = range(FIRST_WORD, FIRST_WORD + 3)
# The weights of a step sum to 1.8, 1, 0.5 or 2, as alpha-ReLU's may; other tokens have weight 0.
FOLLOW = {
    (): {A: 0.9, B: 0.6, C: 0.3},
    (A,): {EOS: 0.7, B: 0.3},
    (A, B): {EOS: 0.5},
    (B,): {EOS: 0.5},
    (C,): {A: 0.125, EOS: 0.375},
    (C, A): {EOS: 2.0},
}
EXACT = {(A, EOS): 0.35, (A, B, EOS): 0.15, (B, EOS): 1 / 3, (C, EOS): 0.125, (C, A, EOS): 1 / 24}


def sample(follow: dict, sentences: int = 250, **options):
    table = Script(follow, words=12)
    generator = build_generator(table, sampling=True, beam=8, max_len_b=4, **options)
    torch.manual_seed(1)
    return [triple for hypos in decode(generator, [A] * sentences) for triple in as_triples(hypos)]


def share(found, tokens) -> float:
    return sum(triple[1] == tokens for triple in found) / len(found)


@pytest.mark.parametrize("normalization", ["none", "sum"])
def test_sentences_are_drawn_by_their_probabilities(normalization):
    found = sample(FOLLOW, score_normalization=normalization)
    assert len(found) == 2000 and {tokens for _, tokens, _ in found} == set(EXACT)
    for tokens, probability in EXACT.items():
        deviation = math.sqrt(probability * (1 - probability) / 2000)
        assert abs(share(found, tokens) - probability) < 4 * deviation


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"sampling_topk": 2}, {A: 0.6, B: 0.4}),
        # of p / sum p: 0.5, 0.33, 0.17
        ({"sampling_topp": 0.4}, {A: 1.0}),
        ({"sampling_topp": 0.6}, {A: 0.6, B: 0.4}),
        ({"sampling_topp": 0.9}, {A: 0.5, B: 1 / 3, C: 1 / 6}),
        ({"sampling_topp": 0.6, "score_normalization": "sum"}, {A: 0.6, B: 0.4}),
    ],
)
def test_truncation_is_of_the_distribution(options, first):
    found = sample({**FOLLOW, (A,): {EOS: 0.5}, (C,): {EOS: 3.0}}, **options)
    for token, probability in first.items():
        deviation = math.sqrt(probability * (1 - probability) / 2000)
        assert abs(share(found, (token, EOS)) - probability) <= 4 * deviation
    assert sum(share(found, (token, EOS)) for token in first) == pytest.approx(1)


@pytest.mark.parametrize("topp", [-1.0, 0.9])
def test_scores_are_those_of_the_weights(topp):
    scores = {tokens: score for score, tokens, _ in sample(FOLLOW, 20, sampling_topp=topp)}
    assert scores[A, EOS] == pytest.approx(math.log(0.9 * 0.7) / 2, abs=1e-5)
    assert scores[B, EOS] == pytest.approx(math.log(0.6 * 0.5) / 2, abs=1e-5)
