"""Exact search against all strings of small models."""

import math
from argparse import Namespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from automata import (
    EOS,
    FIRST_WORD,
    BrokenTable,
    Distributions,
    LoudTable,
    SparseLSTM,
    Table,
    TableModel,
    dense_table,
    every_string,
    log_probs,
    make_dictionary,
    make_sample,
)
from fairseq_sparse.generation import SparseSequenceGenerator, frontier
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask
from table_options import WithOptions

SEEDS = list(range(FIRST_WORD, FIRST_WORD + 5))
MAX_LEN = 4

tables_strategy = st.builds(
    Table,
    words=st.just(7),
    branching=st.integers(1, 4),
    eos=st.sampled_from([0.2, 0.5, 0.9]),
    dead_end=st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5, 1.0]),  # scores have a bound only at 0.0
    normalized=st.sampled_from([True, True, False]),
    salt=st.integers(0, 10**6),
)


def make_beam(models, dictionary, len_penalty=1.0, **options):
    """Make the beam search that starts an exact search; None: scores are log-probabilities."""
    scores = {"normalize_scores": len_penalty is not None, "len_penalty": len_penalty or 0.0}
    defaults = {"beam_size": 2, "max_len_b": MAX_LEN, "nbest": 1, "add_up_mass": False}
    return SparseSequenceGenerator(models, dictionary, **{**defaults, **scores, **options})


def translate(tables, node_limit=10_000, prefix_tokens=None, **options):
    dictionary = make_dictionary(tables[0].words)
    models = [TableModel(dictionary, table) for table in tables]
    generator = ExactSequenceGenerator(make_beam(models, dictionary, **options), node_limit)
    return generator.generate(None, make_sample(SEEDS), prefix_tokens=prefix_tokens)


def best_strings(tables, seed, len_penalty, min_len=1):
    strings = every_string(tables, seed, MAX_LEN, min_len)
    power = 0 if len_penalty is None else len_penalty
    scored = [(score / len(tokens) ** power, tokens) for tokens, score in strings.items()]
    return sorted(scored, reverse=True)


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
            assert not hypos[0]["optimal"] and not hypos[0]["exact"]
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


def translate_by_task(tables, prefix_tokens, options, **config):
    """Return the hypotheses of each seed, from the search that the flags select."""
    dictionary = make_dictionary(tables[0].words)
    task = TranslationSparseTask(TranslationSparseConfig(**config), dictionary, dictionary)
    models = [TableModel(dictionary, table) for table in tables]
    generator = task.build_generator(models, Namespace(max_len_b=MAX_LEN, **options))
    return task.inference_step(generator, models, make_sample(SEEDS), prefix_tokens=prefix_tokens)


@given(
    tables=st.lists(tables_strategy, min_size=1, max_size=2),
    nodes=st.sampled_from([1, 2, 5, 30, 10_000]),
    scores=st.sampled_from([{}, {"unnormalized": True}, {"lenpen": 0.6}, {"lenpen": -1.0}]),
    beam=st.integers(1, 4),
    nbest=st.integers(1, 3),
    prefix=st.sampled_from([None, [6], [7, 5], [8, EOS, 1]]),
    min_len=st.integers(0, 2),
)
def test_it_is_never_worse_than_the_beam(tables, nodes, scores, beam, nbest, prefix, min_len):
    options = {"beam": beam, "nbest": nbest, "min_len": min_len, **scores}
    prefix_tokens = None if prefix is None else torch.tensor([prefix] * len(SEEDS))
    beams = translate_by_task(tables, prefix_tokens, options)
    exact = translate_by_task(
        tables, prefix_tokens, options, exact_search=True, exact_search_nodes=nodes
    )
    start = tuple(x for x in prefix or () if x != 1)
    power = 0 if "unnormalized" in scores else scores.get("lenpen", 1)
    for seed, before, after in zip(SEEDS, beams, exact, strict=True):
        before = before[:nbest]
        scores = WithOptions(tables, MAX_LEN, min_len, forced=start)
        strings = every_string([scores], seed, MAX_LEN, min_len=0)
        known = {tokens: score / len(tokens) ** power for tokens, score in strings.items()}
        if before[0].get("incomplete"):
            assert after[0].get("incomplete") or tuple(after[0]["tokens"].tolist()) in known
            continue
        assert len(after) >= len(before) and "incomplete" not in after[0]
        for one, other in zip(before, after, strict=False):
            assert other["score"] >= one["score"]
        for hypo in after:
            tokens = tuple(hypo["tokens"].tolist())
            assert hypo["score"].item() == pytest.approx(known[tokens], abs=1e-5)
            assert len(hypo["positional_scores"]) == len(tokens)
        if after[0]["optimal"]:
            assert after[0]["score"].item() == pytest.approx(max(known.values()), abs=1e-5)


@given(
    tables_strategy,
    st.integers(1, 30),
    st.sampled_from([None, -1.0, 0.6, 1.0]),
    st.sampled_from([4, 10**6]),
)
def test_what_is_left_at_the_node_limit_is_within_the_bound(table, limit, len_penalty, largest):
    with mock.patch.object(frontier, "LARGEST", largest):  # keeps few continuations, or all
        found = translate([table], node_limit=limit, len_penalty=len_penalty)
    for seed, hypos in zip(SEEDS, found, strict=True):
        expected = best_strings([table], seed, len_penalty)
        assert hypos[0]["nodes"] <= limit
        if not expected:
            continue
        best, score = expected[0][0], hypos[0]["score"].item()
        if hypos[0].get("incomplete"):
            score = -math.inf
        assert max(score, hypos[0]["bound"]) >= best - 1e-5
        if hypos[0]["optimal"]:
            assert score == pytest.approx(best, abs=1e-5)
            assert hypos[0]["proven_length"] == MAX_LEN + 1
        for other, tokens in expected:
            assert len(tokens) > hypos[0]["proven_length"] or other <= score + 1e-5


def test_the_node_limit_leaves_a_proof_up_to_some_length():
    """With length-normalised scores, the dense table is too large for a full search."""
    table = dense_table(6)
    lengths = {
        hypos[0]["proven_length"]: hypos[0]["optimal"]
        for limit in (3, 30, 300, 3000)
        for hypos in translate([table], node_limit=limit)
    }
    assert len(lengths) > 2 and not all(lengths.values())


@pytest.mark.parametrize("len_penalty", [0.5, 1.0, 2.0])
def test_the_proven_length_ends_where_the_best_prefix_left_could_win(len_penalty):
    """With one node, single words are left, of which the most probable one could win first."""
    table = Table(7, branching=4, eos=0.9, dead_end=0.0, salt=1)
    found = translate([table], node_limit=1, max_len_b=20, len_penalty=len_penalty, beam_size=1)
    could_win = 0
    for seed, hypos in zip(SEEDS, found, strict=True):
        best = log_probs([table], seed, ())[FIRST_WORD:].max().item()
        wins = [n for n in range(2, 22) if best / n**len_penalty > hypos[0]["score"]]
        assert hypos[0]["proven_length"] == min([*wins, 22]) - 1
        could_win += bool(wins)
    assert could_win > 1


def test_a_translation_that_was_pruned_is_not_forgotten():
    """The others are those of the beam, which the search finds again."""
    words = {FIRST_WORD: 0.6, FIRST_WORD + 1: 0.3, FIRST_WORD + 2: 0.1}
    table = Distributions({(): words, **{(word,): {EOS: 1.0} for word in words}}, words=7)
    for hypos in translate([table], nbest=2, len_penalty=None):
        assert len(hypos) == 2 and hypos[0]["optimal"] and not hypos[0]["exact"]
    for hypos in translate([table], nbest=3, len_penalty=None):
        assert len(hypos) == 3 and hypos[0]["exact"]
    for nbest in (1, 2, 3):  # the beam finds all
        for hypos in translate([table], nbest=nbest, len_penalty=None, beam_size=3):
            assert len(hypos) == nbest and hypos[0]["exact"] == (nbest == 3)


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
    beams = make_beam([model], dictionary, beam_size=60, **options)
    exact = ExactSequenceGenerator(make_beam([model], dictionary, nbest=3, **options))
    certified = 0
    for one, other in zip(beams.generate(None, sample), exact.generate(None, sample), strict=True):
        if one[0]["optimal"] and other[0]["optimal"]:
            certified += 1
            assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
            assert one[0]["score"].item() == pytest.approx(other[0]["score"].item(), abs=1e-4)
    assert certified >= 6


def test_the_first_and_the_last_token_are_those_of_the_beam_search():
    """Some tasks end translations with the token of a language, or begin them with one."""
    table = Table(words=6, branching=4, eos=0.0, dead_end=0.0)
    dictionary = make_dictionary(table.words)
    models, sample = [TableModel(dictionary, table)], make_sample(SEEDS)
    last, first = FIRST_WORD + 1, FIRST_WORD + 2
    wide = make_beam(models, dictionary, eos=last, beam_size=300)
    expected = wide.generate(None, sample, bos_token=first)
    generator = ExactSequenceGenerator(make_beam(models, dictionary, eos=last))
    with mock.patch.object(
        models[0].decoder, "extract_features", wraps=models[0].decoder.extract_features
    ) as decoder:
        found = generator.generate(None, sample, bos_token=first)
    begins = {row[0] for call in decoder.call_args_list for row in call.args[0].tolist()}
    assert begins == {first}
    for hypos, all_hypos in zip(found, expected, strict=True):
        assert hypos[0]["optimal"] and hypos[0]["tokens"][-1] == last
        assert hypos[0]["score"] == pytest.approx(all_hypos[0]["score"].item(), abs=1e-5)


def test_nan_is_refused():
    with pytest.raises(ValueError, match="probabilities are NaN"):
        translate([BrokenTable(7, branching=4)])


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_allowed_tokens_fn": lambda sentence, tokens: [FIRST_WORD, EOS]},
        {"extra_gen_cls_kwargs": {"tokens_to_suppress": ["w1"]}},
    ],
)
def test_a_limited_beam_is_refused(options):
    """Exact search would return translations that the beam search must not."""
    dictionary = make_dictionary(4)
    task = TranslationSparseTask(TranslationSparseConfig(exact_search=True), dictionary, dictionary)
    models = [TableModel(dictionary, dense_table(4))]
    with pytest.raises(ValueError, match="--exact-search goes with plain beam search only"):
        task.build_generator(models, Namespace(beam=2), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"unk_penalty": 1.0},
        {"no_repeat_ngram_size": 2},
        {"match_source_len": True},
        {"lm_model": TableModel(make_dictionary(4), dense_table(4))},
    ],
)
def test_options_that_exact_search_would_ignore_are_refused(options):
    dictionary = make_dictionary(4)
    beam = make_beam([TableModel(dictionary, dense_table(4))], dictionary, **options)
    with pytest.raises(ValueError, match="--exact-search goes with plain beam search only"):
        ExactSequenceGenerator(beam)


def test_constraints_are_refused():
    dictionary = make_dictionary(4)
    beam = make_beam([TableModel(dictionary, dense_table(4))], dictionary)
    with pytest.raises(ValueError, match="--constraints"):
        ExactSequenceGenerator(beam).generate(
            None, make_sample(SEEDS[:1]), constraints=torch.tensor([[5]])
        )
