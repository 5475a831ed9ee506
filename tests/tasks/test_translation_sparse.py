import logging
import math
from argparse import Namespace

import pytest
import sacrebleu
import torch
from fairseq.data import LanguagePairDataset
from fairseq.logging import metrics
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

import toy
from automata import EOS, FIRST_WORD, Table, TableModel, dense_table, make_dictionary
from fairseq_sparse.generation import (
    SparseSequenceGenerator,
    SparseSequenceGeneratorWithAlignment,
    SparseSequenceScorer,
    search_report,
)
from fairseq_sparse.generation.exact_search import ExactSequenceGenerator
from fairseq_sparse.tasks import TranslationSparseConfig, TranslationSparseTask

WORDS = 12
SPARSE = Table(WORDS, branching=3, eos=0.4, dead_end=0.2)
DENSE = dense_table(WORDS)


def make_task(**config):
    dictionary = make_dictionary(WORDS)
    return TranslationSparseTask(TranslationSparseConfig(**config), dictionary, dictionary)


def make_model(table=SPARSE, is_sparse=True):
    return TableModel(make_dictionary(WORDS), table, is_sparse)


def make_dataset(size=9):
    dictionary = make_dictionary(WORDS)
    words = [FIRST_WORD + number % WORDS for number in range(size)]
    source = [torch.tensor([word, EOS]) for word in words]
    target = [torch.tensor([word, FIRST_WORD, EOS]) for word in words]
    return LanguagePairDataset(
        source, [2] * size, dictionary, target, [3] * size, dictionary, shuffle=False
    )


def decode_all(task, generator, model, dataset, batch_size=2, **shard):
    """Decode as fairseq-generate does."""
    batches = task.get_batch_iterator(dataset, max_sentences=batch_size, **shard)
    hypotheses = {}
    for sample in batches.next_epoch_itr(shuffle=False):
        output = task.inference_step(generator, [model], sample)
        hypotheses.update(zip(sample["id"].tolist(), output, strict=True))
    return hypotheses


def test_registration():
    assert TASK_REGISTRY["translation_sparse"] is TranslationSparseTask
    assert TranslationSparseTask.supports_sparse_outputs
    assert not getattr(TranslationTask, "supports_sparse_outputs", False)


@pytest.mark.parametrize(
    ("options", "stock", "sparse"),
    [
        ({}, SequenceGenerator, SparseSequenceGenerator),
        (
            {"print_alignment": "hard"},
            SequenceGeneratorWithAlignment,
            SparseSequenceGeneratorWithAlignment,
        ),
        ({"score_reference": True}, SparseSequenceScorer, SparseSequenceScorer),
    ],
)
def test_generator_fits_the_models(options, stock, sparse):
    task, args = make_task(), Namespace(beam=2, **options)
    softmax_model = make_model(DENSE, is_sparse=False)
    assert type(task.build_generator([softmax_model], args)) is stock
    assert type(task.build_generator([softmax_model, softmax_model], args)) is stock
    assert type(task.build_generator([make_model()], args)) is sparse
    assert type(task.build_generator([softmax_model, make_model()], args)) is sparse


def test_sparse_language_model_needs_the_sparse_generator():
    model, lm = make_model(DENSE, is_sparse=False), make_model()
    for lm_model, expected in (None, SequenceGenerator), (lm, SparseSequenceGenerator):
        extra = {"lm_model": lm_model, "lm_weight": 0.5}
        generator = make_task().build_generator([model], Namespace(), extra_gen_cls_kwargs=extra)
        assert type(generator) is expected
        assert generator.lm_weight == 0.5


def test_softmax_model_decodes_as_under_translation():
    model, dataset = make_model(DENSE, is_sparse=False), make_dataset()
    dictionary = make_dictionary(WORDS)
    outputs = []
    for task in make_task(), TranslationTask(TranslationConfig(), dictionary, dictionary):
        generator = task.build_generator([model], Namespace(beam=3, max_len_b=6))
        outputs.append(decode_all(task, generator, model, dataset))
    for number in range(len(dataset)):
        for ours, stock in zip(outputs[0][number], outputs[1][number], strict=True):
            assert ours["tokens"].tolist() == stock["tokens"].tolist()
            assert ours["score"] == stock["score"]


def test_incomplete_sentences_are_counted_once_at_the_end(caplog):
    caplog.set_level(logging.WARNING)  # fairseq's earlier commands in this process change it
    task, model, dataset = make_task(), make_model(), make_dataset()
    generator = task.build_generator([model], Namespace(beam=1, max_len_b=3))
    for _ in range(2):  # a second run starts its count from nothing
        caplog.clear()
        output = decode_all(task, generator, model, dataset)
        incomplete = sum("incomplete" in hypos[0] for hypos in output.values())
        assert 0 < incomplete < len(dataset)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"{incomplete} of {len(dataset)} sentences")


def test_nothing_is_said_where_all_sentences_are_complete(caplog):
    caplog.set_level(logging.WARNING)
    task, model = make_task(), make_model(DENSE)
    generator = task.build_generator([model], Namespace(beam=1, max_len_b=3))
    decode_all(task, generator, model, make_dataset())
    assert not caplog.records


class NoCriterion:
    """A criterion that computes nothing."""

    def __call__(self, model, sample):
        return torch.tensor(0.0), 1, {"ntokens": 1, "nsentences": len(sample["id"])}

    @staticmethod
    def reduce_metrics(logging_outputs):
        pass


@pytest.mark.parametrize(
    ("is_sparse", "more"), [(True, ""), (False, ""), (True, ', "exact_search": true')]
)
def test_validation_with_bleu(monkeypatch, is_sparse, more):
    task = make_task(eval_bleu=True, eval_bleu_args=f'{{"beam": 1, "max_len_b": 3{more}}}')
    model = make_model(SPARSE if is_sparse else DENSE, is_sparse)
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: model)
    task.build_model(Namespace())
    batches = task.get_batch_iterator(make_dataset(), max_sentences=2).next_epoch_itr(shuffle=False)
    with metrics.aggregate(new_root=True) as totals:
        for sample in batches:
            _, _, logging_output = task.valid_step(sample, model, NoCriterion())
            # two workers with the same share of the data
            task.reduce_metrics([logging_output, logging_output], NoCriterion())
    values = totals.get_smoothed_values()
    assert "bleu" in values
    assert isinstance(task.sequence_generator, ExactSequenceGenerator) == bool(more)
    if is_sparse:
        output = decode_all(make_task(), task.sequence_generator, model, make_dataset())
        incomplete = sum("incomplete" in hypos[0] for hypos in output.values())
        assert values["incomplete"] == 2 * incomplete > 0
    else:
        assert "incomplete" not in values


def test_a_report_has_the_last_validation_alone(monkeypatch, tmp_path):
    report = tmp_path / "report.jsonl"
    task = make_task(eval_bleu=True, eval_bleu_args="{}", search_report=str(report))
    model = make_model()
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: model)
    task.build_model(Namespace())
    for epoch in (1, 2):
        task.begin_valid_epoch(epoch, model)
        iterator = task.get_batch_iterator(make_dataset(), max_sentences=2)
        for sample in iterator.next_epoch_itr(shuffle=False):
            task.valid_step(sample, model, NoCriterion())
    assert len(report.read_text().splitlines()) == len(make_dataset())


@pytest.mark.parametrize(
    "batches",
    [[["", ""], [""]], [["", ""], ["a b c d", "e f g h i j"]], [["a b c d e"], ["", "f g h i"]]],
)
def test_bleu_counts_the_references_of_empty_outputs(batches):
    """A batch whose outputs are all empty has no n-grams, but its references count."""
    task = make_task(eval_bleu=True)
    references = [[f"{output} x y" for output in outputs] for outputs in batches]
    with metrics.aggregate(new_root=True) as totals:
        for outputs, texts in zip(batches, references, strict=True):
            bleu = sacrebleu.corpus_bleu(outputs, [texts])
            log = {"_bleu_sys_len": bleu.sys_len, "_bleu_ref_len": bleu.ref_len}
            for name, numbers in (("counts", bleu.counts), ("totals", bleu.totals)):
                log.update({f"_bleu_{name}_{n}": number for n, number in enumerate(numbers)})
            task.reduce_metrics([log], NoCriterion())
    expected = sacrebleu.corpus_bleu(sum(batches, []), [sum(references, [])])
    assert totals.get_smoothed_values()["bleu"] == pytest.approx(expected.score, abs=0.01)


@pytest.mark.parametrize("eval_bleu", [False, True])
def test_bleu_that_chooses_the_checkpoint_must_be_computed(monkeypatch, eval_bleu):
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: make_model())
    task = make_task(eval_bleu=eval_bleu)
    settings = Namespace(best_checkpoint_metric="bleu", maximize_best_checkpoint_metric=True)
    if eval_bleu:
        task.build_model(settings)
    else:
        with pytest.raises(ValueError, match="--best-checkpoint-metric bleu: give --eval-bleu"):
            task.build_model(settings)


@pytest.mark.parametrize("metric", ["accuracy", "sentence_accuracy", "bleu", "loss", "eps_ppl"])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_worst_checkpoint_is_not_kept_as_the_best(monkeypatch, metric, maximize):
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: make_model())
    task = make_task(eval_bleu=True)
    settings = Namespace(best_checkpoint_metric=metric, maximize_best_checkpoint_metric=maximize)
    if maximize == (metric in ("accuracy", "sentence_accuracy", "bleu")):
        task.build_model(settings)
    else:
        with pytest.raises(ValueError, match="--maximize-best-checkpoint-metric"):
            task.build_model(settings)


def test_several_workers_would_overwrite_one_report(monkeypatch, tmp_path):
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: make_model())
    monkeypatch.setattr("fairseq.distributed.utils.get_global_world_size", lambda: 2)
    settings = Namespace(best_checkpoint_metric="loss", maximize_best_checkpoint_metric=False)
    path = str(tmp_path / "report")
    make_task(search_report=path).build_model(settings)
    with pytest.raises(ValueError, match="--search-report: each of the 2 workers"):
        make_task(search_report=path, eval_bleu=True).build_model(settings)


@pytest.mark.parametrize(
    ("more", "subsets", "refusal"),
    [
        ("", "valid,test", "--search-report: .*--valid-subset valid,test"),
        (', "search_report": "other"', "valid", "--eval-bleu-args"),
    ],
)
def test_a_report_of_validation_is_that_of_one_data_set(
    monkeypatch, tmp_path, more, subsets, refusal
):
    """The lines of several sets would have the same numbers."""
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: make_model())
    config = {"eval_bleu": True, "eval_bleu_args": f'{{"beam": 2{more}}}'}
    settings = OmegaConf.create({"model": {}, "task": {}, "dataset": {"valid_subset": subsets}})
    task = make_task(search_report=str(tmp_path / "report"), **config)
    with pytest.raises(ValueError, match=refusal):
        task.build_model(settings.model)
    make_task(search_report=str(tmp_path / "report"), **config).build_model(settings.model, True)
    if not more:  # without a report, validation on several sets is all right
        make_task(**config).build_model(settings.model)


@pytest.mark.parametrize("subset", ["test", "train"])
@pytest.mark.parametrize("size", [1, 9, 20])
def test_no_sentence_is_left_out(size, subset):
    """fairseq-fixed would leave out a last batch whose size is not a multiple of 8."""
    task = make_task(train_subset="train")
    task.datasets[subset] = make_dataset(size)
    batches = task.get_batch_iterator(
        task.datasets[subset], max_sentences=16, required_batch_size_multiple=8
    )
    seen = [number for batch in batches.frozen_batches for number in batch]
    assert sorted(seen) == list(range(size))


def test_progress_counts_the_sentences_of_the_shard(caplog, monkeypatch):
    """Under --num-shards, each process searches a part of the sentences."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(search_report, "_PROGRESS_INTERVAL", -1)
    task, model = make_task(exact_search=True), make_model()
    generator = task.build_generator([model], Namespace(beam=2, max_len_b=5))
    found = decode_all(task, generator, model, make_dataset(10), num_shards=2, shard_id=1)
    assert len(found) == 5
    assert "5 of 5 sentences searched" in caplog.text


@pytest.mark.parametrize("adds_epoch", [False, True])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_a_process_that_begins_with_a_later_epoch_sees_the_same_batches(
    first, adds_epoch, monkeypatch
):
    """fairseq-fixed makes other batches when training is resumed."""
    monkeypatch.setattr("fairseq.models.build_model", lambda *args: make_model())
    flags = {"best_checkpoint_metric": "loss", "maximize_best_checkpoint_metric": False}

    def sentences(epochs):
        task = make_task()
        task.build_model(Namespace(update_ordered_indices_seed=adds_epoch, **flags))
        task.datasets["train"] = make_dataset(40)
        task.datasets["train"].shuffle = True
        seen = []
        for epoch in range(epochs[0], epochs[1] + 1):
            # fairseq-train asks anew for each epoch.
            batches = task.get_batch_iterator(
                task.datasets["train"], max_sentences=4, seed=3 + adds_epoch * epoch, epoch=epoch
            )
            itr = batches.next_epoch_itr(shuffle=True)
            assert batches.epoch == epoch
            seen.append([sample["id"].tolist() for sample in itr])
        return seen

    whole = sentences((1, 6))
    assert whole[0] != whole[1]
    assert sentences((first, 6)) == whole[first - 1 :]


def test_batches_are_formed_anew_where_that_is_asked_for():
    """By --update-epoch-batch-itr, as with fairseq's own task."""

    def batches(kind, epoch, anew):
        task = make_task()
        dataset = task.datasets["train"] = make_dataset(40)
        dataset.shuffle = True
        options = {"max_sentences": 4, "seed": 3, "update_epoch_batch_itr": anew}
        found = kind.get_batch_iterator(task, dataset, epoch=epoch, **options)
        return [list(map(int, batch)) for batch in found.frozen_batches]

    ours, stock = TranslationSparseTask, FairseqTask
    assert batches(ours, 1, False) == batches(ours, 2, False) == batches(stock, 1, False)
    for epoch in (1, 2):
        assert batches(ours, epoch, True) == batches(stock, epoch, True)


REFUSED = [
    ("exact-search-nodes", {"exact_search": True, "exact_search_nodes": 0}, {}),
    ("exact-search-nodes", {"exact_search": True, "exact_search_nodes": -3}, {}),
    ("exact-search-nodes", {"exact_search_nodes": 9}, {}),
    ("print-step", {"exact_search": True}, {"print_step": True}),
    ("retain-dropout", {"exact_search": True}, {"retain_dropout": True}),
    ("search-report", {"search_report": "r"}, {"score_reference": True}),
    ("exact-search", {"exact_search": True}, {"score_reference": True}),
    ("score-normalization", {"score_normalization": "sum"}, {"score_reference": True}),
    *(
        (flag.replace("_", "-"), {"exact_search": value != 0}, {flag: value})
        for flag, value in (
            *(("temperature", value) for value in (0.0, 1e-45, -1.0, math.nan, math.inf)),
            ("lenpen", math.nan),
            ("max_len_a", math.inf),
            ("lm_weight", math.nan),
            ("diverse_beam_strength", math.inf),
            ("diversity_rate", math.nan),
            ("sampling_topp", math.nan),
            ("unkpen", -math.inf),
            ("unkpen", math.nan),
            ("nbest", 0),
            ("nbest", -1),
            ("beam", 0),
        )
    ),
]


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("transformer_sparse_tiny", ("--no-cross-attention",)),
        ("lstm_sparse", ("--decoder-attention", "0")),
    ],
)
def test_alignments_need_attention_to_the_source(arch, flags):
    without = toy.model(*flags, arch=arch, criterion="")
    options = Namespace(print_alignment="hard", beam=2)
    with pytest.raises(ValueError, match="--print-alignment"):
        make_task().build_generator([without], options)
    make_task().build_generator([without, toy.model()], options)


@pytest.mark.parametrize(("flag", "config", "options"), REFUSED)
def test_a_search_that_cannot_be_is_refused(flag, config, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"--{flag}\\b"):
        make_task(**config).build_generator([make_model()], Namespace(**options))
    assert not list(tmp_path.iterdir())


def test_settings_of_any_architecture_are_no_code():
    cfg = Namespace(arch="lstm", decoder_attention="__import__('os').abort()")
    with pytest.raises(ValueError, match="--decoder-attention is .* code"):
        make_task().build_model(cfg)
