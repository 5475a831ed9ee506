"""Scores of given candidates."""

from itertools import permutations

import pytest

import toy
from automata import SparseLSTM
from fairseq_sparse.measure.rescoring import Candidate, rescore
from fairseq_sparse.measure.translator import Translator


def test_an_lstm_gives_each_candidate_its_score_in_any_order():
    task = toy.task()
    words = task.target_dictionary
    translator = Translator("toy", [], [SparseLSTM(words).eval()], task)
    sources = [" ".join(words[4 + n] for n in range(length)) for length in (2, 5, 3)]
    candidates = [Candidate(number, words[4 + number]) for number in range(len(sources))]
    alone = {
        one: score for each in candidates for score, one in rescore(translator, sources, [each])
    }
    for order in permutations(candidates):
        together = {one: score for score, one in rescore(translator, sources, order)}
        assert together == pytest.approx(alone, rel=1e-4)
