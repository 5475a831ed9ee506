"""Repetition and diversity, against the definitions written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.measure.text.diversity import (
    distinct,
    repeated_ngrams,
    repetition,
    summarize,
)

SAMPLES = st.lists(st.sampled_from("abcdefgh"), max_size=40)


@given(SAMPLES, st.integers(1, 12))
def test_a_token_is_repeated_if_one_of_those_before_it_is_the_same(tokens, window):
    repeated = [
        token in tokens[max(0, place - window) : place] for place, token in enumerate(tokens)
    ]
    assert repetition(tokens, window) == (sum(repeated) / len(tokens) if tokens else 0)


@given(SAMPLES, st.integers(1, 4))
def test_ngrams_are_counted_once_or_as_often_as_they_are_there(tokens, order):
    ngrams = [tuple(tokens[k : k + order]) for k in range(len(tokens) - order + 1)]
    assert distinct(tokens, order) == (len(set(ngrams)) / len(tokens) if tokens else 0)
    assert repeated_ngrams(tokens, order) == (1 - len(set(ngrams)) / len(ngrams) if ngrams else 0)


def test_repetition_is_of_all_tokens_in_each_window_of_the_papers():
    # In one sample each, a token comes back after a window, and after one token more.
    gaps = [gap for window in (16, 32, 128, 512) for gap in (window, window + 1)]
    samples = [["a", *map(str, range(gap - 1)), "a"] for gap in gaps]
    found = summarize([*samples, []])
    assert found["tokens"] == sum(gaps) + len(gaps)
    repeated = {16: 1, 32: 3, 128: 5, 512: 7}
    shares = {f"repetition_{window}": n / found["tokens"] for window, n in repeated.items()}
    shares["repetition"] = sum(shares.values()) / 4
    assert {name: found[name] for name in shares} == pytest.approx(shares)


def test_the_rest_is_a_mean_of_samples():
    found = summarize([["a", "a", "b"], ["c"], [], ["d"] * 6])
    assert (found["samples"], found["tokens"], found["vocabulary"]) == (4, 10, 4)
    # Samples that are empty, or too short for an n-gram, do not count.
    assert found["distinct_1"] == pytest.approx((2 / 3 + 1 + 1 / 6) / 3)
    assert found["seq_rep_4"] == pytest.approx(2 / 3)
    empty = summarize([[]])
    assert (empty["repetition"], empty["seq_rep_4"], empty["distinct_1"]) == (0, 0, 0)
