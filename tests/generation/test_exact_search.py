"""Exact search against all strings of small models."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automata import (
    FIRST_WORD,
    LoudTable,
    SparseLSTM,
    Table,
    TableModel,
    dense_table,
    every_string,
    make_dictionary,
    make_sample,
)
from fairseq_sparse.generation import SparseSequenceGenerator
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator

SEEDS = list(range(FIRST_WORD, FIRST_WORD + 5))
MAX_LEN = 4

tables_strategy = st.builds(
    Table,
    words=st.just(7),
    branching=st.integers(1, 4),
    eos=st.sampled_from([0.2, 0.5, 0.9]),
    dead_end=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    normalized=st.booleans(),
    salt=st.integers(0, 10**6),
)


def translate(tables, **options):
    dictionary = make_dictionary(tables[0].words)
    models = [TableModel(dictionary, table) for table in tables]
    generator = ExactSequenceGenerator(models, dictionary, **{"max_len_b": MAX_LEN, **options})
    return generator.generate(None, make_sample(SEEDS))


def best_strings(tables, seed, len_penalty, min_len=1):
    strings = every_string(tables, seed, MAX_LEN, min_len)
    power = 0 if len_penalty is None else len_penalty
    scored = [(score / len(tokens) ** power, tokens) for tokens, score in strings.items()]
    return sorted(scored, reverse=True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(tables_strategy, min_size=1, max_size=2),
    st.integers(1, 6),
    st.sampled_from([None, -1.0, 0.0, 0.6, 1.0]),
    st.integers(0, 2),
)
def test_finds_the_best_of_all_strings(tables, nbest, len_penalty, min_len):
    found = translate(tables, nbest=nbest, len_penalty=len_penalty, min_len=min_len)
    for seed, hypos in zip(SEEDS, found, strict=True):
        expected = best_strings(tables, seed, len_penalty, min_len)
        if not expected:
            assert [hypo["incomplete"] for hypo in hypos] == [True]
            assert hypos[0]["score"] == -math.inf and not hypos[0]["optimal"]
            continue
        scores = [hypo["score"].item() for hypo in hypos]
        assert scores == pytest.approx([score for score, _ in expected[:nbest]], abs=1e-5)
        known = {tokens: score for score, tokens in expected}
        for hypo in hypos:
            tokens = tuple(hypo["tokens"].tolist())
            assert hypo["score"].item() == pytest.approx(known[tokens], abs=1e-5)
            assert hypo["optimal"]
        if hypos[0]["exact"]:
            longer = every_string(tables, seed, MAX_LEN + 2, min_len)
            assert {tuple(hypo["tokens"].tolist()) for hypo in hypos} == set(longer)


@settings(max_examples=60, deadline=None)
@given(tables_strategy, st.integers(1, 30), st.sampled_from([None, 1.0]))
def test_what_is_left_at_the_node_limit_is_within_the_bound(table, node_limit, len_penalty):
    found = translate([table], node_limit=node_limit, len_penalty=len_penalty)
    for seed, hypos in zip(SEEDS, found, strict=True):
        expected = best_strings([table], seed, len_penalty)
        assert hypos[0]["nodes"] <= node_limit
        if not expected:
            continue
        best = expected[0][0]
        assert max(hypos[0]["score"].item(), hypos[0]["bound"]) >= best - 1e-5
        if hypos[0]["optimal"]:
            assert hypos[0]["score"].item() == pytest.approx(best, abs=1e-5)


def test_scores_above_zero_prune_nothing():
    table = LoudTable(8, branching=3, eos=0.5, dead_end=0.2, normalized=False, salt=5)
    for seed, hypos in zip(SEEDS, translate([table], len_penalty=None), strict=True):
        expected = best_strings([table], seed, None)
        if expected:
            assert hypos[0]["score"].item() == pytest.approx(expected[0][0], abs=1e-5)
            assert expected[0][0] > 0


def test_pruning_saves_nodes():
    table = dense_table(6)
    (pruned, *_) = translate([table], len_penalty=None)
    assert pruned[0]["optimal"] and not pruned[0]["exact"]
    assert pruned[0]["nodes"] < sum(6**length for length in range(MAX_LEN + 1))


def test_agrees_with_a_certified_beam_of_a_recurrent_model():
    dictionary = make_dictionary(12)
    torch.manual_seed(1)
    model = SparseLSTM(dictionary)
    sample = make_sample(list(range(FIRST_WORD, FIRST_WORD + 12)))
    options = {"max_len_b": 6, "len_penalty": 0.0}
    beams = SparseSequenceGenerator([model], dictionary, beam_size=60, **options)
    exact = ExactSequenceGenerator([model], dictionary, nbest=3, **options)
    certified = 0
    for one, other in zip(beams.generate(None, sample), exact.generate(None, sample), strict=True):
        if one[0]["optimal"] and other[0]["optimal"]:
            certified += 1
            assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
            assert one[0]["score"].item() == pytest.approx(other[0]["score"].item(), abs=1e-4)
    assert certified >= 6


def test_unknown_options_are_refused():
    dictionary = make_dictionary(4)
    generator = ExactSequenceGenerator([TableModel(dictionary, dense_table(4))], dictionary)
    with pytest.raises(ValueError, match="--prefix-size"):
        generator.generate(None, make_sample(SEEDS[:1]), prefix_tokens=torch.tensor([[5]]))
