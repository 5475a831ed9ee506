"""Sentence pairs that are wrong on purpose: sources with the references of other sentences.

ReLA (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units", Fig. 6) measures null
attention on such pairs, which a model that hallucinates might have written.
"""

import copy
from dataclasses import replace

import numpy as np
from fairseq.data import BaseWrapperDataset, FairseqDataset, LanguagePairDataset

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.translator import Translator
from fairseq_sparse.tasks.translation_sparse import TranslationSparseTask


def derange(count: int, seed: int, percent: float = 100) -> np.ndarray:
    """Return the numbers from 0 below ``count``, a random share of which have changed places.

    Args:
        count: how many numbers.
        seed: from 0 to 2^32 - 1; the result is the same in every version of NumPy.
        percent: the share of numbers that change places, rounded; all others stay.

    Raises:
        AnalysisError: fewer than two numbers would change places, or more than all.
    """
    if not 0 <= percent <= 100:
        raise AnalysisError(f"{percent:g}% cannot change places: choose a share from 0 to 100")
    wrong = round(count * percent / 100)
    if wrong < 2:
        raise AnalysisError(
            f"{percent:g}% of {count} sentences are {wrong}: at least two must change places"
        )
    circle = np.random.RandomState(seed).permutation(count)[:wrong]
    result = np.arange(count)
    result[circle] = np.roll(circle, 1)
    return result


def reorder_references(dataset: LanguagePairDataset, order: np.ndarray) -> LanguagePairDataset:
    """Return a data set in which sentence ``n`` has the reference of sentence ``order[n]``.

    Sizes move with the references, so that batches and the length limit use the new pairs.
    Alignments, which would be wrong, are dropped. The given data set is unchanged.

    Raises:
        AnalysisError: there are no references.
    """
    if dataset.tgt is None:
        raise AnalysisError("there are no references to shuffle")
    result = copy.copy(dataset)
    result.tgt = _Reordered(dataset.tgt, order)
    result.tgt_sizes = dataset.tgt_sizes[order]
    result.sizes = np.stack([dataset.src_sizes, result.tgt_sizes], axis=1)
    result.align_dataset = None
    return result


def with_reordered_references(translator: Translator, order: np.ndarray) -> Translator:
    """Return the same models with a task that reorders the references of the data that it loads.

    Args:
        translator: the models; the new task looks at all sentences of the data.
        order: as in :func:`reorder_references`.
    """
    return replace(translator, task=_ReorderedTask(translator.task, order))


class _ReorderedTask(TranslationSparseTask):
    def __init__(self, task: TranslationSparseTask, order: np.ndarray):
        super().__init__(task.cfg, task.source_dictionary, task.target_dictionary)
        self.order = order

    def load_dataset(self, split, *args, **kwargs):
        super().load_dataset(split, *args, **kwargs)
        self.datasets[split] = reorder_references(self.datasets[split], self.order)


class _Reordered(BaseWrapperDataset):
    """A data set whose sentence ``n`` is sentence ``order[n]`` of another."""

    def __init__(self, dataset: FairseqDataset, order: np.ndarray):
        super().__init__(dataset)
        self.order = order

    def __getitem__(self, index):
        return self.dataset[self.order[index]]

    def prefetch(self, indices):
        self.dataset.prefetch(self.order[indices])
