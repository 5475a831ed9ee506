"""The alternatives of each step: which tokens are listed, and their text in the terminal."""

import math

import pytest
import torch

import toy
from automata import EOS, FIRST_WORD, Script, make_sample
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.output.alternatives import describe_step, find_alternatives
from fairseq_sparse.measure.translator import Translator, with_best_translations
from finite_tables import WORDS, translator_of

A, B, C = range(FIRST_WORD, FIRST_WORD + 3)


def step_of(probabilities, token, top):
    log_p = torch.tensor(probabilities).log()
    return describe_step(log_p, token, [f"t{index}" for index in range(len(log_p))], top)


def listed(step):
    return [
        (entry["token"], pytest.approx(entry["p"], rel=1e-6), entry["rank"], entry["given"])
        for entry in step["alternatives"]
    ]


def test_alternatives_are_the_most_probable_tokens():
    step = step_of([0.1, 0.5, 0.0, 0.4], 3, top=10)
    assert listed(step) == [
        ("t1", 0.5, 1, False),
        ("t3", 0.4, 2, True),
        ("t0", 0.1, 3, False),
    ]
    assert (step["nonzeros"], step["left_out"], step["left_out_p"]) == (3, 0, 0.0)
    assert (step["token"], step["p"]) == ("t3", pytest.approx(0.4))


def test_what_is_left_out_is_counted_and_the_given_token_is_not():
    step = step_of([0.1, 0.3, 0.05, 0.25, 0.2, 0.1], 2, top=2)
    assert listed(step) == [("t1", 0.3, 1, False), ("t3", 0.25, 2, False), ("t2", 0.05, 6, True)]
    assert (step["left_out"], step["left_out_p"]) == (3, pytest.approx(0.4))


def test_an_impossible_token_has_no_rank():
    step = step_of([0.0, 0.75, 0.25], 0, top=1)
    assert listed(step) == [("t1", 0.75, 1, False), ("t0", 0.0, None, True)]
    assert (step["left_out"], step["nonzeros"]) == (1, 2)
    # If no token is possible, the given one is listed alone.
    step = step_of([0.0, 0.0], 1, top=5)
    assert listed(step) == [("t1", 0.0, None, True)] and step["left_out"] == 0


def test_ties_come_in_the_order_of_the_dictionary():
    step = step_of([0.25] * 4, 3, top=2)
    assert [entry["rank"] for entry in step["alternatives"]] == [1, 2, 4]
    assert [entry["token"] for entry in step["alternatives"]] == ["t0", "t1", "t3"]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--output-transform", "entmax", "--output-alpha", "1.2"],
        ["--output-transform", "alpha_relu", "--output-tau", "-0.5"],
    ],
)
def test_sentences_are_described_as_they_are(flags):
    words, model = toy.dictionary(), toy.model(*flags).eval()
    translator = Translator("toy", [], [model], toy.task())
    batch = toy.batch(words)
    batch["id"] = torch.tensor([7, 2, 9])
    sentences = find_alternatives(translator, [batch], "test", top=20)
    assert [sentence["sentence"] for sentence in sentences] == [2, 7, 9]
    order = [1, 0, 2]
    for row, sentence in zip(order, sentences, strict=True):
        tokens = [words[index] for index in batch["target"][row] if index != words.pad()]
        assert [step["token"] for step in sentence["steps"]] == tokens
        assert sentence["target"] == " ".join(tokens)
        source = batch["net_input"]["src_tokens"][row]
        assert sentence["source"] == " ".join(words[x] for x in source if x != words.pad())
        p = math.prod(step["p"] for step in sentence["steps"])
        log_p = sentence["log_p"]
        assert p == 0 if log_p is None else math.log(p) == pytest.approx(log_p, rel=1e-4)
        assert ("raw values" in sentence["values"]) == ("alpha_relu" in flags)
        for step in sentence["steps"]:
            total = sum(entry["p"] for entry in step["alternatives"])
            assert total == pytest.approx(step["prob_sum"], rel=1e-5)
            assert [entry["given"] for entry in step["alternatives"]].count(True) == 1
    impossible = [step["p"] == 0 for sentence in sentences for step in sentence["steps"]]
    assert any(impossible) == bool(flags)
    assert any(sentence["log_p"] is not None for sentence in sentences)


def test_a_model_that_gives_nan_is_refused():
    model = toy.model().eval()
    model.decoder.output_projection.weight.data.fill_(torch.nan)
    translator = Translator("toy", [], [model], toy.task())
    with pytest.raises(ValueError, match="NaN"):
        find_alternatives(translator, [toy.batch(toy.dictionary())], "test", top=3)


def test_a_hypothesis_is_the_best_of_the_beam():
    follow = {(): {A: 0.4, B: 0.6}, (A,): {EOS: 1.0}, (B,): {EOS: 0.5, C: 0.1}, (B, C): {EOS: 1.0}}
    translator = translator_of(Script(follow, WORDS))
    batch = {**make_sample([A, B]), "target": None}
    for beam, best in [(1, "w1 </s>"), (2, "w0 </s>")]:
        batches = with_best_translations(translator, [batch], beam)
        for sentence in find_alternatives(translator, batches, "test", top=5, given="own"):
            assert (sentence["target"], sentence["given"]) == (best, "own")
    with pytest.raises(AnalysisError, match="--subset test: there are no references"):
        find_alternatives(translator, [batch], "test", top=5)
