"""Deliberately wrong sentence pairs: which reference each sentence gets, and the batches."""

import math

import numpy as np
import pytest
import torch
from fairseq.data import LanguagePairDataset, ListDataset
from hypothesis import given
from hypothesis import strategies as st

import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.shuffled_references import derange, reorder_references

SEEDS = st.integers(0, 2**31)


def test_orders_depend_on_the_seed_and_on_nothing_else():
    assert len({tuple(derange(20, seed)) for seed in range(20)}) == 20
    # The same under every version of Python and NumPy, so that results can be compared.
    assert derange(8, 1).tolist() == [6, 2, 7, 4, 0, 3, 1, 5]
    assert derange(8, 1, 50).tolist() == [0, 2, 7, 3, 4, 5, 1, 6]


@given(st.integers(0, 200), st.just(100) | st.floats(0, 100), SEEDS)
def test_so_many_percent_change_places_and_no_others(count, percent, seed):
    wrong = round(count * percent / 100)
    if wrong < 2:
        with pytest.raises(AnalysisError, match="at least two must change places"):
            derange(count, seed, percent)
        return
    order = derange(count, seed, percent)
    assert sorted(order) == list(range(count))
    assert (order != np.arange(count)).sum() == wrong
    assert order.tolist() == derange(count, seed, percent).tolist()


def test_what_cannot_change_places_is_refused():
    for percent in (130, -1, math.inf, math.nan):
        with pytest.raises(AnalysisError, match="choose a share from 0 to 100"):
            derange(10, 1, percent)
    words = toy.dictionary()
    no_references = LanguagePairDataset(ListDataset([torch.tensor([4])] * 2), np.ones(2), words)
    with pytest.raises(AnalysisError, match="no references to shuffle"):
        reorder_references(no_references, derange(2, 1))


class Prefetched(ListDataset):
    """Sentences that must be prefetched, as with ``--dataset-impl cached``."""

    supports_prefetch = True

    def __init__(self, dataset, sizes):
        super().__init__(dataset, sizes)
        self.fetched = set(range(len(dataset)))

    def prefetch(self, indices):
        self.fetched = {int(index) for index in indices}

    def __getitem__(self, index):
        assert index in self.fetched
        return super().__getitem__(index)


def pairs_of(words, lengths):
    """A data set of pairs of the given lengths in which no two sentences are alike."""
    source = [torch.full((size,), 4 + number) for number, (size, _) in enumerate(lengths)]
    target = [torch.full((size,), 4 + number) for number, (_, size) in enumerate(lengths)]
    source_sizes, target_sizes = np.array(lengths).T
    source, target = Prefetched(source, source_sizes), Prefetched(target, target_sizes)
    return LanguagePairDataset(
        *(source, source_sizes, words, target, target_sizes, words),
        shuffle=False,
        align_dataset=source,
    )


def test_pairs_sizes_and_order_are_those_of_the_new_references():
    lengths = [(3, 9), (3, 2), (5, 4), (3, 7)]
    dataset = pairs_of(toy.dictionary(), lengths)
    order = np.array([1, 3, 0, 2])
    result = reorder_references(dataset, order)
    for number, other in enumerate(order.tolist()):
        pair = result[number]
        assert pair["id"] == number and torch.equal(pair["source"], dataset[number]["source"])
        assert torch.equal(pair["target"], dataset[other]["target"])
        size = (lengths[number][0], lengths[other][1])
        assert result.size(number) == tuple(result.sizes[number]) == size
        assert result.num_tokens(number) == max(size)
        assert "alignment" not in pair
    # by the length of the source, then by that of its new target
    assert result.ordered_indices().tolist() == [0, 3, 1, 2]
    kept, ignored = result.filter_indices_by_size(np.arange(4), (5, 7))
    assert (kept.tolist(), list(ignored)) == ([0, 1, 3], [2])
    assert torch.equal(dataset[0]["target"], torch.full((9,), 4)) and dataset.tgt_sizes[0] == 9
    assert "alignment" in dataset[0]


def test_sentences_that_are_fetched_are_those_that_are_needed():
    dataset = reorder_references(pairs_of(toy.dictionary(), [(2, 2)] * 4), np.array([1, 3, 0, 2]))
    assert dataset.supports_prefetch
    dataset.prefetch([0, 1])
    assert [int(dataset[number]["target"][0]) - 4 for number in (0, 1)] == [1, 3]
