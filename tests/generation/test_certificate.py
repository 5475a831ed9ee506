"""``exact``, ``optimal`` and ``dropped_mass``, against all strings of small models."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from automata import (
    EOS,
    FIRST_WORD,
    PAD,
    LoudTable,
    Script,
    SparseLSTM,
    Table,
    dense_table,
    every_string,
    log_probs,
    make_dictionary,
    make_sample,
)
from fairseq_sparse.generation import SparseSequenceGenerator
from fairseq_sparse.generation.certificate import Certificate, ScoreBound
from table_options import UNK, make_generator

A, B, C = range(FIRST_WORD, FIRST_WORD + 3)
SEEDS = list(range(FIRST_WORD, FIRST_WORD + 6))
MAX_LEN = 4

tables_strategy = st.builds(
    Table,
    words=st.integers(6, 9),
    branching=st.integers(1, 3),
    eos=st.sampled_from([0.2, 0.5, 0.9]),
    dead_end=st.sampled_from([0.0, 0.1, 0.5]),
    normalized=st.booleans(),
    salt=st.integers(0, 10**6),
)


loud_tables_strategy = st.builds(
    LoudTable, words=st.just(6), normalized=st.just(False), salt=st.integers(0, 1000)
)


def final_score(log_p, tokens, len_penalty):
    return log_p if len_penalty is None else log_p / len(tokens) ** len_penalty


def search_and_account(tables, seed, beam, max_len, min_len=1):
    """Run a naive beam search that adds up the probability of everything it drops.

    Returns:
        whether anything was dropped, and its mass; None if two candidates are equally good
    """
    finished, live, dropped = 0, [((), 0.0)], []
    for length in range(max_len + 1):
        candidates = []
        for prefix, score in live:
            for token, log_p in enumerate(log_probs(tables, seed, prefix).tolist()):
                if log_p == -math.inf or (token == EOS and length < min_len):
                    continue
                if token != EOS and length == max_len:
                    dropped.append(score + log_p)
                else:
                    candidates.append(((*prefix, token), score + log_p))
        candidates.sort(key=lambda candidate: -candidate[1])
        scores = [score for _, score in candidates]
        if any(one - other < 1e-5 for one, other in zip(scores, scores[1:], strict=False)):
            return None
        going_on = []
        for place, (tokens, score) in enumerate(candidates):
            if tokens[-1] == EOS and place < beam and finished < beam:
                finished += 1
            elif tokens[-1] != EOS and len(going_on) < beam:
                going_on.append((tokens, score))
            else:
                dropped.append(score)
        live = going_on
        if finished == beam:
            dropped += [score for _, score in live]
            live = []
        if not live:
            break
    return bool(dropped), math.fsum(math.exp(score) for score in dropped)


@given(st.lists(tables_strategy, min_size=1, max_size=2), st.integers(1, 7), st.integers(0, 2))
def test_account_is_that_of_a_naive_search(tables, beam, min_len):
    tables = [Table(**{**vars(table), "words": 6}) for table in tables]
    generator = make_generator(tables, beam_size=beam, max_len_b=MAX_LEN, min_len=min_len)
    for seed, hypos in zip(SEEDS, generator.generate(None, make_sample(SEEDS)), strict=True):
        account = search_and_account(tables, seed, beam, MAX_LEN, min_len)
        if account is None:
            continue
        dropped, mass = account
        incomplete = hypos[0].get("incomplete", False)
        assert {hypo["exact"] for hypo in hypos} == {not dropped and not incomplete}
        assert hypos[0]["dropped_mass"] == pytest.approx(mass, abs=1e-5)


@given(tables_strategy, st.integers(1, 12))
def test_exact_list_has_every_string(table, beam):
    generator = make_generator([table], beam_size=beam, max_len_b=MAX_LEN)
    for seed, hypos in zip(SEEDS, generator.generate(None, make_sample(SEEDS)), strict=True):
        if hypos[0]["exact"]:
            found = {tuple(hypo["tokens"].tolist()): hypo for hypo in hypos}
            # Includes strings beyond the limit: if there are any, the list must not be certified.
            strings = every_string([table], seed, max_len=MAX_LEN + 2)
            assert set(found) == set(strings)
            assert hypos[0]["optimal"] and hypos[0]["dropped_mass"] == 0


@given(
    st.one_of(tables_strategy, loud_tables_strategy),
    st.integers(1, 5),
    st.sampled_from([None, -0.5, 0.0, 0.6, 1.0, 2.0]),
    st.integers(1, 3),
)
def test_optimal_is_the_best_of_all_strings(table, beam, len_penalty, nbest):
    generator = make_generator(
        [table],
        beam_size=beam,
        max_len_b=MAX_LEN,
        normalize_scores=len_penalty is not None,
        len_penalty=1.0 if len_penalty is None else len_penalty,
        nbest=min(nbest, beam),
    )
    for seed, hypos in zip(SEEDS, generator.generate(None, make_sample(SEEDS)), strict=True):
        strings = every_string([table], seed, MAX_LEN)
        if hypos[0]["optimal"]:
            best = max(final_score(score, tokens, len_penalty) for tokens, score in strings.items())
            assert hypos[0]["score"].item() == pytest.approx(best, abs=1e-4)


# Tables whose scores have a bound, without which no search stops early.
bounded_tables = st.builds(
    Table,
    words=st.just(12),
    branching=st.integers(2, 5),
    eos=st.sampled_from([0.5, 0.9]),
    dead_end=st.just(0.0),
    salt=st.integers(0, 10**6),
)


@given(
    bounded_tables, st.integers(2, 8), st.sampled_from([None, -0.5, 0.0, 1.0]), st.integers(1, 7)
)
# Here the second best translation is found after the best one is certain.
@example(Table(12, branching=3, eos=0.9, dead_end=0.0, salt=6), 4, None, 2)
def test_early_stop_leaves_the_best_as_they_are(table, beam, len_penalty, nbest):
    options = dict(
        beam_size=beam,
        max_len_b=MAX_LEN,
        normalize_scores=len_penalty is not None,
        len_penalty=1.0 if len_penalty is None else len_penalty,
    )
    full = make_generator([table], **options).generate(None, make_sample(SEEDS))
    early = make_generator([table], nbest=nbest, **options).generate(None, make_sample(SEEDS))
    for one, other in zip(full, early, strict=True):
        scores = [hypo["score"].item() for hypo in one[:nbest]]
        assert [hypo["score"].item() for hypo in other[:nbest]] == pytest.approx(scores, abs=1e-5)
        assert other[0]["dropped_mass"] >= one[0]["dropped_mass"] - 1e-6
        assert not other[0]["exact"] or one[0]["exact"]


def test_the_bound_of_a_sentence_is_by_its_own_limit():
    """The first sentence of the batch has ended; the second may have 4 tokens and EOS."""
    bound = ScoreBound(np.array([9, 4]), len_penalty=1.0, holds=True)
    certificate = Certificate(bound, batch=2, beam=1, add_up_mass=False)
    scores = np.array([[-3.0, -np.inf]], dtype=np.float32)
    certificate.record(np.array([1]), scores, np.zeros((1, 2), dtype=bool), scores > -np.inf)
    assert certificate.active_bounds() == pytest.approx(-3 / 5, abs=1e-5)


def test_early_stop_saves_steps():
    table = dense_table(6)
    steps = []
    for nbest in (1, 5):
        generator = make_generator(
            [table], beam_size=5, max_len_b=30, normalize_scores=False, nbest=nbest
        )
        generator.generate(None, make_sample(SEEDS))
        steps.append(generator.model.models[0].decoder.steps)
    assert steps[0] < steps[1]


class TableWithPadding(Table):
    """A table that gives padding, which no search chooses, a part of every distribution."""

    def logits(self, seed, prefix):
        logits = super().logits(seed, prefix).clone()
        logits[PAD] = 2 * math.sin(len(prefix) + seed) + logits.max()
        return logits


@given(
    table=st.builds(
        TableWithPadding,
        words=st.just(8),
        branching=st.integers(1, 4),
        eos=st.sampled_from([0.3, 0.6, 1.0]),
        dead_end=st.just(0.0),
        salt=st.integers(0, 1000),
    ),
    beam=st.integers(1, 5),
    max_len=st.integers(0, 4),
    nbest=st.integers(1, 5),
    sums_to_one=st.booleans(),
)
def test_list_and_dropped_mass_add_up_to_one(table, beam, max_len, nbest, sums_to_one):
    """Every prefix has a continuation, so all mass outside the list was dropped."""
    options = {"beam_size": beam, "max_len_b": max_len, "min_len": 0, "nbest": min(nbest, beam)}
    generator = make_generator([table], **options)
    projection = generator.model.models[0].decoder.output_projection
    projection.scores_are_log_probs = sums_to_one  # or else the search adds up each step
    for hypos in generator.generate(None, make_sample(SEEDS)):
        complete = [hypo for hypo in hypos if not hypo.get("incomplete", False)]
        found = sum(hypo["positional_scores"].double().sum().exp().item() for hypo in complete)
        assert found + hypos[0]["dropped_mass"] == pytest.approx(1, abs=1e-5)


def search_script(follow, prefix_tokens=None, **options):
    """Return the hypotheses of a table of log-probabilities, whose steps are known to sum to 1."""
    generator = make_generator([Script(follow, words=6)], **{"min_len": 0, **options})
    generator.model.models[0].decoder.output_projection.scores_are_log_probs = True
    return generator.generate(None, make_sample(SEEDS[:1]), prefix_tokens=prefix_tokens)[0]


def test_a_repeated_ngram_that_is_blocked_is_not_dropped():
    follow = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.5, B: 0.3, EOS: 0.2}, (A, B): {EOS: 1.0}}
    (best,) = search_script(follow, beam_size=1, no_repeat_ngram_size=1)
    assert best["tokens"].tolist() == [A, B, EOS]
    assert best["dropped_mass"] == pytest.approx(0.4 + 0.6 * 0.2)


def test_an_end_that_comes_too_soon_is_not_dropped():
    follow = {(): {A: 0.5, B: 0.2, EOS: 0.3}, (A,): {EOS: 1.0}}
    (best,) = search_script(follow, beam_size=1, min_len=1)
    assert best["dropped_mass"] == pytest.approx(0.2)


def test_what_a_prefix_excludes_is_not_dropped():
    follow = {(): {A: 0.6, B: 0.4}, (A,): {B: 0.7, EOS: 0.3}, (A, B): {EOS: 1.0}}
    with pytest.raises(ValueError, match="--left-pad-target"):
        search_script(follow, prefix_tokens=torch.tensor([[PAD, A]]))
    found = search_script(follow, beam_size=2, prefix_tokens=torch.tensor([[A]]))
    assert len(found) == 2 and found[0]["exact"] and found[0]["dropped_mass"] == 0


def test_a_translation_that_finds_the_list_full_is_dropped():
    """All candidates are among the first `beam`, but only one of the two last is listed."""
    follow = {(): {A: 0.5, EOS: 0.3, B: 0.2}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}
    found = search_script(follow, beam_size=2)
    assert len(found) == 2 and found[0]["optimal"] and not found[0]["exact"]
    assert found[0]["dropped_mass"] == pytest.approx(0.2)


def test_a_reward_for_unknown_words_can_still_come():
    follow = {(): {A: 0.6, B: 0.4}, (A,): {EOS: 1.0}, (B,): {C: 1.0}, (B, C): {UNK: 1.0}}
    follow[(B, C, UNK)] = {EOS: 1.0}
    options = {"beam_size": 2, "nbest": 1, "normalize_scores": False}
    assert search_script(follow, **options)[0]["tokens"].tolist() == [A, EOS]
    best = search_script(follow, unk_penalty=-3.0, **options)[0]
    assert best["tokens"].tolist() == [B, C, UNK, EOS]


def test_certificates_of_a_batch_are_those_of_single_sentences():
    dictionary = make_dictionary(20)
    torch.manual_seed(1)
    generator = SparseSequenceGenerator(
        [SparseLSTM(dictionary)], dictionary, beam_size=4, max_len_b=12, nbest=1
    )
    seeds = list(range(FIRST_WORD, FIRST_WORD + 20))
    together = generator.generate(None, make_sample(seeds))
    for seed, expected in zip(seeds, together, strict=True):
        (alone,) = generator.generate(None, make_sample([seed]))
        for key in ("exact", "optimal"):
            assert alone[0][key] == expected[0][key]
        assert alone[0]["dropped_mass"] == pytest.approx(expected[0]["dropped_mass"], abs=1e-5)


@given(
    st.lists(st.floats(-20, 0), min_size=2, max_size=8),
    st.sampled_from([None, -1.0, 0.0, 0.5, 1.0, 3.0]),
)
def test_bound_holds_for_all_continuations(log_ps, len_penalty):
    bound = ScoreBound(max_len=len(log_ps) - 1, len_penalty=len_penalty, holds=True)
    total = np.float32(0.0)
    bounds = []
    for step, log_p in enumerate(log_ps):
        total = total + log_p
        assert all(bound.finished(total, step) <= earlier for earlier in bounds)
        bounds.append(bound.unfinished(total, step))
