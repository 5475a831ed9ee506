"""The alternatives of each step: what is found, what is read in the terminal and on the page."""

import math
from html.parser import HTMLParser

import pytest
import torch

import toy
from automata import EOS, FIRST_WORD, Script, make_sample
from fairseq_sparse.analysis.alternatives import (
    as_text,
    describe_step,
    find_alternatives,
    number_text,
)
from fairseq_sparse.analysis.alternatives_page import as_page
from fairseq_sparse.analysis.decoding import AnalysisTask, Translator
from fairseq_sparse.analysis.trained_models import AnalysisError
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig
from finite_tables import WORDS, translator_of

A, B, C = range(FIRST_WORD, FIRST_WORD + 3)


def step_of(probabilities, token, most):
    log_p = torch.tensor(probabilities).log()
    return describe_step(log_p, token, [f"t{index}" for index in range(len(log_p))], most)


def listed(step):
    return [
        (entry["token"], pytest.approx(entry["p"], rel=1e-6), entry["rank"], entry["given"])
        for entry in step["alternatives"]
    ]


def test_alternatives_are_the_most_probable_tokens():
    step = step_of([0.1, 0.5, 0.0, 0.4], 3, most=10)
    assert listed(step) == [
        ("t1", 0.5, 1, False),
        ("t3", 0.4, 2, True),
        ("t0", 0.1, 3, False),
    ]
    assert (step["nonzeros"], step["left_out"], step["left_out_p"]) == (3, 0, 0.0)
    assert (step["token"], step["p"]) == ("t3", pytest.approx(0.4))


def test_what_is_left_out_is_counted_and_the_given_token_is_not():
    step = step_of([0.1, 0.3, 0.05, 0.25, 0.2, 0.1], 2, most=2)
    assert listed(step) == [("t1", 0.3, 1, False), ("t3", 0.25, 2, False), ("t2", 0.05, 6, True)]
    assert (step["left_out"], step["left_out_p"]) == (3, pytest.approx(0.4))


def test_an_impossible_token_has_no_rank():
    step = step_of([0.0, 0.75, 0.25], 0, most=1)
    assert listed(step) == [("t1", 0.75, 1, False), ("t0", 0.0, None, True)]
    assert (step["left_out"], step["nonzeros"]) == (1, 2)
    # Where nothing at all is possible it stands alone.
    step = step_of([0.0, 0.0], 1, most=5)
    assert listed(step) == [("t1", 0.0, None, True)] and step["left_out"] == 0


def test_ties_come_in_the_order_of_the_dictionary():
    step = step_of([0.25] * 4, 3, most=2)
    assert [entry["rank"] for entry in step["alternatives"]] == [1, 2, 4]
    assert [entry["token"] for entry in step["alternatives"]] == ["t0", "t1", "t3"]


def toy_translator(*flags):
    words = toy.dictionary()
    model = toy.model(*flags).eval()
    return Translator("toy", [], [model], AnalysisTask(TranslationSparseConfig(), words, words))


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--output-transform", "entmax", "--output-alpha", "1.2"],
        ["--output-transform", "alpha_relu", "--output-tau", "-0.5"],
    ],
)
def test_sentences_are_described_as_they_are(flags):
    translator, words = toy_translator(*flags), toy.dictionary()
    batch = toy.batch(words)
    batch["id"] = torch.tensor([7, 2, 9])
    sentences = find_alternatives(translator, [batch], "test", most=20)
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


def test_a_hypothesis_is_the_best_of_the_beam():
    follow = {(): {A: 0.4, B: 0.6}, (A,): {EOS: 1.0}, (B,): {EOS: 0.5, C: 0.1}, (B, C): {EOS: 1.0}}
    translator = translator_of(Script(follow, WORDS))
    batch = {**make_sample([A, B]), "target": None}
    for beam, best in [(1, "w1 </s>"), (2, "w0 </s>")]:
        for sentence in find_alternatives(translator, [batch], "test", most=5, beam=beam):
            assert sentence["target"] == best
            assert sentence["given"] == f"best translation, beam {beam}"
    with pytest.raises(AnalysisError, match="no references; use --hypothesis"):
        find_alternatives(translator, [batch], "test", most=5)


def sentence_with(*steps, **changes):
    return {
        "sentence": 3,
        "name": "model",
        "output": "entmax15",
        "subset": "test",
        "given": "reference",
        "values": "probabilities",
        "source": "s0 </s>",
        "target": " ".join(step["token"] for step in steps),
        "log_p": -1.5,
        "steps": list(steps),
        **changes,
    }


def test_text_for_the_terminal():
    given, late = step_of([0.25, 0.75], 1, 10), step_of([0.2, 0.5, 0.3], 0, 1)
    impossible = step_of([0.0, 1.0], 0, 10)
    sentence = sentence_with(given, late, impossible, log_p=None)
    assert as_text(sentence).splitlines() == [
        "Sentence 3 of test, model, entmax15, given its reference: p = 0; probabilities",
        "source  s0 </s>",
        "target  t1 t0 t0",
        "",
        "  1  2 tokens with p > 0",
        "   > t1  0.750  given",
        "     t0  0.250",
        "",
        "  2  3 tokens with p > 0",
        "     t1  0.500",
        "   > t0  0.200  given, rank 3",
        "     1 more, together 0.300",
        "",
        "  3  1 token with p > 0",
        "     t1  1.000",
        "   ! t0  0      given, impossible",
    ]
    raw = sentence_with(step_of([0.5, 0.75], 0, 10), values="raw values")
    assert "2 tokens with p > 0, Σp = 1.250" in as_text(raw)


def test_numbers_do_not_pretend():
    assert [number_text(p) for p in (0.0, 1e-9, 0.5, 0.99999, 1.0, 1.5)] == [
        *("0", "1e-09", "0.500", ">.999", "1.000", "1.500")
    ]


class Page(HTMLParser):
    """Checks that elements are nested and closed, and keeps what a test may look at."""

    EMPTY = {"meta"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def having(self, name):
        return [(tag, each[name]) for tag, each in self.elements if name in each]


def page_of(*sentences):
    text = as_page(sentences)
    return text, Page(text)


def test_page_is_whole_and_shows_every_number():
    steps = [step_of([0.25, 0.75], 1, 10), step_of([0.2, 0.5, 0.3, 0.0], 3, 2)]
    text, page = page_of(sentence_with(*steps), sentence_with(steps[0], sentence=4))
    assert text.startswith("<!DOCTYPE html>") and "prefers-color-scheme: dark" in text
    shown = [data for _, data in page.texts]
    for step in steps:
        for entry in step["alternatives"]:
            assert entry["token"] in shown and number_text(entry["p"]) in shown
    assert "1 more, together 0.200" in shown
    assert [data for tag, data in page.texts if tag == "h2"][1].startswith("Sentence 4 of test")
    classes = [value for _, value in page.having("class")]
    assert classes.count("step") == 3
    assert classes.count("given") == 2 and classes.count("impossible") == 1
    assert shown.count("given") == 2 and shown.count("given, impossible") == 1
    widths = [value for _, value in page.having("style")]
    assert widths[:2] == ["width: 75.0%", "width: 25.0%"]


def test_every_step_can_be_reached_by_keyboard_and_has_a_name():
    _, page = page_of(sentence_with(step_of([0.25, 0.75], 1, 10), step_of([1.0, 0.0], 0, 10)))
    reachable = [each for _, each in page.elements if each.get("tabindex") == "0"]
    assert [each["class"] for each in reachable] == ["steps", "step", "step"]
    assert [each["aria-label"] for each in reachable[1:]] == ["step 1: t1", "step 2: t0"]
    headings = [each["id"] for tag, each in page.elements if tag == "h2"]
    assert [value for _, value in page.having("aria-labelledby")] == headings


def test_page_needs_nothing_from_elsewhere():
    text, page = page_of(sentence_with(step_of([0.25, 0.75], 1, 10)))
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object"}
    assert not page.having("src") and not page.having("href")
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text


def test_all_text_is_escaped():
    nasty = "</li><script>alert(1)</script>&amp;\"'"
    step = describe_step(torch.tensor([0.5, 0.5]).log(), 0, [nasty, "<b>"], 10)
    names = {name: nasty for name in ("name", "output", "subset", "source", "target", "values")}
    plain_text, plain = page_of(sentence_with(step_of([0.5, 0.5], 0, 10)))
    text, page = page_of(sentence_with(step, **names))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert "<script" not in text and "<b>" not in text
    assert [data for tag, data in page.texts if tag == "bdi"] == [nasty, nasty, "<b>"]
    assert ("li", f"step 1: {nasty}") in page.having("aria-label")
