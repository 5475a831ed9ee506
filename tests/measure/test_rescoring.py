"""Scores of given candidates."""

from itertools import permutations

import pytest
import torch

import toy
from automata import SparseLSTM
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.rescoring import Candidate, rescore
from fairseq_sparse.measure.translator import Translator
from fairseq_sparse.measure.typed import typed_batch


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


def test_a_model_that_has_diverged_is_refused():
    task = toy.task()
    model = SparseLSTM(task.target_dictionary).eval()
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    translator, word = Translator("toy", [], [model], task), task.target_dictionary[4]
    with pytest.raises(ValueError, match="NaN"):
        list(rescore(translator, [word], [Candidate(0, word)]))


@pytest.mark.parametrize(("source", "target"), [(9, 1), (1, 9)])
def test_a_sentence_too_long_for_the_model_is_refused(source: int, target: int):
    flags = ["--encoder-learned-pos", "--decoder-learned-pos"]
    flags += ["--max-source-positions=9", "--max-target-positions=9"]
    model = toy.model(*flags).eval()
    sizes = {"max_source_positions": 9, "max_target_positions": 9}
    task = toy.task(data="none", source_lang="de", target_lang="en", **sizes)
    translator = Translator("toy", [], [model], task)

    def score(*lengths: int):
        text, words = (" ".join(["w0"] * length) for length in lengths)
        return list(rescore(translator, [text], [Candidate(0, words)]))

    assert len(score(8, 8)) == 1
    with pytest.raises(AnalysisError, match="10 tokens"):
        score(source, target)
    with pytest.raises(AnalysisError, match="10 tokens"):
        typed_batch(translator, ["w0 " * source], ["w0 " * target], "space")
