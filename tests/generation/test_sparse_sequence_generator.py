import math
from argparse import Namespace

import pytest
import torch
from fairseq import search
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.token_generation_constraints import pack_constraints
from hypothesis import given, settings
from hypothesis import strategies as st

from automata import (
    EOS,
    FIRST_WORD,
    Script,
    SparseLSTM,
    Table,
    TableModel,
    beam_search,
    dense_table,
    every_string,
    log_probs,
    make_dictionary,
    make_sample,
    positional_scores,
)
from fairseq_sparse.generation import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
    is_sparse_model,
)
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask

SEEDS = list(range(FIRST_WORD, FIRST_WORD + 8))


def make_generator(tables, generator_class=SparseSequenceGenerator, **options):
    dictionary = make_dictionary(tables[0].words)
    models = [TableModel(dictionary, table) for table in tables]
    return generator_class(models, dictionary, **options)


def build_generator(table, **options):
    """The generator that the task builds from command-line options."""
    dictionary = make_dictionary(table.words)
    task = TranslationSparseTask(TranslationSparseConfig(), dictionary, dictionary)
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
    """What holds for the hypotheses of any sentence, under any option."""
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


tables_strategy = st.builds(
    Table,
    words=st.integers(6, 12),
    branching=st.integers(1, 5),
    eos=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    dead_end=st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0]),
    normalized=st.booleans(),
    salt=st.integers(0, 10**6),
)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("members", [1, 2])
def test_beam_that_is_large_enough_finds_every_string(normalized, members):
    # Two tables of one branch each, or one of two: at most 2 + 4 + 8 + 16 strings, 32 candidates.
    tables = [
        Table(40, branching=2 // members, eos=0.6, normalized=normalized, salt=salt)
        for salt in range(members)
    ]
    generator = make_generator(tables, beam_size=40, max_len_b=4)
    seeds = list(range(FIRST_WORD, FIRST_WORD + 40))
    complete = 0
    for seed, hypos in zip(seeds, decode(generator, seeds), strict=True):
        strings = every_string(tables, seed, max_len=4)
        if not strings:
            assert [hypo["incomplete"] for hypo in hypos] == [True]
            continue
        complete += len(strings)
        expected = [(score / len(tokens), tokens, True) for tokens, score in strings.items()]
        assert_same(as_triples(hypos), sorted(expected, reverse=True))
    assert complete > 100


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    tables=st.lists(tables_strategy, min_size=1, max_size=2),
    beam=st.sampled_from([1, 2, 3, 5]),
    max_len=st.integers(1, 7),
    batch=st.integers(1, 6),
)
def test_random_tables(tables, beam, max_len, batch):
    tables = [Table(**{**vars(table), "words": 10}) for table in tables]
    generator = make_generator(tables, beam_size=beam, max_len_b=max_len)
    seeds = SEEDS[:batch]
    for seed, hypos in zip(seeds, decode(generator, seeds), strict=True):
        assert_sound(hypos, beam, max_len, tables, seed)
        assert_same(as_triples(hypos), beam_search(tables, seed, beam, max_len))
        alone = decode(generator, [seed])[0]
        assert as_triples(hypos) == as_triples(alone)


def test_beam_as_wide_as_the_vocabulary():
    table = Table(
        words=3, branching=3, eos=0.7
    )  # beam 6 of 7 symbols: no 2 * 6 candidates at first
    generator = make_generator([table], beam_size=20, max_len_b=4)
    assert generator.beam_size == 6
    for seed, hypos in zip(SEEDS[:3], decode(generator, SEEDS[:3]), strict=True):
        assert_same(as_triples(hypos), beam_search([table], seed, beam=6, max_len=4))


def test_stock_search_fails_where_this_one_does_not():
    outcomes = set()
    for seed in SEEDS:
        for salt in range(8):
            table = Table(words=10, branching=3, eos=0.5, dead_end=0.05, salt=salt)
            ours = as_triples(decode(make_generator([table], beam_size=3, max_len_b=5), [seed])[0])
            stock = make_generator([table], SequenceGenerator, beam_size=3, max_len_b=5)
            try:
                assert ours == as_triples(decode(stock, [seed])[0])
                outcomes.add("equal")
            except AssertionError as error:
                assert str(error).startswith("5 < 5")
                outcomes.add("stock failed")
    assert outcomes == {"equal", "stock failed"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"len_penalty": 0.3},
        {"normalize_scores": False},
        {"temperature": 0.5},
        {"min_len": 3},
        {"unk_penalty": 1.0},
        {"match_source_len": True},
    ],
)
@pytest.mark.parametrize("strategy", ["beam", "siblings", "sampling"])
def test_dense_table_decodes_as_stock_does(options, strategy):
    table = dense_table(10)
    outputs = []
    for generator_class in (SequenceGenerator, SparseSequenceGenerator):
        dictionary = make_dictionary(table.words)
        strategies = {
            "beam": search.BeamSearch(dictionary),
            "siblings": search.DiverseSiblingsSearch(dictionary, diversity_rate=0.2),
            "sampling": search.Sampling(dictionary, sampling_topk=5),
        }
        generator = make_generator(
            [table],
            generator_class,
            beam_size=4,
            max_len_b=6,
            search_strategy=strategies[strategy],
            **options,
        )
        torch.manual_seed(1)
        outputs.append([as_triples(hypos) for hypos in decode(generator, SEEDS)])
    stock, sparse = outputs
    assert sparse == stock
    assert "match_source_len" in options or all(len(hypos) == 4 for hypos in sparse)


def test_dense_table_decodes_as_stock_does_with_alignment():
    table = dense_table(10)
    outputs = []
    for generator_class in (SequenceGeneratorWithAlignment, SparseSequenceGeneratorWithAlignment):
        generator = make_generator([table], generator_class, beam_size=4, max_len_b=6)
        outputs.append(decode(generator, SEEDS))
    for stock, sparse in zip(*outputs, strict=True):
        assert as_triples(sparse) == as_triples(stock)
        assert [hypo["alignment"] for hypo in sparse] == [hypo["alignment"] for hypo in stock]


OPTIONS = {
    "plain": {},
    "beam 1": {"beam": 1},
    "beam 20": {"beam": 20},
    "max-len-b": {"max_len_b": 2},
    "nbest": {"nbest": 5},
    "temperature 0.1": {"temperature": 0.1},
    "temperature 0.3": {"temperature": 0.3},
    "min-len": {"min_len": 3},
    "unkpen": {"unkpen": 2.0},
    "lenpen": {"lenpen": 0.0},
    "unnormalized": {"unnormalized": True},
    "no-repeat-ngram-size": {"no_repeat_ngram_size": 1},
    "print-alignment hard": {"print_alignment": "hard"},
    "print-alignment soft": {"print_alignment": "soft"},
    "prefix function": {"prefix_allowed_tokens_fn": lambda batch, tokens: [EOS, *range(5, 11)]},
    "sampling": {"sampling": True},
    "sampling-topk": {"sampling": True, "sampling_topk": 3},
    "sampling-topp": {"sampling": True, "sampling_topp": 0.7},
    "diverse-beam-groups": {"beam": 4, "diverse_beam_groups": 2},
    "diversity-rate": {"diversity_rate": 0.3},
    "match-source-len": {"match_source_len": True},
}
CHANGED_SCORES = ("diverse", "diversity", "match")  # stock itself scores these in its own way


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["usual", "never ends", "dead at once", "not normalized"])
def test_option(name, kind):
    table = {
        "usual": Table(words=30, branching=4, eos=0.3, dead_end=0.1),
        "never ends": Table(words=30, branching=3, eos=0.0, dead_end=0.05),
        "dead at once": Table(words=30, dead_end=1.0),
        "not normalized": Table(words=30, branching=4, eos=0.3, normalized=False),
    }[kind]
    options = {"beam": 5, "max_len_b": 6, **OPTIONS[name]}
    generator = build_generator(table, **options)
    torch.manual_seed(1)
    # The numbers of the sentences are those of a data set, not of the batch.
    output = decode(generator, SEEDS, first_id=1000)
    assert len(output) == len(SEEDS)
    for seed, hypos in zip(SEEDS, output, strict=True):
        if name == "match-source-len":
            assert 1 <= len(hypos) <= options["beam"]
            continue
        exact = {"tables": [table], "seed": seed, "temperature": options.get("temperature", 1.0)}
        if name.startswith(CHANGED_SCORES):
            exact = {}
        assert_sound(hypos, options["beam"], options["max_len_b"], **exact)
        if kind in ("never ends", "dead at once"):
            assert [hypo["incomplete"] for hypo in hypos] == [True]
        if kind == "dead at once":
            assert hypos[0]["tokens"].tolist() == [EOS]
            assert hypos[0]["score"] == 0
        if "print_alignment" in options:
            # a source of one word: hard links are (0, word), soft ones a row for each token
            lengths = {"hard": -1, "soft": 0}[options["print_alignment"]]
            for hypo in hypos:
                assert len(hypo["alignment"]) == len(hypo["tokens"]) + lengths


def test_score_normalization():
    table = Table(words=30, branching=4, eos=0.3)
    for options, power in ({"unnormalized": True}, 0), ({"lenpen": 2.0}, 2), ({}, 1):
        for hypos in decode(build_generator(table, beam=5, max_len_b=6, **options), SEEDS):
            for hypo in hypos:
                total = hypo["positional_scores"].sum().item()
                expected = total / len(hypo["tokens"]) ** power
                assert hypo["score"].item() == pytest.approx(expected, abs=1e-5)


def test_forced_prefix():
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
        if possible:
            assert_sound(hypos, 3, 6, [table], seed)
            assert all(hypo["tokens"].tolist()[:1] == prefix for hypo in hypos)
        else:
            assert as_triples(hypos) == [(0.0, (EOS,), False)]


@pytest.mark.parametrize("eos", [0.0, 1.0])
def test_forced_prefix_that_contains_eos(eos):
    # --prefix-size takes references that are shorter than it with their EOS
    table = Table(words=10, branching=1, eos=eos, dead_end=0.0)
    word = log_probs([table], SEEDS[0], ())[FIRST_WORD:].argmax().item() + FIRST_WORD
    generator = make_generator([table], beam_size=3, max_len_b=6)
    prefix_tokens = torch.tensor([[word, EOS]])
    hypos = decode(generator, SEEDS[:1], prefix_tokens=prefix_tokens)[0]
    assert {tuple(hypo["tokens"].tolist()) for hypo in hypos} == {(word, EOS)}
    assert hypos[0].get("incomplete", False) == (eos == 0)


@pytest.mark.parametrize("representation", ["ordered", "unordered"])
def test_lexical_constraints(representation):
    table = Table(words=12, branching=8, eos=0.8, dead_end=0.0)
    generator = build_generator(table, beam=5, max_len_b=6, constraints=representation)
    seeds = SEEDS[:6]
    words = [[torch.tensor([FIRST_WORD + seed % 12])] for seed in seeds]
    output = decode(generator, seeds, constraints=pack_constraints(words))
    complete = 0
    for seed, word, hypos in zip(seeds, words, output, strict=True):
        assert_sound(hypos, 5, 6, [table], seed)
        for hypo in hypos:
            if not hypo.get("incomplete", False):
                complete += 1
                assert word[0].item() in hypo["tokens"].tolist()
    assert complete > 5


def test_diverse_groups_have_no_finished_hypothesis_go_on():
    table = dense_table(20)
    generator = build_generator(table, beam=6, max_len_b=6, diverse_beam_groups=3)
    for hypos in decode(generator, SEEDS, first_id=1000):
        assert_sound(hypos, 6, 6)


A, B, C = range(FIRST_WORD, FIRST_WORD + 3)


def decode_script(follow, **options):
    table = Script(follow, words=12)
    generator = make_generator([table], **options)
    return as_triples(decode(generator, [A])[0]), generator.model.models[0].decoder.steps


def test_prefix_of_a_sentence_that_dies():
    follow = {(): {A: 0.6, B: 0.3}, (A,): {}, (B,): {C: 0.5, A: 0.4}, (B, C): {}, (B, A): {}}
    hypos, steps = decode_script(follow, beam_size=3, max_len_b=20)
    # (A) has the higher probability, but (B, C) lives longer
    assert_same(hypos, [(math.log(0.3 * 0.5) / 3, (B, C, EOS), False)])
    assert steps == 3


def test_prefix_of_a_sentence_that_never_ends():
    follow = {(): {A: 0.6}, (A,): {B: 0.5}, (A, B): {C: 0.5}, (A, B, C): {C: 1.0}}
    hypos, _ = decode_script(follow, beam_size=2, max_len_b=3)
    assert_same(hypos, [(math.log(0.6 * 0.5 * 0.5) / 4, (A, B, C, EOS), False)])


def test_no_prefix_where_there_is_a_complete_string():
    follow = {(): {A: 0.9, B: 0.1}, (B,): {EOS: 0.01}, (A,): {A: 0.9}, (A, A): {A: 0.9}}
    hypos, steps = decode_script(follow, beam_size=3, max_len_b=20)
    assert_same(hypos, [(math.log(0.1 * 0.01) / 2, (B, EOS), True)])
    assert steps == 4


def test_sentence_ends_with_its_last_live_hypothesis():
    follow = {(): {A: 0.7, B: 0.3}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}
    hypos, steps = decode_script(follow, beam_size=5, max_len_b=20)
    expected = [(math.log(0.7) / 2, (A, EOS), True), (math.log(0.3) / 2, (B, EOS), True)]
    assert_same(hypos, expected)
    assert steps == 2  # the step that finishes both is the last


def test_ensemble_of_sparse_and_softmax():
    sparse, dense = Table(words=10, branching=2, dead_end=0.4), dense_table(10)
    for tables in ([sparse, dense], [dense, sparse]):
        generator = make_generator(tables, beam_size=4, max_len_b=5)
        for seed, hypos in zip(SEEDS, decode(generator, SEEDS), strict=True):
            assert_same(as_triples(hypos), beam_search(tables, seed, 4, 5))


def test_sampled_sentences_follow_the_model():
    # Half of the samples run into a dead end, the others end: none is lost, none is made up.
    table = Script({(): {A: 0.5, B: 0.5}, (A,): {}, (B,): {EOS: 1.0}}, words=12)
    generator = build_generator(table, beam=12, max_len_b=6, sampling=True)
    torch.manual_seed(1)
    output = decode(generator, [A] * 50)
    assert {triple[1] for hypos in output for triple in as_triples(hypos)} == {(B, EOS)}
    assert 4 < sum(map(len, output)) / 50 < 8


def test_incremental_decoder():
    torch.manual_seed(1)
    dictionary = make_dictionary(20)
    model = SparseLSTM(dictionary).eval()
    generator = SparseSequenceGenerator([model], dictionary, beam_size=4, max_len_b=8)
    lengths = [torch.randint(2, 9, ()).item() for _ in range(24)]
    sources = [torch.cat([torch.randint(4, 24, (n - 1,)), torch.tensor([EOS])]) for n in lengths]

    def decode_sources(sources):
        sources = sorted(sources, key=len, reverse=True)
        src_tokens = collate_tokens(sources, dictionary.pad(), left_pad=True)
        src_lengths = torch.tensor([len(source) for source in sources])
        net_input = {"src_tokens": src_tokens, "src_lengths": src_lengths}
        output = generator.generate(None, {"net_input": net_input})
        return dict(zip((tuple(source.tolist()) for source in sources), output, strict=True))

    output = decode_sources(sources)
    kinds = set()
    for source in sources:
        hypos = output[tuple(source.tolist())]
        assert_sound(hypos, 4, 8)
        alone = decode_sources([source])[tuple(source.tolist())]
        assert_same(as_triples(hypos), as_triples(alone))
        for hypo in hypos:
            kinds.add((hypo.get("incomplete", False), len(hypos) < 4))
            tokens = hypo["tokens"].unsqueeze(0)
            previous = torch.cat([torch.tensor([[EOS]]), tokens[:, :-1]], dim=1)
            with torch.no_grad():
                net_output = model(source.unsqueeze(0), torch.tensor([len(source)]), previous)
            log_p = model.get_normalized_probs(net_output, log_probs=True)[0]
            expected = log_p.gather(1, tokens.T).squeeze(1)
            length = tokens.size(1) - hypo.get("incomplete", False)
            actual = hypo["positional_scores"][:length]
            assert torch.allclose(actual, expected[:length], atol=1e-4)
    assert kinds == {(True, True), (False, True), (False, False)}  # (incomplete, fewer than beam)


def test_is_sparse_model():
    dictionary = make_dictionary(3)
    assert is_sparse_model(TableModel(dictionary, Table(3)))
    assert not is_sparse_model(TableModel(dictionary, Table(3), is_sparse=False))
    assert not is_sparse_model(torch.nn.Linear(2, 2))
    assert not is_sparse_model(None)
