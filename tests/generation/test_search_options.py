"""Each option of the search, against brute force: scores, strings found, and forbidden ones."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq import search
from hypothesis import given
from hypothesis import strategies as st

from automata import (
    EOS,
    FIRST_WORD,
    PAD,
    Script,
    Table,
    TableDecoder,
    TableModel,
    beam_search,
    dense_table,
    every_string,
    make_dictionary,
    make_sample,
    positional_scores,
)
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask
from table_options import (
    SEEDS,
    UNK,
    WORDS,
    WithOptions,
    as_triples,
    assert_sound,
    complete,
    decode,
    ensembles,
    make_generator,
    tables_strategy,
    words_of,
)

A, B, C, D, E, F = range(FIRST_WORD, FIRST_WORD + 6)
language_models = st.one_of(
    st.none(), st.just(dense_table(WORDS)), st.builds(Table, words=st.just(WORDS), eos=st.just(0.9))
)
prefixes = st.lists(
    st.lists(st.sampled_from([UNK, *range(FIRST_WORD, FIRST_WORD + WORDS)]), max_size=2),
    min_size=len(SEEDS),
    max_size=len(SEEDS),
)


@given(
    tables=ensembles,
    beam=st.integers(1, 5),
    nbest=st.integers(1, 5),
    limits=st.tuples(st.integers(0, 5), st.integers(0, 3)),
    temperature=st.sampled_from([1.0, 0.3, 3.0]),
    unk_penalty=st.sampled_from([0.0, 1.5, -1.5]),
    lm=language_models,
    lm_weight=st.sampled_from([0.3, 1.0]),
    len_penalty=st.sampled_from([None, 0.0, 0.6, 1.0, 2.0]),
    prefixes=st.one_of(st.just([[]] * len(SEEDS)), prefixes),
    diversity_rate=st.sampled_from([None, 0.0, 0.4]),
    one=st.integers(0, len(SEEDS) - 1),
)
def test_options_together(
    tables, beam, nbest, limits, len_penalty, prefixes, diversity_rate, one, **changes
):
    """With any mixture of options that change scores, search is beam search over those scores."""
    max_len, min_len = limits[0], min(limits)
    strategy = None
    if diversity_rate is not None:

        def strategy(dictionary):
            return search.DiverseSiblingsSearch(dictionary, diversity_rate)

    generator = make_generator(
        tables,
        strategy,
        beam_size=beam,
        nbest=nbest,
        max_len_b=max_len,
        min_len=min_len,
        normalize_scores=len_penalty is not None,
        len_penalty=1.0 if len_penalty is None else len_penalty,
        **changes,
    )
    power = 0.0 if len_penalty is None else len_penalty
    width = max(map(len, prefixes))
    padded = torch.tensor([prefix + [PAD] * (width - len(prefix)) for prefix in prefixes])
    output = decode(generator, prefix_tokens=padded if width else None)
    prefix = padded[one : one + 1] if width else None
    (alone,) = decode(generator, SEEDS[one : one + 1], prefix_tokens=prefix)
    assert as_triples(alone) == as_triples(output[one])
    for seed, prefix, hypos in zip(SEEDS, prefixes, output, strict=True):
        table = WithOptions(
            tables,
            max_len,
            min_len,
            forced=tuple(prefix),
            diversity_rate=diversity_rate or 0.0,
            **changes,
        )
        assert_sound(hypos, table, seed, max_len, power)
        expected = [
            (score * len(tokens) / len(tokens) ** power, tokens, whole)
            for score, tokens, whole in beam_search([table], seed, beam, max_len, min_len=0)
        ]
        expected = sorted(expected, reverse=True)[:nbest]
        assert len(hypos) >= len(expected)
        for hypo, (score, tokens, whole) in zip(hypos, expected, strict=nbest >= beam):
            assert hypo["score"].item() == pytest.approx(score, abs=1e-4)
            assert tuple(hypo["tokens"].tolist()) == tokens
            assert hypo.get("incomplete", False) == (not whole)
        strings = every_string([table], seed, max_len, min_len=0)
        if hypos[0].get("exact", False):
            assert set(words_of(hypos)) == set(strings)
        if hypos[0].get("optimal", False):
            best = max(score / len(tokens) ** power for tokens, score in strings.items())
            assert hypos[0]["score"].item() == pytest.approx(best, abs=1e-4)


@given(
    tables=ensembles,
    beam=st.sampled_from([1, 3, 10]),
    max_len=st.integers(1, 5),
    temperature=st.sampled_from([1.0, 0.3, 3.0]),
    topk=st.sampled_from([-1, 1, 2, 7]),
    topp=st.sampled_from([-1.0, 0.2, 0.8]),
)
def test_sampling(tables, beam, max_len, temperature, topk, topp):
    generator = make_generator(
        tables,
        lambda dictionary: search.Sampling(dictionary, topk, topp),
        beam_size=beam,
        max_len_b=max_len,
        temperature=temperature,
    )
    table = WithOptions(tables, max_len, temperature=temperature)
    never_dies = any(member.dead_end == 0.0 and member.eos == 1.0 for member in tables)
    for seed, hypos in zip(SEEDS, decode(generator), strict=True):
        assert_sound(hypos, table, seed, max_len, repeats=True)
        assert len(hypos) <= beam
        if never_dies:
            assert len(complete(hypos)) == beam
        for hypo, tokens in zip(hypos, words_of(hypos), strict=True):
            for step in range(len(tokens) - hypo.get("incomplete", False)):
                row = table.logits(seed, tokens[:step])
                better = row[row > row[tokens[step]]]
                if topp > 0:  # --sampling-topp takes precedence if both are given
                    assert better.exp().sum() / row.exp().sum() < topp + 1e-5
                elif topk > 0:
                    assert len(better) < topk


@given(
    tables=ensembles,
    groups=st.sampled_from([1, 2, 3]),
    size=st.integers(1, 3),
    max_len=st.integers(1, 5),
    strength=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_diverse_groups(tables, groups, size, max_len, strength):
    """Each use of a word by an earlier group lowers the model's score by the strength."""
    generator = make_generator(
        tables,
        lambda dictionary: search.DiverseBeamSearch(dictionary, groups, strength),
        beam_size=groups * size,
        max_len_b=max_len,
    )
    table = WithOptions(tables, max_len)
    for seed, hypos in zip(SEEDS, decode(generator), strict=True):
        assert 1 <= len(hypos) <= groups * size
        for hypo, tokens in zip(hypos, words_of(hypos), strict=True):
            length = len(tokens) - hypo.get("incomplete", False)
            for step in range(length):
                log_p = table.logits(seed, tokens[:step])[tokens[step]].item()
                assert math.isfinite(log_p)
                penalty = log_p - hypo["positional_scores"][step].item()
                uses = round(penalty / strength) if strength > 0 else 0
                assert uses >= 0 and (groups > 1 or uses == 0)
                assert penalty == pytest.approx(uses * strength, abs=1e-4)


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_diverse_groups_with_room_find_every_string(strength):
    found = 0
    for salt in range(10):
        table = Table(30, branching=2, eos=0.7, salt=salt)
        generator = make_generator(
            [table],
            lambda dictionary: search.DiverseBeamSearch(dictionary, 2, strength),
            beam_size=30,
            max_len_b=2,
        )
        for seed, hypos in zip(SEEDS, decode(generator), strict=True):
            strings = set(every_string([table], seed, max_len=2))
            assert set(words_of(complete(hypos))) == strings
            found += len(strings)
    assert found > 100


def test_dead_groups_penalise_nobody():
    words = 12
    penalties = {}
    for word in range(FIRST_WORD, FIRST_WORD + words):
        # The first group starts with A and dies, the second starts with B or C.
        follow = {(): {A: 0.4, B: 0.35, C: 0.25}, (A,): {}}
        for start in (B, C):
            follow |= {(start,): {word: 1.0}, (start, word): {EOS: 1.0}}
        generator = make_generator(
            [Script(follow, words)],
            lambda dictionary: search.DiverseBeamSearch(dictionary, 2, 1.0),
            beam_size=2,
            max_len_b=5,
        )
        (hypo,) = decode(generator, [A])[0]
        penalties[word] = -hypo["positional_scores"][1].item()
    assert penalties == {word: 0.0 for word in penalties}


# Whether this fairseq's penalty grows with the words that two groups have shared so far.
CUMULATIVE = hasattr(search.DiverseBeamSearch(make_dictionary(1), 2, 1.0), "group_overlap")


@pytest.mark.skipif(not CUMULATIVE, reason="this fairseq's penalty does not look back")
def test_dead_candidates_share_no_words():
    # The first group begins with A and B, the second with E and F; B and F die at once.
    follow = {(): {A: 0.4, B: 0.38, E: 0.35, F: 0.33}}
    for start in (A, E):
        follow |= {(start,): {C: 1.0}, (start, C): {D: 1.0}, (start, C, D): {EOS: 1.0}}
    generator = make_generator(
        [Script(follow, words=12)],
        lambda dictionary: search.DiverseBeamSearch(dictionary, 2, 1.0),
        beam_size=4,
        max_len_b=5,
    )
    (hypo,) = [hypo for hypo in decode(generator, [A])[0] if hypo["tokens"][0] == E]
    # 1 for the word, and 1 for each word that the groups have shared before
    assert hypo["positional_scores"].tolist()[1:] == pytest.approx([-1.0, -2.0, -3.0], abs=1e-5)


def test_of_a_string_found_twice_the_better_is_kept():
    # The second group offers (B, EOS) at its first place, the first group at its third.
    follow = {(): {A: 0.5, B: 0.45}, (A,): {C: 0.9}, (B,): {C: 0.8, EOS: 0.7}}
    follow |= {(A, C): {EOS: 1.0}, (B, C): {EOS: 1.0}}
    generator = make_generator(
        [Script(follow, words=12)],
        lambda dictionary: search.DiverseBeamSearch(dictionary, 2, 0.1),
        beam_size=6,
        max_len_b=5,
    )
    hypos = decode(generator, [A])[0]
    scores = [hypo["score"].item() for hypo in hypos if words_of([hypo]) == [(B, EOS)]]
    assert max(scores) == pytest.approx(math.log(0.45 * 0.7) / 2, abs=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_no_ngram_is_repeated(size):
    follow = {(A,) * n: {A: 0.9, EOS: 0.1} for n in range(6)}
    generator = make_generator(
        [Script(follow, words=12)], beam_size=3, max_len_b=5, no_repeat_ngram_size=size
    )
    for tokens in words_of(decode(generator, [A])[0]):
        ngrams = [tokens[start : start + size] for start in range(len(tokens) - size + 1)]
        assert len(set(ngrams)) == len(ngrams)


def test_forced_eos_gives_one_hypothesis():
    table = Script({(): {A: 1.0}, (A,): {EOS: 0.5, B: 0.5}}, words=12)
    generator = make_generator([table], beam_size=3, max_len_b=5)
    hypos = decode(generator, [A], prefix_tokens=torch.tensor([[A, EOS]]))[0]
    assert words_of(hypos) == [(A, EOS)]


def match_source_length(words, **options):
    """Decode sentences of these lengths that repeat the word A."""
    generator = make_generator(
        strategy=lambda dictionary: search.LengthConstrainedBeamSearch(dictionary, 1, 0, 1, 0),
        match_source_len=True,
        **options,
    )
    return generator.generate(None, make_sample([A] * len(words), lengths=words))


@given(tables_strategy, st.integers(1, 5), st.integers(1, 4))
def test_match_source_len(table, beam, words):
    """A hypothesis ends exactly at the length of the source, with an EOS that costs nothing."""
    (hypos,) = match_source_length([words], tables=[table], beam_size=beam)
    lengths = {len(tokens) - 1 for tokens in words_of(hypos)}
    assert len(lengths) == 1 and len(set(words_of(hypos))) == len(hypos)
    for hypo, tokens in zip(hypos, words_of(hypos), strict=True):
        expected = [*positional_scores([table], A, tokens[:-1]), 0.0]
        assert hypo["positional_scores"].tolist() == pytest.approx(expected, abs=1e-4)
    if hypos[0].get("incomplete", False):
        assert lengths.pop() < words + 1 and len(hypos) == 1
    else:
        # Some versions of fairseq count the EOS of the source, others do not.
        assert lengths.pop() in (words, words + 1)


def test_match_source_len_returns_nothing_dead():
    table = dense_table(WORDS)
    for hypos in match_source_length([1, 4], tables=[table], beam_size=5):
        assert all(math.isfinite(hypo["score"]) for hypo in hypos)


class NullAttentionDecoder(TableDecoder):
    """A decoder that attends to nothing."""

    def forward(self, prev_output_tokens, encoder_out=None, **kwargs):
        logits, extra = super().forward(prev_output_tokens, encoder_out)
        return logits, {"attn": [torch.zeros_like(extra["attn"][0])]}


@pytest.mark.parametrize("score_reference", [False, True])
def test_null_attention_is_linked_to_nothing(score_reference):
    dictionary, table = make_dictionary(WORDS), Script({(): {A: 1.0}, (A,): {EOS: 1.0}}, WORDS)
    model = TableModel(dictionary, table)
    model.decoder = NullAttentionDecoder(dictionary, table, is_sparse=True)
    task = TranslationSparseTask(TranslationSparseConfig(), dictionary, dictionary)
    options = Namespace(print_alignment="hard", score_reference=score_reference)
    sample = make_sample([A])
    sample["target"] = torch.tensor([[A, EOS]])
    if score_reference:
        sample["net_input"]["prev_output_tokens"] = torch.tensor([[EOS, A]])
    hypos = task.build_generator([model], options).generate([model], sample)[0]
    assert words_of(hypos) == [(A, EOS)] and list(hypos[0]["alignment"]) == []
