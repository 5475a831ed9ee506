"""Table models with few strings, as translators, for the analyses of the output."""

import torch

from automata import EOS, FIRST_WORD, Table, TableModel, every_string, make_dictionary, make_sample
from fairseq_sparse.measure.translator import Translator
from fairseq_sparse.tasks.translation_sparse import TranslationSparseConfig, TranslationSparseTask

# Many words, because fairseq's beams are not wider than the vocabulary.
WORDS = 30
SEEDS = list(range(FIRST_WORD, FIRST_WORD + 7))
LONGEST = 3
WIDE = 30  # a beam that drops nothing


class FiniteTable(Table):
    """A table whose strings have at most LONGEST words: the longest prefixes can only end."""

    def logits(self, seed, prefix):
        logits = super().logits(seed, prefix)
        if len(prefix) < LONGEST or EOS in prefix:
            return logits
        only_end = torch.full_like(logits, -torch.inf)
        only_end[EOS] = 0.0
        return only_end


def finite_table(salt, branching=2, dead_end=0.0, normalized=True):
    return FiniteTable(
        WORDS, branching, eos=0.4, dead_end=dead_end, normalized=normalized, salt=salt
    )


def translator_of(*tables, is_sparse=True):
    words = make_dictionary(tables[0].words)
    models = [TableModel(words, table, is_sparse) for table in tables]
    return Translator(
        "tables", [], models, TranslationSparseTask(TranslationSparseConfig(), words, words)
    )


def samples(seeds=SEEDS, size=3):
    """Return the seeds as several batches."""
    return [make_sample(seeds[n : n + size], first_id=n) for n in range(0, len(seeds), size)]


def strings_of(tables, min_len=1):
    """Return all strings and their log-probabilities for each seed."""
    return [every_string(list(tables), seed, LONGEST, min_len) for seed in SEEDS]
