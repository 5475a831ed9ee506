"""The null rate by the word before, against counting in the weights of each sentence."""

from collections import defaultdict

import pytest
import torch
from fairseq.data import Dictionary

import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.attention_statistics import (
    AttentionStatistics,
    attention_modules,
    watch_attention,
)
from fairseq_sparse.measure.attention.null_by_previous import BEGINNING, null_rates_by_previous
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger

# Few symbols, so that each occurs several times; the next token continues those with @@.
WORDS = Dictionary()
for symbol in ("a", "b@@", "c", ",", "d@@", "e", "f"):
    WORDS.add_symbol(symbol)
SIZES = [(9, 8), (5, 12), (2, 6), (7, 1)]


@pytest.fixture(scope="module")
def model():
    model = toy.model("--attention", "rela_g").eval()
    for module in attention_modules(model)["cross"]:
        module.q_proj.weight.data.mul_(4)
        module.k_proj.weight.data.mul_(4)
    return model


def sample_of():
    batch = toy.batch(WORDS, SIZES)
    return {**batch, "id": torch.arange(len(batch["net_input"]["src_tokens"]))}


def measured(model, subwords, tags=None, most=None):
    merger = SubwordMerger(WORDS, WORDS, subwords)
    return null_rates_by_previous(model, [sample_of()], merger, tags, most)


def test_tokens_as_in_the_weights(model):
    sample, found = sample_of(), defaultdict(list)

    def keep(place, layer, weights, masked):
        for row, inputs in enumerate(sample["net_input"]["prev_output_tokens"].tolist()):
            for query, token in enumerate(inputs):
                if token != WORDS.pad():
                    name = BEGINNING if query == 0 else WORDS[token]
                    for head in range(len(weights)):
                        null = not weights[head, row, query].any()
                        found[name, layer, head].append(null)

    with torch.no_grad(), watch_attention(model, keep, ["cross"]):
        model(**sample["net_input"])
    rates = measured(model, "none")
    queries = {entry["name"]: entry["queries"] for entry in rates["previous"]}
    assert list(queries.values()) == sorted(queries.values(), reverse=True)
    assert queries[BEGINNING] == len(SIZES) and set(queries) >= {",", "a", "b@@"}
    seen = set()
    for (name, layer, head), nulls in found.items():
        rate = rates["layers"][layer]["heads"][head]["null_after"][name]
        assert (len(nulls), sum(nulls) / len(nulls)) == (queries[name], pytest.approx(rate))
        seen.add(rate)
    assert max(seen) - min(seen) > 0.3  # the rates differ


@pytest.mark.parametrize("subwords", ["none", "subword_nmt"])
def test_rates_in_all_are_those_of_the_statistics(model, subwords):
    sample = sample_of()
    merger = SubwordMerger(WORDS, WORDS, subwords)
    statistics = AttentionStatistics(model, WORDS.pad(), places=["cross"], merger=merger)
    statistics.add_batch(sample["net_input"])
    expected = statistics.rates()["cross"]["layers"]
    rates = measured(model, subwords)
    for layer, counted in zip(rates["layers"], expected, strict=True):
        nulls = [head["null"] for head in layer["heads"]]
        assert nulls == pytest.approx([head["null"] for head in counted["heads"]])
    names = {entry["name"] for entry in rates["previous"]}
    assert not any("@@" in name for name in names) or subwords == "none"


def test_most_frequent_words_and_tags(model):
    by_word = measured(model, "subword_nmt")
    assert measured(model, "subword_nmt", most=2)["previous"] == by_word["previous"][:2]
    merger = SubwordMerger(WORDS, WORDS, "subword_nmt")
    texts = merger.batch(sample_of()["net_input"]).targets
    tags = [["COMMA" if word == "," else "OTHER" for word in text] for text in texts]
    by_tag = measured(model, "subword_nmt", tags)
    assert {entry["name"] for entry in by_tag["previous"]} == {"COMMA", "OTHER", BEGINNING}
    for layer, other in zip(by_tag["layers"], by_word["layers"], strict=True):
        for head, same in zip(layer["heads"], other["heads"], strict=True):
            assert head["null"] == same["null"]
            assert head["null_after"]["COMMA"] == same["null_after"][","]


def test_bad_input(model):
    merger = SubwordMerger(WORDS, WORDS, "none")
    with pytest.raises(AnalysisError, match="sentence 0 has .* words but 1 tags"):
        measured(model, "none", [["X"]] * len(SIZES))
    with pytest.raises(AnalysisError, match="no sentence"):
        null_rates_by_previous(model, [], merger)
    decoder = toy.model("--no-cross-attention", "--cross-self-attention")
    with pytest.raises(AnalysisError, match="no cross-attention"):
        null_rates_by_previous(decoder, [], merger)
