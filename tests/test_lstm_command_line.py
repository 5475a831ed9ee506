"""LSTMs under fairseq's commands: each score printed is the model's, alone and in ensembles."""

import json
import re

import pytest
import torch
from fairseq_cli import interactive

import toy
from fairseq_sparse.measure.model_loading import load_batches, load_models
from printed_translations import Scorer, agree, run_here

SENTENCES = 30
SIZES = ["--encoder-embed-dim", 32, "--decoder-embed-dim", 32, "--decoder-out-embed-dim", 32]
SPARSE = ["--task", "translation_sparse", "--criterion", "entmax_loss"]
SPARSE += ["--output-transform", "entmax15"]
FLAGS = {
    "lstm_sparse": [*SIZES, "--encoder-bidirectional", *SPARSE, "--attention", "sparsemax"],
    "lstm": [*SIZES, "--task", "translation"],
    "transformer_sparse_tiny": SPARSE,
}


@pytest.fixture(scope="module")
def paths(data, tmp_path_factory):
    limits = ["--max-update", 60, "--lr", 0.01, "--disable-validation", "--no-epoch-checkpoints"]
    return {
        arch: toy.train(tmp_path_factory.mktemp(arch), data, "--arch", arch, *flags, *limits)[0]
        for arch, flags in FLAGS.items()
    }


@pytest.fixture
def run(data, paths, caplog):
    """Run fairseq-generate (or another command) with some of the models."""

    def run(names, *flags, **options):
        chosen = [paths[name] for name in names]
        return run_here(caplog, data, chosen, "--max-len-b", 12, *flags, **options)

    return run


@pytest.mark.slow_except("lstm_sparse-1")
@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize(
    "names",
    [
        ["lstm_sparse"],
        ["lstm"],
        ["lstm_sparse", "lstm"],
        ["transformer_sparse_tiny", "lstm_sparse"],
    ],
    ids="+".join,
)
def test_scores_are_those_of_the_models(run, data, paths, names, beam):
    output = run(names, "--beam", beam, "--nbest", beam)
    scorer = Scorer(data, [paths[name] for name in names])
    found = output.hypotheses()
    assert sorted(found) == list(range(SENTENCES))
    incomplete = 0
    for number, hypos in found.items():
        assert 1 <= len(hypos) <= beam
        for hypo in hypos:
            (expected,) = scorer.positional([number], [hypo.words])
            assert agree(hypo.positional[:-1], expected[:-1]).all()
            if not agree(hypo.positional[-1], expected[-1]):
                assert len(hypos) == 1 and hypo.positional[-1] == 0
                incomplete += 1
    assert incomplete == output.incomplete() < SENTENCES


@pytest.mark.slow_except("exact0")
@pytest.mark.parametrize("exact", [[], ["--exact-search", "--exact-search-nodes", 20]])
def test_interactive_reports_each_line_once_and_sums_up_once(run, data, tmp_path, exact):
    report = tmp_path / "report.jsonl"
    source = ["--input", data.parent / "test.de", "--buffer-size", 7, "--batch-size", 3]
    flags = ["--search-report", report, "--max-tokens", 60, *exact]
    output = run(["lstm_sparse"], *flags, *source, command=interactive)
    lines = {line["id"]: line for line in map(json.loads, report.read_text().splitlines())}
    assert sorted(lines) == list(range(SENTENCES)) == sorted(output.hypotheses())
    for number, (best, *_) in output.hypotheses().items():
        assert lines[number]["score"] == pytest.approx(best.score, abs=1e-3)
    assert output.log.count("certified:") == 1 and f"of {SENTENCES} sentences" in output.log


def test_validation_counts_what_is_right(data, paths):
    result = toy.run(
        "fairseq_cli.validate",
        *(data, "--user-dir", toy.USER_DIR, "--path", paths["lstm_sparse"], "--cpu"),
        *("--valid-subset", "test", "--task", "translation_sparse", "--log-format", "json"),
        *("--max-tokens", 999, "--num-workers", 0),
    )
    record = json.loads(re.search(r"test \| (\{.*\})", result.stderr + result.stdout).group(1))
    models, task = load_models([paths["lstm_sparse"]], str(data))
    right, sentences = [], []
    for sample in load_batches(task, models, "test", 60):
        with torch.no_grad():
            best = models[0](**sample["net_input"])[0].argmax(-1)
        real = sample["target"].ne(task.target_dictionary.pad())
        fits = best.eq(sample["target"])
        right += fits[real].tolist()
        sentences += (fits | ~real).all(1).tolist()
    assert len(sentences) == SENTENCES
    for name, found in (("accuracy", right), ("sentence_accuracy", sentences)):
        share = 100 * sum(found) / len(found)
        assert float(record[f"test_{name}"]) == pytest.approx(share, abs=0.01)
