"""Null rates of sentence pairs, and rankings by them, against plain loops."""

import itertools
import statistics

import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

import references
import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.attention_statistics import (
    AttentionStatistics,
    attention_modules,
)
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.attention.null_ranking import (
    check_rectified,
    evaluate,
    null_rates,
    rank,
    read_labels,
)
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

PAD = toy.dictionary().pad()
RECTIFIED = [kind for kind, made in ATTENTION_KINDS.items() if not made.sums_to_one]
SIZES = ((4, 3), (1, 1), (6, 5), (2, 7), (3, 1))


def model_of(kind, *flags):
    """Return a model in which some rows are null and others are not."""
    model = toy.model("--attention", kind, "--decoder-layers", 3, *flags).eval()
    with torch.no_grad():
        for module in attention_modules(model)["cross"]:
            module.q_proj.weight.mul_(4)
    return model


def rates_of(model, *samples):
    words = toy.dictionary()
    return dict(null_rates(model, samples, SubwordMerger(words, words, "none")))


def pairs_of(sample):
    """Each pair of a batch of ``SIZES`` as a batch of its own."""
    net_input = sample["net_input"]
    for row, (source, target) in enumerate(SIZES):
        alone = {
            "src_tokens": net_input["src_tokens"][[row], -source - 1 :],
            "src_lengths": net_input["src_lengths"][[row]],
            "prev_output_tokens": net_input["prev_output_tokens"][[row], : target + 1],
        }
        yield {"id": sample["id"][[row]], "net_input": alone}


@pytest.mark.parametrize("kind", RECTIFIED)
def test_rates_are_shares_of_rows_of_zeros(kind):
    model, sample = model_of(kind), toy.batch(toy.dictionary(), SIZES)
    rates = rates_of(model, sample)
    assert kind != "rela_g" or len(set(rates.values())) > 2
    for pair in forced_attention(model, sample, PAD):
        rows = pair.weights["cross"].flatten(0, 2).tolist()
        null = sum(all(weight == 0 for weight in row) for row in rows)
        assert rates.pop(pair.number) == null / len(rows)
    assert not rates


def test_rates_of_words_are_those_of_the_statistics():
    words = Dictionary()
    for number in range(16):
        words.add_symbol(f"w{number}" + "@@" * (number % 2))  # every other is continued
    model, merger = model_of("rela_g"), SubwordMerger(words, words, "subword_nmt")
    sample = toy.batch(words, SIZES)
    rates = dict(null_rates(model, [sample], merger))
    assert rates != rates_of(model, sample)
    for pair in pairs_of(sample):
        counted = AttentionStatistics(model, PAD, merger=merger)
        counted.add_batch(pair["net_input"])
        assert rates.pop(pair["id"].item()) == pytest.approx(counted.rates()["cross"]["null"])
    assert not rates


def test_models_that_cannot_rank_are_refused():
    check_rectified(model_of("rela_g"))
    check_rectified(model_of("softmax", "--attention-cross", "relu"))
    for model in (
        model_of("rela_g", "--no-cross-attention"),
        *(model_of(kind) for kind in ATTENTION_KINDS if kind not in RECTIFIED),
        toy.model(arch="transformer_tiny"),
        model_of("rela_g", "--attention-cross", "entmax"),
    ):
        with pytest.raises(AnalysisError, match="cross-attention"):
            check_rectified(model)


@given(st.dictionaries(st.integers(0, 50), st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1))
def test_ranking_is_from_the_highest_rate_and_then_by_number(rates):
    if not any(rates.values()):
        with pytest.raises(AnalysisError, match="every pair has a null rate of 0"):
            rank(rates)
        return
    ranking = rank(rates)
    assert sorted(ranking) == sorted(rates)
    for first, second in itertools.pairwise(ranking):
        assert rates[first] > rates[second] or (rates[first] == rates[second] and first < second)


PAIRS = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=6)


def ordered(pairs):
    """Return the labels of (label, rate) pairs from the highest rate on, in each order of ties."""
    for order in itertools.permutations(pairs):
        if all(first[1] >= second[1] for first, second in itertools.pairwise(order)):
            yield [label for label, _ in order]


@given(PAIRS)
def test_precisions_are_means_over_the_orders_of_ties(pairs):
    rates = {number: rate for number, (_, rate) in enumerate(pairs)}
    bad = {number for number, (label, _) in enumerate(pairs) if label}
    if len(bad) in (0, len(pairs)):
        with pytest.raises(AnalysisError, match="ranked pairs are bad"):
            evaluate(rates, bad)
        return
    found = evaluate(rates, bad | {99})  # 99 is bad, but has no rate
    assert (found["pairs"], found["bad"]) == (len(pairs), len(bad))
    orders = list(ordered(pairs))
    means = statistics.fmean(map(references.average_precision, orders))
    assert found["average_precision"] == pytest.approx(means)
    assert [part["at"] for part in found["precision"]] == [len(bad)]
    means = statistics.fmean(sum(labels[: len(bad)]) / len(bad) for labels in orders)
    assert found["precision"][0]["value"] == pytest.approx(means)
    orders = list(itertools.permutations(label for label, _ in pairs))
    means = statistics.fmean(map(references.average_precision, orders))
    assert found["chance"]["average_precision"] == pytest.approx(means)
    assert found["chance"]["precision"] == pytest.approx(len(bad) / len(pairs))


@pytest.mark.parametrize("count", [9, 10, 50, 130])
def test_precision_down_to_a_rank(count):
    labels = [number % 3 == 0 for number in range(count)]
    rates = {number: -number for number in range(count)}  # no ties
    found = evaluate(rates, set(range(0, count, 3)))
    assert found["average_precision"] == pytest.approx(references.average_precision(labels))
    expected = {k for k in (10, 50, 100) if k <= count} | {sum(labels)}
    assert [part["at"] for part in found["precision"]] == sorted(expected)
    for part in found["precision"]:
        assert part["value"] == pytest.approx(sum(labels[: part["at"]]) / part["at"])


def test_labels(tmp_path):
    path = tmp_path / "labels"
    path.write_text("0\n1\n 0\n1\n", encoding="utf-8")
    assert read_labels(path, 4) == {1, 3}
    with pytest.raises(AnalysisError, match="has 4 lines for 3 sentence pairs"):
        read_labels(path, 3)
    for line in ("2", "", "bad", "[1]", "0.5"):
        path.write_text(f"0\n{line}\n1\n", encoding="utf-8")
        with pytest.raises(AnalysisError, match="line 2: neither 0 nor 1"):
            read_labels(path, 3)
