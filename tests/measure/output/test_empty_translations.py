"""The empty translation against the best one, on models whose every string is known."""

import math

import pytest
import torch

from automata import EOS, FIRST_WORD, LoudTable, Script, log_probs
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.output.empty_translations import (
    compare,
    count_empty_translations,
)
from finite_tables import SEEDS, WIDE, WORDS, finite_table, samples, strings_of, translator_of

A, B = FIRST_WORD, FIRST_WORD + 1


def by_hand(tables):
    """Return (log p(empty), log p(best)) of each seed, from the list of all strings."""
    pairs = []
    for seed, strings in zip(SEEDS, strings_of(tables), strict=True):
        empty = log_probs(list(tables), seed, ())[EOS].item()
        pairs.append((empty, max(strings.values())))
    return pairs


@pytest.mark.parametrize("ensemble", [1, 2])
def test_shares_and_means_are_those_of_all_strings(ensemble):
    won = impossible = 0
    for salt in range(0, 24, ensemble):
        tables = [finite_table(salt + n) for n in range(ensemble)]
        result = count_empty_translations(translator_of(*tables), samples(), WIDE)
        pairs = by_hand(tables)
        wins = sum(empty > best for empty, best in pairs)
        zeros = sum(empty == -math.inf for empty, _ in pairs)
        assert result["sentences"] == len(SEEDS)
        assert result["empty_is_best"] == wins / len(SEEDS)
        assert result["empty_is_impossible"] == zeros / len(SEEDS)
        assert result["nothing_found"] == 0
        found = sum(best for _, best in pairs) / len(pairs)
        assert result["log_p_found"] == pytest.approx(found, rel=1e-5)
        possible = [empty for empty, _ in pairs if empty > -math.inf]
        mean = sum(possible) / len(possible) if possible else None
        assert result["log_p_empty"] == (mean and pytest.approx(mean, rel=1e-5))
        won, impossible = won + wins, impossible + zeros
    assert won > 0 and impossible > 0


def count(follow, beam=5):
    translator = translator_of(Script(follow, WORDS))
    return count_empty_translations(translator, samples(SEEDS[:2]), beam)


def test_the_whole_string_counts_with_its_end():
    # p(empty) = 0.3. The word A alone has a higher probability, 0.5, but with its EOS 0.25.
    follow = {(): {EOS: 0.3, A: 0.5}, (A,): {EOS: 0.5, B: 0.1}, (A, B): {EOS: 1.0}}
    result = count(follow)
    assert result["empty_is_best"] == 1
    assert result["log_p_empty"] == pytest.approx(math.log(0.3))
    assert result["log_p_found"] == pytest.approx(math.log(0.25))
    assert count({**follow, (A,): {EOS: 0.7}})["empty_is_best"] == 0


def test_the_rival_is_the_most_probable_translation_not_the_first_of_the_list():
    # By log p / length the long string is the first (0.2, length 3), by log p the short one (0.3).
    follow = {(): {EOS: 0.25, A: 0.3, B: 0.2}, (A,): {EOS: 1.0}, (B,): {B: 1.0}, (B, B): {EOS: 1.0}}
    result = count(follow)
    assert result["log_p_found"] == pytest.approx(math.log(0.3)) and result["empty_is_best"] == 0


def test_a_narrow_beam_may_find_less_than_the_empty_translation():
    follow = {(): {EOS: 0.2, A: 0.5, B: 0.3}, (A,): {EOS: 0.1, A: 0.1}, (B,): {EOS: 1.0}}
    assert count(follow, beam=1)["empty_is_best"] == 1
    assert count(follow, beam=2)["empty_is_best"] == 0


def test_a_prefix_that_nothing_can_end_is_no_translation():
    follow = {(): {EOS: 0.2, A: 0.5}, (A,): {}}
    result = count(follow)
    assert (result["empty_is_best"], result["nothing_found"]) == (1, 1)
    assert result["log_p_found"] is None
    # If both are impossible, the empty translation is not the best.
    result = count({(): {A: 0.5}, (A,): {}})
    assert (result["empty_is_best"], result["empty_is_impossible"]) == (0, 1)


def test_weights_above_1_are_compared_as_they_are():
    table = LoudTable(WORDS, branching=1, eos=1.0, dead_end=0.0, normalized=False, salt=3)
    translator = translator_of(table)
    assert not translator.is_normalised
    result = count_empty_translations(translator, samples(), beam=1)
    empty = [table.logits(seed, ())[EOS].item() for seed in SEEDS]
    assert result["log_p_empty"] == pytest.approx(sum(empty) / len(empty))
    assert result["log_p_empty"] > 0


def test_compare():
    inf = math.inf
    empty = torch.tensor([-1.0, -2.0, -inf, -inf, -3.0], dtype=torch.float64)
    found = torch.tensor([-2.0, -1.0, -4.0, -inf, -inf], dtype=torch.float64)
    assert compare(empty, found) == {
        "sentences": 5,
        "empty_is_best": 0.4,
        "empty_is_impossible": 0.4,
        "nothing_found": 0.4,
        "log_p_empty": pytest.approx(-2),
        "log_p_found": pytest.approx(-7 / 3),
    }
    with pytest.raises(ValueError, match="NaN"):
        compare(empty, torch.full((5,), math.nan, dtype=torch.float64))
    with pytest.raises(AnalysisError, match="no sentence"):
        count_empty_translations(translator_of(finite_table(1)), [], beam=1)
