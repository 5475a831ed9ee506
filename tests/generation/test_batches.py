"""Results of a sentence are its own: batches, prefixes and limits of length, by brute force."""

from typing import NamedTuple

import pytest
import torch
from fairseq import search
from hypothesis import given
from hypothesis import strategies as st

from automata import (
    EOS,
    FIRST_WORD,
    PAD,
    Table,
    every_string,
    log_probs,
    make_sample,
)
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator
from table_options import WithOptions, make_generator, words_of

WORDS = 70  # beams are not wider than the vocabulary
WIDE = 70


class Sentence(NamedTuple):
    """A source sentence, and the tokens that its translations must begin with."""

    seed: int
    length: int
    prefix: tuple[int, ...]


class Limits(NamedTuple):
    """Options that bound the number of tokens."""

    min_len: int
    max_len_a: float
    max_len_b: int

    def longest(self, length: int) -> int:
        """Return the limit of a sentence with *length* words."""
        return max(int(self.max_len_a * (length + 1) + self.max_len_b), self.min_len)


some_word = st.integers(FIRST_WORD, FIRST_WORD + WORDS - 1)
sentence = st.builds(
    Sentence,
    seed=some_word,
    length=st.integers(1, 3),
    prefix=st.builds(
        tuple.__add__,
        st.lists(some_word, max_size=3).map(tuple),
        st.sampled_from([(), (), (EOS,)]),
    ),
)
batches = st.lists(sentence, min_size=1, max_size=4)
limits_strategy = st.one_of(
    st.builds(
        Limits,
        st.integers(0, 3),
        max_len_a=st.sampled_from([0.5, 1.0]),
        max_len_b=st.integers(0, 1),
    ),
    st.builds(Limits, st.integers(0, 3), max_len_a=st.just(0.0), max_len_b=st.integers(3, 4)),
)
tables = st.builds(
    Table,
    words=st.just(WORDS),
    branching=st.integers(1, 2),
    eos=st.sampled_from([0.3, 0.7]),
    dead_end=st.sampled_from([0.0, 0.2]),
    normalized=st.booleans(),
    salt=st.integers(0, 10**6),
)
SEARCHES = {
    "beam": {},
    "siblings": {"strategy": lambda words: search.DiverseSiblingsSearch(words, 0.1)},
    "groups": {"strategy": lambda words: search.DiverseBeamSearch(words, 2, 0.5)},
    "exact": {"nbest": 2, "add_up_mass": False},
}


def translate(generator, sentences):
    prefixes = [each.prefix for each in sentences]
    width = max(map(len, prefixes))
    padded = torch.tensor([[*prefix, *[PAD] * (width - len(prefix))] for prefix in prefixes])
    sample = make_sample(
        [each.seed for each in sentences], lengths=[each.length for each in sentences]
    )
    return generator.generate(None, sample, prefix_tokens=padded if width else None)


def generator_of(table, kind, limits, **options):
    made = make_generator([table], **{**SEARCHES[kind], **limits._asdict(), **options})
    return ExactSequenceGenerator(made) if kind == "exact" else made


def assert_alike(found, expected):
    """Check that hypotheses are the same, with what is proven about them."""
    assert words_of(found) == words_of(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"tokens", "attention", "alignment"}:
            value, expected_value = (
                torch.as_tensor(float("nan") if x is None else x) for x in (one[name], other[name])
            )
            torch.testing.assert_close(value, expected_value, rtol=1e-5, atol=1e-5, equal_nan=True)


@given(tables, batches, limits_strategy, st.sampled_from(list(SEARCHES)), st.data())
def test_results_of_a_sentence_do_not_depend_on_its_batch(table, sentences, limits, kind, data):
    generator = generator_of(table, kind, limits, beam_size=4)
    together = translate(generator, sentences)
    order = data.draw(st.permutations(range(len(sentences))))
    permuted = translate(generator, [sentences[n] for n in order])
    for n, hypotheses in zip(order, permuted, strict=True):
        (alone,) = translate(generator, [sentences[n]])
        assert_alike(together[n], alone)
        assert_alike(hypotheses, alone)


@given(tables, batches, limits_strategy, st.sampled_from([None, -1.0, 0.6, 1.0]), st.data())
def test_a_wide_beam_and_exact_search_find_every_string(table, sentences, limits, penalty, data):
    """A prefix is kept whatever its probability, up to the limit of the length."""
    for n, each in enumerate(sentences):
        if data.draw(st.booleans()):  # begin with tokens of nonzero probability
            possible = list(every_string([table], each.seed, 4, min_len=0))[:20]
            begin = data.draw(st.sampled_from(possible)) if possible else ()
            sentences[n] = each._replace(prefix=begin[: data.draw(st.integers(0, 3))])
    options = {"normalize_scores": penalty is not None, "len_penalty": penalty or 0.0}
    wide = generator_of(table, "beam", limits, beam_size=WIDE, **options)
    exact = generator_of(table, "exact", limits, beam_size=1, **{**options, "nbest": WIDE})
    outputs = zip(sentences, translate(wide, sentences), translate(exact, sentences), strict=True)
    for (seed, length, prefix), *both in outputs:
        longest = limits.longest(length)
        scores = WithOptions([table], longest, limits.min_len, forced=prefix)
        strings = every_string([scores], seed, longest, min_len=0)
        expected = {
            tokens: total / len(tokens) ** (penalty or 0) for tokens, total in strings.items()
        }
        before = [prefix[:n] for n in range(len(prefix))]
        is_impossible = any(
            log_probs([table], seed, tokens)[token] == -torch.inf
            for tokens, token in zip(before[:longest], prefix, strict=False)
        )
        assert len(expected) <= WIDE
        for hypotheses in both:
            assert all(each.get("impossible_prefix", False) == is_impossible for each in hypotheses)
            tokens = words_of(hypotheses)
            if not expected:
                assert [each["incomplete"] for each in hypotheses] == [True]
                assert tokens[0][: len(prefix[:longest])] == prefix[:longest]
                continue
            found = dict(zip(tokens, [each["score"].item() for each in hypotheses], strict=True))
            assert found == pytest.approx(expected, abs=1e-4)
            assert all(each["optimal"] and "incomplete" not in each for each in hypotheses)


def test_a_limit_below_the_least_length_is_raised_to_it():
    """``--max-len-a 0.5`` would allow an empty source 0 tokens, where ``--min-len`` asks for 1."""
    limits = Limits(min_len=2, max_len_a=0.5, max_len_b=0)
    table = Table(WORDS, branching=3, eos=1.0, dead_end=0.0)
    for kind in SEARCHES:
        generator = generator_of(table, kind, limits, beam_size=4)
        short, long = Sentence(FIRST_WORD, 1, ()), Sentence(FIRST_WORD, 7, ())
        for hypotheses in translate(generator, [short, long])[:1] + translate(generator, [short]):
            assert {len(tokens) for tokens in words_of(hypotheses)} == {3}
