"""Beam search against fairseq's loop with SparseSearch, and what only the former can do."""

import math

import pytest
import torch
from fairseq import search
from hypothesis import given
from hypothesis import strategies as st

import toy
from automata import (
    EOS,
    FIRST_WORD,
    PAD,
    BrokenTable,
    Table,
    TableModel,
    dense_table,
    make_dictionary,
    make_sample,
)
from fairseq_sparse.generation.sparse_sequence_generator import (
    SparseSequenceGenerator,
)
from table_options import UNK, TableLanguageModel

WORDS = 10
PROVEN = {"exact", "optimal", "dropped_mass"}


class InFairseqsLoop(search.BeamSearch):
    """fairseq's beam search; only its very class is replaced by the package's."""


@torch.no_grad()
def both(models, words, sample, beam_size=1, prefix_tokens=None, bos_token=None, **options):
    """The hypotheses of this beam search, and those of fairseq's loop."""
    given = {"prefix_tokens": prefix_tokens, "bos_token": bos_token}
    return tuple(
        SparseSequenceGenerator(
            models, words, beam_size=beam_size, search_strategy=strategy(words), **options
        ).generate(None, sample, **given)
        for strategy in (search.BeamSearch, InFairseqsLoop)
    )


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for hypotheses, others in zip(found, expected, strict=True):
        assert len(hypotheses) == len(others) >= 1
        for one, other in zip(hypotheses, others, strict=True):
            assert one.keys() == other.keys()
            for name in other.keys() - PROVEN:
                value = other[name]
                if torch.is_tensor(value):
                    assert one[name].dtype == value.dtype and one[name].shape == value.shape, name
                    torch.testing.assert_close(one[name], value, rtol=1e-6, atol=1e-6)
                else:
                    assert one[name] == value, name


tables = st.builds(
    Table,
    words=st.just(WORDS),
    branching=st.integers(1, 5),
    eos=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    dead_end=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    normalized=st.booleans(),
    salt=st.integers(0, 10**6),
)
some_word = st.sampled_from([UNK, *range(FIRST_WORD, FIRST_WORD + WORDS)])
# An EOS at the end of a prefix ends its hypothesis.
prefix = st.builds(list.__add__, st.lists(some_word, max_size=2), st.sampled_from([[], [EOS]]))


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


@given(
    tables=st.lists(tables, min_size=1, max_size=2),
    prefixes=st.none() | st.lists(prefix, min_size=4, max_size=4).filter(any),
    beam_size=st.integers(1, 6),
    max_len=st.integers(1, 6),
    min_len=st.integers(0, 2),
    len_penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0]),
    normalize_scores=st.booleans(),
    unk_penalty=st.sampled_from([0.0, 1.0, math.inf]),
    temperature=st.sampled_from([1.0, 0.7]),
    add_up_mass=st.booleans(),
    no_repeat_ngram_size=st.sampled_from([0, 2, 3]),
    tokens_to_suppress=st.sampled_from([(), ("w1", "w4")]),
    lm_weight=st.sampled_from([0.0, 0.5]),
)
def test_random_tables(tables, prefixes, max_len, min_len, lm_weight, **options):
    words = make_dictionary(WORDS)
    models = [TableModel(words, table) for table in tables]
    sample = make_sample(list(range(FIRST_WORD, FIRST_WORD + 4)))
    options |= {"max_len_b": max_len, "min_len": min(min_len, max_len)}
    if lm_weight > 0:
        lm_model = TableLanguageModel(words, dense_table(WORDS))
        options |= {"lm_model": lm_model, "lm_weight": lm_weight}
    prefix_tokens = None if prefixes is None else padded(prefixes)
    # At a forced EOS, fairseq's loop copies the tokens to all beams, but not the attention.
    options["attention"] = not any(EOS in row for row in prefixes or [])
    assert_equal(*both(models, words, sample, prefix_tokens=prefix_tokens, **options))


def random_models(names, task, seed):
    flags = {
        "transformer": ["--output-transform", "alpha_relu", "--output-tau", 0.1]
        + ["--attention", "rela_g", "--decoder-learned-pos"],
        "lstm_sparse": ["--output-transform", "entmax15", "--attention", "sparsemax"]
        + ["--encoder-bidirectional", "--encoder-layers", 2, "--decoder-layers", 2],
    }
    arch = {"transformer": "transformer_sparse_tiny", "lstm_sparse": "lstm_sparse"}
    models = []
    for name in names.split("+"):
        seed += 1
        model = toy.model(*flags[name], arch=arch[name], for_task=task, seed=seed, criterion="")
        for parameter in model.parameters():
            if parameter.dim() > 1:  # random biases would outweigh the source
                torch.nn.init.normal_(parameter, std=0.4)
        models.append(model.eval())
    return models


@pytest.mark.pairwise
@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize(
    "names",
    ["transformer", "lstm_sparse", "lstm_sparse+transformer", "transformer+transformer"],
)
@pytest.mark.parametrize("beam", [1, 4])
def test_models_whose_sentences_end_at_different_steps(names, attention, beam):
    task = toy.task(5)  # EOS is one of few
    words = task.target_dictionary
    sample = toy.batch(words, [(length, 1) for length in range(20, 0, -1)])
    lengths = set()
    for seed in range(30):
        models = random_models(names, task, seed)
        found, expected = both(models, words, sample, beam, max_len_b=12, attention=attention)
        assert_equal(found, expected)
        assert (found[0][0]["attention"].numel() > 0) == attention
        lengths = {len(hypotheses[0]["tokens"]) for hypotheses in found}
        if len(lengths) > 2:
            break
    assert len(lengths) > 2


@pytest.mark.parametrize("beam", [1, 3])
def test_nan_is_not_the_most_probable(beam):
    class Broken(TableModel):
        def get_normalized_probs(self, *args, **kwargs):
            log_probs = super().get_normalized_probs(*args, **kwargs)
            log_probs[..., FIRST_WORD] = math.nan
            return log_probs

    words = make_dictionary(WORDS)
    models = [Broken(words, Table(WORDS, branching=4, eos=0.3, salt=3))]
    sample = make_sample(list(range(FIRST_WORD, FIRST_WORD + 5)))
    found, expected = both(models, words, sample, beam, max_len_b=5)
    assert_equal(found, expected)
    every = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    assert all(FIRST_WORD not in hypothesis["tokens"].tolist() for hypothesis in every)


def test_nothing_is_proven_about_a_sentence_with_nan():
    words, seeds = make_dictionary(WORDS), list(range(FIRST_WORD, FIRST_WORD + 5))

    def proven(kind):
        models = [TableModel(words, kind(WORDS, branching=1, dead_end=0.3, salt=16))]
        generator = SparseSequenceGenerator(models, words, beam_size=6, max_len_b=9)
        found = generator.generate(None, make_sample(seeds))
        return [{name: hypotheses[0][name] for name in sorted(PROVEN)} for hypotheses in found]

    sound, broken = proven(Table), proven(BrokenTable)
    complete = {"dropped_mass": 0.0, "exact": True, "optimal": True}
    assert sound == [complete] * 5
    unknown = broken.pop(BrokenTable.seed - FIRST_WORD)
    assert broken == [complete] * 4
    assert math.isnan(unknown.pop("dropped_mass")) and not any(unknown.values())


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype, beam):
    task = toy.task()
    sample = toy.batch(task.target_dictionary)
    models = [model.to(dtype) for model in random_models("transformer", task, 3)]
    found, expected = both(models, task.target_dictionary, sample, beam, max_len_b=6)
    assert_equal(found, expected)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("prefix", [None, [[5, 6], [7, PAD], [9, 8]]])
def test_a_language_model_has_no_source(beam, prefix):
    """The text so far is a forced prefix, as under ``--task language_modeling``."""
    model = toy.language_model(output_transform="entmax15").eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    words = toy.dictionary()
    sample = toy.batch(words)
    given = None if prefix is None else torch.tensor(prefix)
    options = {"max_len_b": 9, "min_len": 4}
    found, expected = both([model], words, sample, beam, given, words.bos(), **options)
    assert_equal(found, expected)
    assert max(len(hypotheses[0]["tokens"]) for hypotheses in found) > 3
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"]
            length = len(tokens) - hypothesis.get("incomplete", False)
            forced = [] if prefix is None else [x for x in prefix[row] if x != PAD]
            assert tokens[: min(length, len(forced))].tolist() == forced[:length]
            previous = torch.cat([torch.tensor([words.bos()]), tokens[:-1]])[None]
            with torch.no_grad():
                log_probs = model.get_normalized_probs(model(previous), log_probs=True)[0]
            scores = log_probs.gather(1, tokens[:, None])[:, 0]
            torch.testing.assert_close(
                hypothesis["positional_scores"][:length], scores[:length], rtol=1e-3, atol=1e-3
            )


def test_limits_that_leave_no_length_are_refused():
    words = make_dictionary(WORDS)
    model = TableModel(words, dense_table(WORDS))
    generator = SparseSequenceGenerator([model], words, beam_size=2, min_len=5, max_len_b=4)
    with pytest.raises(ValueError, match="--min-len 5 is more than the 4 tokens that --max-len-a"):
        generator.generate(None, make_sample([FIRST_WORD]))


def test_an_input_without_a_source_is_refused():
    words = make_dictionary(WORDS)
    generator = SparseSequenceGenerator([TableModel(words, dense_table(WORDS))], words, beam_size=2)
    with pytest.raises(ValueError, match="expected src_tokens or source in net input"):
        generator.generate(None, {"net_input": {"prev_output_tokens": torch.ones(1, 1)}})
