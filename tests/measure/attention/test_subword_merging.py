"""Attention between words against merging by hand, sentence by sentence."""

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

import attention_by_hand
import references
import toy
from fairseq_sparse.measure.attention.attention_statistics import (
    PLACES,
    AttentionStatistics,
    attention_modules,
    watch_attention,
)
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger

# Every other symbol is continued by the next token.
WORDS = Dictionary()
for number in range(16):
    WORDS.add_symbol(f"w{number}" + "@@" * (number % 2))
# Weights of fp64 models are merged in fp32.
EPS = torch.finfo(torch.float32).eps
SIZES = [(9, 4), (5, 8), (2, 2), (7, 1)]


def model_of(kind):
    if kind == "lstm":
        flags = ["--attention", "sparsemax", "--encoder-embed-dim", 8, "--decoder-embed-dim", 8]
        return toy.model(*flags, arch="lstm_sparse", criterion="").double().eval()
    model = toy.model("--attention", kind).double().eval()
    for modules in attention_modules(model).values():
        for module in modules:
            module.q_proj.weight.data.mul_(4)
    return model


def batch_of(kind):
    # fairseq's LSTM wants the longest source first.
    return toy.batch(WORDS, sorted(SIZES, reverse=True) if kind == "lstm" else SIZES)["net_input"]


def by_hand(model, net_input):
    """Return (place, layer, head) -> sentence -> words x words, each sentence run alone.

    It is None where all pairs of pieces of two words are masked.
    """
    result = {}
    for sentence in attention_by_hand.sentences(net_input, WORDS.pad()):
        source, target = sentence["src_tokens"][0], sentence["prev_output_tokens"][0]
        of_source, predicted = (
            attention_by_hand.words([WORDS[token] for token in tokens])
            for tokens in (source, [*target[1:], WORDS.eos()])
        )
        # EOS is the first input; the last word predicted, EOS, is not an input.
        given = [0, *(number + 1 for number in predicted[:-1])]
        sides = {"encoder": (of_source, of_source), "decoder": (given, predicted)}
        sides["cross"] = (of_source, predicted)

        def keep(place, layer, weights, masked, sides=sides):
            seen = (~masked).expand(weights.shape[1:])[0].double()
            seen = references.merge_subwords(seen.tolist(), *sides[place])
            for head, rows in enumerate(weights[:, 0]):
                merged = references.merge_subwords(rows.tolist(), *sides[place])
                cells = [
                    [x if visible else None for x, visible in zip(*pair, strict=True)]
                    for pair in zip(merged, seen, strict=True)
                ]
                result.setdefault((place, layer, head), []).append(cells)

        with torch.no_grad(), watch_attention(model, keep):
            model(**sentence)
    return result


@pytest.mark.parametrize("kind", ["rela_g", "entmax15", "rela_g_gelu", "lstm"])
def test_words_are_merged_as_by_hand(kind):
    model, net_input = model_of(kind), batch_of(kind)
    expected = by_hand(model, net_input)
    words = SubwordMerger(WORDS, WORDS, "subword_nmt").batch(net_input)
    found = {}

    def keep(place, layer, weights, masked):
        merged, masked, padding = words.merge(place, weights, masked)
        for head, sentences in enumerate(merged):
            found[place, layer, head] = [
                [
                    [None if skip else float(x) for x, skip in zip(row, skips, strict=True)]
                    for row, skips, left_out in zip(rows, mask, out, strict=True)
                    if not left_out
                ]
                for rows, mask, out in zip(sentences, masked, padding, strict=True)
            ]

    with torch.no_grad(), watch_attention(model, keep):
        model(**net_input)
    assert found.keys() == expected.keys()
    some_words_have_pieces = False
    for key, sentences in expected.items():
        for here, there in zip(found[key], sentences, strict=True):
            some_words_have_pieces |= len(there) < max(map(max, SIZES))
            for found_row, row in zip(here, there, strict=True):
                # A short sentence of the batch has masked words at the end.
                found_row, rest = found_row[: len(row)], found_row[len(row) :]
                assert not any(rest)
                zeros = [x == 0 for x in row]
                assert [x == 0 for x in found_row] == zeros
                known = [x is not None for x in row]
                assert [x is not None for x in found_row] == known
                pairs = [(a, b) for a, b in zip(found_row, row, strict=True) if b is not None]
                expected_row = [b for _, b in pairs]
                assert [a for a, _ in pairs] == pytest.approx(expected_row, rel=EPS, abs=EPS)
    assert some_words_have_pieces


def test_rates_between_words():
    """Merging leaves fewer zeros, and a word is null only if all its pieces are."""
    model, net_input = model_of("rela_g"), batch_of("rela_g")
    rates = {}
    for subwords in ("none", "subword_nmt"):
        merger = SubwordMerger(WORDS, WORDS, subwords)
        statistics = AttentionStatistics(model, WORDS.pad(), merger=merger)
        statistics.add_batch(net_input)
        rates[subwords] = statistics.rates()
    of_tokens = AttentionStatistics(model, WORDS.pad())
    of_tokens.add_batch(net_input)
    expected = by_hand(model, net_input)
    for place in PLACES:
        # Where each token is a word, nothing is merged.
        for name in ("sparsity", "null", "layer_null", "diversity"):
            assert rates["none"][place][name] == pytest.approx(of_tokens.rates()[place][name])
        for layer, measured in enumerate(rates["subword_nmt"][place]["layers"]):
            for head, numbers in enumerate(measured["heads"]):
                rows = [row for words in expected[place, layer, head] for row in words]
                cells = [x for row in rows for x in row if x is not None]
                assert numbers["sparsity"] == cells.count(0.0) / len(cells)
                assert numbers["null"] == np.mean([not any(row) for row in rows])
        assert rates["subword_nmt"][place]["sparsity"] < rates["none"][place]["sparsity"]


def test_a_sentence_of_marks_alone_is_one_word():
    words = Dictionary()
    for symbol in ("▁", "▁a"):
        words.add_symbol(symbol)
    mark, word, eos, pad = words.index("▁"), words.index("▁a"), words.eos(), words.pad()
    net_input = {
        "src_tokens": torch.tensor([[mark, mark, eos], [pad, word, eos]]),
        "prev_output_tokens": torch.tensor([[eos, mark, word], [eos, word, pad]]),
    }
    batch = SubwordMerger(words, words, "sentencepiece").batch(net_input)
    weights = torch.ones(1, 2, 3, 3)
    masked = torch.tensor([[[False] * 3], [[True, False, False]]])
    merged, masked, padding = batch.merge("cross", weights, masked)
    assert batch.targets == [["a"], ["a"]]
    assert padding.tolist() == [[False, False], [False, False]]
    assert merged[0].tolist() == [[[3, 0], [3, 0]], [[1, 1], [1, 1]]]
    assert masked.tolist() == [[[False, True]] * 2, [[False, False]] * 2]
