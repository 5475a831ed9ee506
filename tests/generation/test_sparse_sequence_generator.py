import math
from functools import partial

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment

from automata import (
    EOS,
    FIRST_WORD,
    Script,
    Table,
    TableModel,
    beam_search,
    dense_table,
    every_string,
    make_dictionary,
)
from fairseq_sparse.generation import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
    is_sparse_model,
)
from table_options import (
    SEEDS,
    as_triples,
    assert_same,
    build_generator,
    decode,
    make_generator,
)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("members", [1, 2])
def test_beam_that_is_large_enough_finds_every_string(normalized, members):
    # Two tables of one branch each, or one of two: at most 2 + 4 + 8 + 16 strings, 32 candidates.
    tables = [
        Table(40, branching=2 // members, eos=0.6, normalized=normalized, salt=salt)
        for salt in range(members)
    ]
    generator = make_generator(tables, beam_size=40, max_len_b=4)
    seeds = list(range(FIRST_WORD, FIRST_WORD + 40))
    complete = 0
    for seed, hypos in zip(seeds, decode(generator, seeds), strict=True):
        strings = every_string(tables, seed, max_len=4)
        if not strings:
            assert [hypo["incomplete"] for hypo in hypos] == [True]
            continue
        complete += len(strings)
        expected = [(score / len(tokens), tokens, True) for tokens, score in strings.items()]
        assert_same(as_triples(hypos), sorted(expected, reverse=True))
    assert complete > 100


def test_beam_as_wide_as_the_vocabulary():
    table = Table(
        words=3, branching=3, eos=0.7
    )  # beam 6 of 7 symbols: no 2 * 6 candidates at first
    generator = make_generator([table], beam_size=20, max_len_b=4)
    assert generator.beam_size == 6
    for seed, hypos in zip(SEEDS[:3], decode(generator, SEEDS[:3]), strict=True):
        assert_same(as_triples(hypos), beam_search([table], seed, beam=6, max_len=4))


def test_stock_search_fails_where_this_one_does_not():
    outcomes = set()
    for seed in SEEDS:
        for salt in range(8):
            table = Table(words=10, branching=3, eos=0.5, dead_end=0.05, salt=salt)
            ours = as_triples(decode(make_generator([table], beam_size=3, max_len_b=5), [seed])[0])
            stock = make_generator([table], None, SequenceGenerator, beam_size=3, max_len_b=5)
            try:
                assert ours == as_triples(decode(stock, [seed])[0])
                outcomes.add("equal")
            except AssertionError as error:
                assert str(error).startswith("5 < 5")
                outcomes.add("stock failed")
    assert outcomes == {"equal", "stock failed"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"len_penalty": 0.3},
        {"normalize_scores": False},
        {"temperature": 0.5},
        {"min_len": 3},
        {"unk_penalty": 1.0},
        {"match_source_len": True},
    ],
)
@pytest.mark.parametrize("strategy", ["beam", "siblings", "sampling"])
def test_dense_table_decodes_as_stock_does(options, strategy):
    table = dense_table(10)
    outputs = []
    for generator_class in (SequenceGenerator, SparseSequenceGenerator):
        strategies = {
            "beam": search.BeamSearch,
            "siblings": partial(search.DiverseSiblingsSearch, diversity_rate=0.2),
            "sampling": partial(search.Sampling, sampling_topk=5),
        }
        generator = make_generator(
            [table], strategies[strategy], generator_class, beam_size=4, max_len_b=6, **options
        )
        torch.manual_seed(1)
        outputs.append([as_triples(hypos) for hypos in decode(generator, SEEDS)])
    stock, sparse = outputs
    assert sparse == stock
    assert "match_source_len" in options or all(len(hypos) == 4 for hypos in sparse)


def test_dense_table_decodes_as_stock_does_with_alignment():
    table = dense_table(10)
    outputs = []
    for generator_class in (SequenceGeneratorWithAlignment, SparseSequenceGeneratorWithAlignment):
        generator = make_generator([table], None, generator_class, beam_size=4, max_len_b=6)
        outputs.append(decode(generator, SEEDS))
    for stock, sparse in zip(*outputs, strict=True):
        assert as_triples(sparse) == as_triples(stock)
        assert [hypo["alignment"] for hypo in sparse] == [hypo["alignment"] for hypo in stock]


A, B, C = range(FIRST_WORD, FIRST_WORD + 3)


def decode_script(follow, **options):
    table = Script(follow, words=12)
    generator = make_generator([table], **options)
    return as_triples(decode(generator, [A])[0]), generator.model.models[0].decoder.steps


def test_prefix_of_a_sentence_that_dies():
    follow = {(): {A: 0.6, B: 0.3}, (A,): {}, (B,): {C: 0.5, A: 0.4}, (B, C): {}, (B, A): {}}
    hypos, steps = decode_script(follow, beam_size=3, max_len_b=20)
    # (A) has the higher probability, but (B, C) lives longer
    assert_same(hypos, [(math.log(0.3 * 0.5) / 3, (B, C, EOS), False)])
    assert steps == 3


def test_prefix_of_a_sentence_that_never_ends():
    follow = {(): {A: 0.6}, (A,): {B: 0.5}, (A, B): {C: 0.5}, (A, B, C): {C: 1.0}}
    hypos, _ = decode_script(follow, beam_size=2, max_len_b=3)
    assert_same(hypos, [(math.log(0.6 * 0.5 * 0.5) / 4, (A, B, C, EOS), False)])


def test_no_prefix_where_there_is_a_complete_string():
    follow = {(): {A: 0.9, B: 0.1}, (B,): {EOS: 0.01}, (A,): {A: 0.9}, (A, A): {A: 0.9}}
    hypos, steps = decode_script(follow, beam_size=3, max_len_b=20)
    assert_same(hypos, [(math.log(0.1 * 0.01) / 2, (B, EOS), True)])
    assert steps == 4


def test_sentence_ends_with_its_last_live_hypothesis():
    follow = {(): {A: 0.7, B: 0.3}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}
    hypos, steps = decode_script(follow, beam_size=5, max_len_b=20)
    expected = [(math.log(0.7) / 2, (A, EOS), True), (math.log(0.3) / 2, (B, EOS), True)]
    assert_same(hypos, expected)
    assert steps == 2  # the step that finishes both is the last


def test_samples_that_reach_a_dead_end_give_no_hypothesis():
    # Half of them do; all others are kept.
    table = Script({(): {A: 0.5, B: 0.5}, (A,): {}, (B,): {EOS: 1.0}}, words=12)
    generator = build_generator(table, beam=12, max_len_b=6, sampling=True)
    torch.manual_seed(1)
    output = decode(generator, [A] * 50)
    assert {triple[1] for hypos in output for triple in as_triples(hypos)} == {(B, EOS)}
    assert 4 < sum(map(len, output)) / 50 < 8


def test_is_sparse_model():
    dictionary = make_dictionary(3)
    assert is_sparse_model(TableModel(dictionary, Table(3)))
    assert not is_sparse_model(TableModel(dictionary, Table(3), is_sparse=False))
    assert not is_sparse_model(torch.nn.Linear(2, 2))
    assert not is_sparse_model(None)
