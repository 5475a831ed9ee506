"""The options of fairseq-generate, each with tables of many kinds."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.modules import FairseqDropout

from automata import (
    EOS,
    FIRST_WORD,
    Table,
    TableModel,
    log_probs,
    make_dictionary,
)
from fairseq_sparse.generation import SparseSequenceGenerator, scores_are_log_probs
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask
from table_options import (
    SEEDS,
    WithOptions,
    as_triples,
    assert_sound,
    build_generator,
    decode,
    make_generator,
    words_of,
)

OPTIONS = {
    "plain": {},
    "no-repeat-ngram-size": {"no_repeat_ngram_size": 1},
    "print-alignment hard": {"print_alignment": "hard"},
    "print-alignment soft": {"print_alignment": "soft"},
    "prefix function": {"prefix_allowed_tokens_fn": lambda batch, tokens: [EOS, *range(5, 11)]},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["usual", "never ends", "dead at once", "not normalized"])
def test_option(name, kind):
    table = {
        "usual": Table(words=30, branching=4, eos=0.3, dead_end=0.1),
        "never ends": Table(words=30, branching=3, eos=0.0, dead_end=0.05),
        "dead at once": Table(words=30, dead_end=1.0),
        "not normalized": Table(words=30, branching=4, eos=0.3, normalized=False),
    }[kind]
    generator = build_generator(table, beam=5, max_len_b=6, **OPTIONS[name])
    for seed, hypos in zip(SEEDS, decode(generator), strict=True):
        assert_sound(hypos, WithOptions([table], 6), seed, 6)
        assert len(hypos) <= 5
        if kind in ("never ends", "dead at once"):
            assert [hypo["incomplete"] for hypo in hypos] == [True]
        if kind == "dead at once":
            assert as_triples(hypos) == [(0.0, (EOS,), False)]
        for hypo, tokens in zip(hypos, words_of(hypos), strict=True):
            if name == "no-repeat-ngram-size":
                assert len(set(tokens)) == len(tokens)
            if name == "prefix function":
                assert set(tokens) <= {EOS, *range(5, 11)}
            if name.startswith("print-alignment"):
                # A source of one word: hard links are (0, word), soft ones a row for each token.
                assert len(hypo["alignment"]) == len(tokens) - name.endswith("hard")


class UniformLanguageModel(torch.nn.Module):
    """A language model that gives each of 34 tokens the same probability."""

    def forward(self, tokens):
        return torch.zeros(*tokens.shape, 34)

    def get_normalized_probs(self, net_output, log_probs, sample):
        return torch.log_softmax(net_output, dim=-1)


@pytest.mark.parametrize(
    "option", [{"unk_penalty": 3.0}, {"lm_weight": 1.0, "lm_model": UniformLanguageModel()}]
)
def test_scores_that_are_no_probabilities_have_no_mass(option):
    table = Table(words=30, branching=4, eos=0.3)
    for options in ({}, option):
        generator = make_generator([table], beam_size=1, max_len_b=6, **options)
        masses = [hypo["dropped_mass"] for (hypo,) in decode(generator, SEEDS)]
        assert all(math.isnan(mass) == bool(options) for mass in masses)


def test_nothing_is_proven_of_a_search_with_random_models():
    dictionary = make_dictionary(30)
    model = TableModel(dictionary, Table(words=30, branching=4, eos=0.3))
    model.dropout_module = FairseqDropout(0.1, "dropout")
    for retained in (False, True):  # as --retain-dropout does
        model.dropout_module.apply_during_inference = retained
        generator = SparseSequenceGenerator([model], dictionary, beam_size=50, max_len_b=6)
        for hypos in decode(generator, SEEDS):
            assert (hypos[0]["exact"] is None) == (hypos[0]["optimal"] is None) == retained
            assert math.isnan(hypos[0]["dropped_mass"]) == retained


def test_score_normalization_includes_the_language_model():
    dense = Table(words=30, branching=4, eos=0.3, dead_end=0.0)
    raw = Table(words=30, branching=4, eos=0.3, normalized=False)
    dictionary = make_dictionary(30)
    task = TranslationSparseTask(
        TranslationSparseConfig(score_normalization="sum"), dictionary, dictionary
    )
    for tables in ((dense, raw), (raw, dense), (raw, raw)):
        model, lm_model = (TableModel(dictionary, table) for table in tables)
        extra = {"lm_model": lm_model, "lm_weight": 1.0}
        generator = task.build_generator([model], Namespace(beam=2), extra_gen_cls_kwargs=extra)
        assert all(map(scores_are_log_probs, [*generator.model.models, generator.lm_model]))
    extra = {"lm_model": TableModel(dictionary, dense), "lm_weight": 1.0}
    with pytest.raises(ValueError, match="is for --output-transform alpha_relu"):
        task.build_generator(
            [TableModel(dictionary, dense)], Namespace(beam=2), extra_gen_cls_kwargs=extra
        )


def test_forced_prefix():
    """One of probability 0 is kept, marked, and has score 0."""
    table = Table(words=10, branching=3, eos=0.5, dead_end=0.0)
    generator = make_generator([table], beam_size=3, max_len_b=6)
    prefixes, alive = [], []
    for seed in SEEDS:  # in turn: a prefix that the model can produce, and one that it cannot
        row = log_probs([table], seed, ())[FIRST_WORD:]
        alive.append(seed % 2 == 0)
        word = row.argmax() if alive[-1] else row.argmin()
        prefixes.append([FIRST_WORD + word.item()])
    output = decode(generator, SEEDS, prefix_tokens=torch.tensor(prefixes))
    for seed, prefix, possible, hypos in zip(SEEDS, prefixes, alive, output, strict=True):
        assert_sound(hypos, WithOptions([table], 6, forced=prefix), seed, 6)
        for hypo in hypos:
            assert hypo["tokens"].tolist()[:1] == prefix
            assert hypo.get("impossible_prefix", False) != possible


@pytest.mark.parametrize("eos", [0.0, 1.0])
def test_forced_prefix_that_contains_eos(eos):
    # With --prefix-size, the prefix of a shorter reference includes its EOS.
    table = Table(words=10, branching=1, eos=eos, dead_end=0.0)
    word = log_probs([table], SEEDS[0], ())[FIRST_WORD:].argmax().item() + FIRST_WORD
    generator = make_generator([table], beam_size=3, max_len_b=6)
    prefix_tokens = torch.tensor([[word, EOS]])
    hypos = decode(generator, SEEDS[:1], prefix_tokens=prefix_tokens)[0]
    assert {tuple(hypo["tokens"].tolist()) for hypo in hypos} == {(word, EOS)}
    assert hypos[0].get("impossible_prefix", False) == (eos == 0)
    assert "incomplete" not in hypos[0] and hypos[0]["positional_scores"][-1].isfinite()
