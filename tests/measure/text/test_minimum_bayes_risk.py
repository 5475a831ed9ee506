"""Minimum Bayes risk decoding: utilities equal sacreBLEU's, and the best sample is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
from hypothesis import example, given
from hypothesis import strategies as st

from fairseq_sparse.measure.text.minimum_bayes_risk import bleu, chrf, pairwise, rank

# Repeated letters and words give repeated n-grams, short texts none. There is also punctuation,
# which sacreBLEU splits off, and any Unicode, including its line separators.
TEXTS = st.one_of(
    st.text("ab ", max_size=14),
    st.lists(st.sampled_from(["the", "dog.", "sees", "a", "Über", "(3,5)"]), max_size=7).map(
        " ".join
    ),
    st.text(max_size=6),
)


@given(st.lists(TEXTS, min_size=1, max_size=6))
@example(["", "", "a"])
def test_chrf_is_that_of_sacrebleu_bit_for_bit(texts):
    expected = [[sacrebleu.sentence_chrf(a, [b]).score for b in texts] for a in texts]
    assert pairwise(chrf(), texts).tolist() == expected


@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from(["13a", "none", "char"]))
@example(["", "", "a"], "13a")
def test_bleu_is_that_of_sacrebleu(texts, tokenize):
    expected = [
        [sacrebleu.sentence_bleu(a, [b], tokenize=tokenize).score for b in texts] for a in texts
    ]
    assert pairwise(bleu(tokenize), texts) == pytest.approx(np.array(expected), rel=1e-12)


@given(st.lists(st.text("ab ", max_size=5), min_size=1, max_size=12))
def test_each_sample_counts_as_often_as_it_was_drawn(samples):
    ranked = rank(chrf(), samples)
    assert {one.text: one.count for one in ranked} == {x: samples.count(x) for x in samples}
    for one in ranked:
        scores = [sacrebleu.sentence_chrf(one.text, [sample]).score for sample in samples]
        assert one.utility == pytest.approx(sum(scores) / len(samples))
    utilities = [one.utility for one in ranked]
    assert utilities == sorted(utilities, reverse=True)


def test_multiplicity_decides_and_the_first_of_equals_wins():
    assert [one.text for one in rank(chrf(), ["abc", "xyz", "xyz"])] == ["xyz", "abc"]
    assert [one.text for one in rank(chrf(), ["xyz", "abc"])] == ["xyz", "abc"]
    assert [one.text for one in rank(chrf(), ["abc", "xyz"])] == ["abc", "xyz"]


def test_signatures_are_those_of_sacrebleu():
    assert chrf().signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no")
    assert bleu("none").signature.startswith("nrefs:1|case:mixed|eff:yes|tok:none|smooth:exp")
