"""Decoding with the models of ``automata``, and checks of every hypothesis."""

import math
from argparse import Namespace

import pytest

from automata import (
    EOS,
    FIRST_WORD,
    TableModel,
    make_dictionary,
    make_sample,
    positional_scores,
)
from fairseq_sparse.generation import SparseSequenceGenerator
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask

SEEDS = list(range(FIRST_WORD, FIRST_WORD + 8))


def make_generator(tables, generator_class=SparseSequenceGenerator, **options):
    dictionary = make_dictionary(tables[0].words)
    models = [TableModel(dictionary, table) for table in tables]
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


def decode(generator, seeds, first_id=0, **kwargs):
    return generator.generate(None, make_sample(seeds, first_id), **kwargs)


def as_triples(hypos):
    return [
        (hypo["score"].item(), tuple(hypo["tokens"].tolist()), not hypo.get("incomplete", False))
        for hypo in hypos
    ]


def assert_same(actual, expected):
    assert [triple[1:] for triple in actual] == [triple[1:] for triple in expected]
    scores = [triple[0] for triple in expected]
    assert [triple[0] for triple in actual] == pytest.approx(scores, abs=1e-5)


def assert_sound(hypos, beam, max_len, tables=None, seed=None, temperature=1.0):
    """Check what holds for the hypotheses of any sentence, under any option."""
    assert 1 <= len(hypos) <= beam
    for hypo in hypos:
        tokens = hypo["tokens"].tolist()
        assert tokens.index(EOS) == len(tokens) - 1 <= max_len
        assert math.isfinite(hypo["score"].item())
        assert hypo["positional_scores"].shape == hypo["tokens"].shape
        assert hypo["positional_scores"].isfinite().all()
        if hypo.get("incomplete", False):
            assert len(hypos) == 1
            assert hypo["positional_scores"][-1] == 0
        if tables is not None:
            length = len(tokens) - hypo.get("incomplete", False)
            expected = positional_scores(tables, seed, tokens[:length], temperature)
            actual = hypo["positional_scores"][:length].tolist()
            assert actual == pytest.approx(expected, abs=1e-4)
