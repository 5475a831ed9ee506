"""Lexically constrained search over probabilities that can be 0."""

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator
from fairseq.token_generation_constraints import pack_constraints
from hypothesis import given
from hypothesis import strategies as st

from automata import EOS, FIRST_WORD, Script, Table, beam_search, every_string
from fairseq_sparse.generation import SparseSequenceGenerator
from table_options import (
    SEEDS,
    FullTable,
    WithOptions,
    assert_sound,
    complete,
    decode,
    ensembles,
    make_generator,
    words_of,
)

A, B, C, D = range(FIRST_WORD, FIRST_WORD + 4)


def contains(tokens, phrases, ordered):
    """Whether *tokens* have all *phrases*, in this order or in any."""
    start = 0
    for phrase in phrases:
        ends = [
            at + len(phrase)
            for at in range(start, len(tokens) - len(phrase) + 1)
            if tuple(tokens[at : at + len(phrase)]) == tuple(phrase)
        ]
        if not ends:
            return False
        start = ends[0] if ordered else 0
    return True


def constrained_search(tables, phrases, ordered, seeds, **options):
    """Decode sentences, all under the same constraints."""
    representation = "ordered" if ordered else "unordered"
    generator = make_generator(
        tables,
        lambda dictionary: search.LexicallyConstrainedBeamSearch(dictionary, representation),
        **options,
    )
    packed = pack_constraints([[torch.tensor(phrase) for phrase in phrases]] * len(seeds))
    return decode(generator, seeds, constraints=packed)


phrases_strategy = st.lists(
    st.sampled_from([(A,), (B,), (C, D), (A + 5, A + 6, A + 7)]), max_size=3, unique=True
)


@given(ensembles, phrases_strategy, st.booleans(), st.integers(1, 5), st.integers(2, 5))
def test_constraints_are_met(tables, phrases, ordered, beam, max_len):
    output = constrained_search(tables, phrases, ordered, SEEDS, beam_size=beam, max_len_b=max_len)
    table = WithOptions(tables, max_len)
    for seed, hypos in zip(SEEDS, output, strict=True):
        assert_sound(hypos, table, seed, max_len)
        assert len(hypos) <= beam
        for tokens in words_of(complete(hypos)):
            assert contains(tokens, phrases, ordered)


@given(ensembles, st.booleans(), st.integers(1, 5), st.integers(1, 5))
def test_without_constraints_it_is_beam_search(tables, ordered, beam, max_len):
    output = constrained_search(tables, [], ordered, SEEDS, beam_size=beam, max_len_b=max_len)
    for seed, hypos in zip(SEEDS, output, strict=True):
        expected = beam_search(tables, seed, beam, max_len)
        assert words_of(hypos) == [tokens for _, tokens, _ in expected]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("phrases", [[(B,)], [(B,), (A,)], [(B, A)]])
def test_constraints_over_a_full_table_as_in_stock(phrases, ordered):
    stock, sparse = (
        constrained_search(
            [FullTable(20)],
            phrases,
            ordered,
            SEEDS,
            generator_class=generator_class,
            beam_size=4,
            max_len_b=40,
        )
        for generator_class in (SequenceGenerator, SparseSequenceGenerator)
    )
    assert list(map(words_of, sparse)) == list(map(words_of, stock))
    assert all(len(hypos) == 4 for hypos in sparse)


@pytest.mark.parametrize("ordered", [True, False])
def test_live_candidates_are_not_lost_to_dead_ones_under_constraints(ordered):
    # Three candidates are alive after A, there are six places, and one candidate is lost.
    follow = {(): {A: 1.0}, (A,): {EOS: 0.5, B: 0.3, C: 0.15}}
    follow |= {(A, B): {EOS: 0.9}, (A, C): {EOS: 0.9}}
    table = Script(follow, words=12)
    hypos = constrained_search([table], [(A,)], ordered, [A], beam_size=3, max_len_b=4)[0]
    assert set(words_of(hypos)) == {(A, EOS), (A, B, EOS), (A, C, EOS)}


@pytest.mark.parametrize("ordered", [True, False])
def test_only_translation_is_not_lost_to_dead_candidates_under_constraints(ordered):
    table = Script({(): {A: 1.0}, (A,): {B: 0.5, C: 0.3, EOS: 0.15}}, words=12)
    hypos = constrained_search([table], [(A,)], ordered, [A], beam_size=3, max_len_b=4)[0]
    assert words_of(complete(hypos)) == [(A, EOS)]


@pytest.mark.slow_except("True")
@pytest.mark.parametrize("ordered", [True, False])
def test_beam_with_room_finds_every_string_that_meets_the_constraints(ordered):
    beam, found = 12, 0
    for salt in range(10):
        table = Table(24, branching=2, eos=0.6, dead_end=0.1, salt=salt)
        for seed in SEEDS:
            every = set(every_string([table], seed, max_len=3))
            words = sorted({word for tokens in every for word in tokens} - {EOS})
            for phrase in [(word,) for word in words] + [tokens[:2] for tokens in every]:
                if EOS in phrase:
                    continue
                strings = {tokens for tokens in every if contains(tokens, [phrase], ordered)}
                hypos = constrained_search(
                    [table], [phrase], ordered, [seed], beam_size=beam, max_len_b=3
                )[0]
                assert set(words_of(complete(hypos))) == strings
                found += len(strings)
    assert found > 100
