"""Tables of ``automata`` under search options: models, expected scores, and checks."""

import math
import random
from argparse import Namespace

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from automata import (
    EOS,
    FIRST_WORD,
    LoudTable,
    Table,
    TableDecoder,
    TableModel,
    dense_table,
    log_probs,
    make_dictionary,
    make_sample,
)
from fairseq_sparse.generation import SparseSequenceGenerator
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask

UNK = 3
WORDS = 8
SEEDS = list(range(FIRST_WORD, FIRST_WORD + 6))


class TableWithUnknown(Table):
    """A table whose first word is the unknown word."""

    def logits(self, seed, prefix):
        row = super().logits(seed, prefix).clone()
        row[[UNK, FIRST_WORD]] = row[[FIRST_WORD, UNK]]
        return row


class FullTable(Table):
    """A table without zeros, but for the special symbols, in which most sentences are short."""

    def logits(self, seed, prefix):
        chance = random.Random(f"{seed} {prefix}")
        row = torch.full((self.vocabulary,), -math.inf)
        row[FIRST_WORD:] = torch.tensor([chance.uniform(-3, 0) for _ in range(self.words)])
        row[EOS] = 0.5
        return row


class TableLanguageModel(nn.Module):
    """A language model that looks up its logits, for one source sentence only."""

    def __init__(self, dictionary, table):
        super().__init__()
        self.decoder = TableDecoder(dictionary, table, is_sparse=True)

    def forward(self, tokens):
        seeds = torch.zeros(len(tokens), dtype=torch.long)
        return self.decoder(tokens, {"seeds": seeds, "src_tokens": tokens})

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return self.decoder.get_normalized_probs(net_output, log_probs)


class WithOptions:
    """A table of the scores that a search adds up: an average of tables under given options.

    Args:
        tables: the tables of the models
        max_len, min_len: limits of the number of words
        temperature: divides the logits
        unk_penalty: taken from the score of the unknown word
        lm, lm_weight: table and weight of a language model
        forced: words that a hypothesis must begin with; one of probability 0 has score 0
        diversity_rate: penalty per rank among the siblings, counted from 1
    """

    normalized = False
    words = WORDS

    def __init__(
        self,
        tables,
        max_len,
        min_len=1,
        temperature=1.0,
        unk_penalty=0.0,
        lm=None,
        lm_weight=0.0,
        forced=(),
        diversity_rate=0.0,
    ):
        self.tables, self.max_len, self.min_len = tables, max_len, min_len
        self.temperature, self.unk_penalty = temperature, unk_penalty
        self.lm, self.lm_weight = lm, lm_weight
        self.forced, self.diversity_rate = forced, diversity_rate

    def logits(self, seed, prefix):
        row = log_probs(self.tables, seed, prefix, self.temperature)
        if self.lm is not None:
            row = row + self.lm_weight * log_probs([self.lm], 0, prefix)
        row[UNK] -= self.unk_penalty
        allowed = torch.ones(len(row), dtype=torch.bool)
        step = len(prefix)
        if step >= self.max_len:
            allowed = torch.arange(len(row)) == EOS
        elif step < len(self.forced):
            allowed = torch.arange(len(row)) == self.forced[step]
            row[allowed & row.isneginf()] = 0.0
        if len(self.forced) <= step < self.min_len:
            allowed[EOS] = False
        row = row.masked_fill(~allowed, -math.inf)
        if step > 0:
            rank = row.argsort(descending=True).argsort() + 1
            row = row - self.diversity_rate * rank
        return row


def make_generator(
    tables, strategy=None, generator_class=SparseSequenceGenerator, lm=None, **options
):
    """Return a generator over tables; *strategy* is called with the dictionary."""
    dictionary = make_dictionary(tables[0].words)
    models = [TableModel(dictionary, table) for table in tables]
    if strategy is not None:
        options["search_strategy"] = strategy(dictionary)
    if lm is not None:
        options["lm_model"] = TableLanguageModel(dictionary, lm)
    return generator_class(models, dictionary, **options)


def build_generator(table, **options):
    """Return the generator that the task builds from command-line options."""
    dictionary = make_dictionary(table.words)
    config = TranslationSparseConfig(score_normalization=options.pop("score_normalization", "none"))
    task = TranslationSparseTask(config, dictionary, dictionary)
    prefix_allowed_tokens_fn = options.pop("prefix_allowed_tokens_fn", None)
    return task.build_generator(
        [TableModel(dictionary, table)],
        Namespace(**options),
        prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
    )


def decode(generator, seeds=SEEDS, **kwargs):
    # Sentences are numbered within the data set, not within the batch.
    return generator.generate(None, make_sample(seeds, first_id=1000), **kwargs)


def as_triples(hypos):
    return [
        (hypo["score"].item(), tuple(hypo["tokens"].tolist()), not hypo.get("incomplete", False))
        for hypo in hypos
    ]


def assert_same(actual, expected):
    assert [triple[1:] for triple in actual] == [triple[1:] for triple in expected]
    scores = [triple[0] for triple in expected]
    assert [triple[0] for triple in actual] == pytest.approx(scores, abs=1e-5)


def words_of(hypos):
    return [tuple(hypo["tokens"].tolist()) for hypo in hypos]


def complete(hypos):
    return [hypo for hypo in hypos if not hypo.get("incomplete", False)]


def assert_sound(hypos, table, seed, max_len, power=1.0, repeats=False):
    """Check what holds for a sentence's hypotheses under any option that *table* contains."""
    assert hypos and (repeats or len(set(words_of(hypos))) == len(hypos))
    scores = [hypo["score"].item() for hypo in hypos]
    assert scores == sorted(scores, reverse=True)
    for hypo, tokens in zip(hypos, words_of(hypos), strict=True):
        assert tokens.index(EOS) == len(tokens) - 1 <= max_len
        expected = [
            table.logits(seed, tokens[:step])[token].item() for step, token in enumerate(tokens)
        ]
        if hypo.get("incomplete", False):
            assert len(hypos) == 1
            expected[-1] = 0.0
        assert all(map(math.isfinite, expected)), f"{tokens} is dead: {expected}"
        assert hypo["positional_scores"].tolist() == pytest.approx(expected, abs=1e-4)
        total = sum(expected) / len(tokens) ** power
        assert hypo["score"].item() == pytest.approx(total, abs=1e-4)


def random_tables(normalized):
    return st.builds(
        TableWithUnknown,
        words=st.just(WORDS),
        branching=st.integers(1, 5),
        eos=st.sampled_from([0.0, 0.3, 0.7]),
        dead_end=st.sampled_from([0.0, 0.1, 0.4]),
        normalized=normalized,
        salt=st.integers(0, 10**6),
    )


tables_strategy = st.one_of(
    random_tables(st.booleans()),
    st.builds(
        LoudTable, words=st.just(WORDS), normalized=st.just(False), salt=st.integers(0, 10**6)
    ),
)
# Not two normalised tables: the mean of two rows of one word each would be a tie.
ensembles = st.one_of(
    tables_strategy.map(lambda table: [table]),
    st.tuples(
        tables_strategy, st.one_of(random_tables(st.just(False)), st.just(dense_table(WORDS)))
    ).map(list),
)
