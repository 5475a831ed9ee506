"""A user's workflow: preprocess, train, average, generate, with stock commands on small data."""

import re
import subprocess

import pytest
import torch

import toy
from commands import generate, hypotheses, logged, output_flags, train
from fairseq_sparse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS
from fork_python import PYTHON

TAU = "decoder.output_projection.tau"
SENTENCES = 30
STATISTICS = {"loss", "accuracy", "nonzeros", "gold_zero", "prob_sum", "logit_norm"}


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Return a function: transform -> (folder of two trained epochs, what training printed)."""
    finished = {}

    def run(transform):
        if transform not in finished:
            folder = tmp_path_factory.mktemp(transform)
            finished[transform] = (
                folder,
                train(data, folder, *output_flags(transform), "--max-epoch", "2").stdout,
            )
        return finished[transform]

    return run


@pytest.mark.slow_except("alpha_relu")
@pytest.mark.parametrize("transform", OUTPUT_TRANSFORMS)
def test_train_average_generate(transform, data, runs):
    folder, output = runs(transform)
    for tag in ("train", "valid"):
        records = logged(output, tag)
        assert len(records) == 2
        keys = {key.removeprefix(f"{tag}_") for key in records[0]}
        assert STATISTICS <= keys and ("tau" in keys) == (transform != "softmax")
    losses = [float(record["valid_loss"]) for record in logged(output, "valid")]
    assert losses[1] < losses[0]
    assert output.count("tau of alpha_relu") == (transform == "alpha_relu")

    average = folder / "average.pt"
    toy.command(
        "average",
        *("--inputs", folder, "--num-epoch-checkpoints", "2", "--output", average),
    )
    states = [load_checkpoint(folder / f"checkpoint{epoch}.pt")["model"] for epoch in (1, 2)]
    if transform == "alpha_relu":
        averaged = load_checkpoint(average)["model"]
        assert states[0][TAU] == states[1][TAU] == averaged[TAU]
        assert f"{states[0][TAU].item():.6f}" in output
    else:
        assert TAU not in states[0]

    found = hypotheses(generate(data, average, "--beam", "4", "--nbest", "2").stdout)
    assert sorted(found) == list(range(SENTENCES))
    for best in found.values():
        scores = [score for score, _ in best]
        assert 1 <= len(best) <= 2 and scores == sorted(scores, reverse=True)
        assert all(score > float("-inf") for score in scores)


def test_softmax_decodes_as_stock_does(data, runs):
    path = runs("softmax")[0] / "checkpoint_best.pt"
    ours = hypotheses(generate(data, path).stdout)
    # Without the last flag, fairseq-fixed's own tasks would leave sentences out.
    stock = hypotheses(
        generate(data, path, "--task", "translation", "--required-batch-size-multiple", "1").stdout
    )
    assert ours == stock and len(ours) == SENTENCES


def test_stock_search_over_a_sparse_model_is_refused_in_one_line(data, runs):
    path = runs("entmax15")[0] / "checkpoint_best.pt"
    result = generate(data, path, "--task", "translation", check=False)
    assert result.returncode != 0 and not hypotheses(result.stdout)
    assert "use --task translation_sparse" in result.stderr.strip().splitlines()[-1]


@pytest.mark.slow_except("flags0")
@pytest.mark.parametrize("flags", [("--temperature", "0.1"), ("--max-len-b", "3", "--beam", "1")])
def test_decoding_survives_what_breaks_stock_search(flags, data, runs):
    path = runs("sparsemax")[0] / "checkpoint_best.pt"
    assert len(hypotheses(generate(data, path, *flags).stdout)) == SENTENCES


def test_samples_at_a_temperature_near_zero_are_those_of_beam_search(data, runs):
    path = runs("alpha_relu")[0] / "checkpoint_best.pt"

    def decode(*flags):
        flags = ("--min-len", "0", "--beam", "1", "--temperature", "1e-20", *flags)
        printed = generate(data, path, *flags).stdout
        return {n: [words for _, words in found] for n, found in hypotheses(printed).items()}

    assert decode("--sampling") == decode()


@pytest.mark.slow
def test_ensemble_averages_probabilities(data, runs):
    """For a sparse and a dense model, the score of a reference is the log of the mean."""
    paths = [runs(name)[0] / "checkpoint_best.pt" for name in ("softmax", "entmax15")]
    both = ":".join(map(str, paths))
    assert len(hypotheses(generate(data, both).stdout)) == SENTENCES

    def positional(path):
        output = generate(data, path, "--score-reference").stdout
        lines = re.findall(r"^P-(\d+)\t(.*)$", output, re.MULTILINE)
        return {int(n): torch.tensor([float(x) for x in line.split()]) for n, line in lines}

    # fairseq prints base-2 logarithms with four digits.
    dense, sparse, mean = (positional(path) for path in (*paths, both))
    assert len(mean) == SENTENCES
    for number, log_probs in mean.items():
        expected = (2 ** dense[number] + 2 ** sparse[number]) / 2
        torch.testing.assert_close(2**log_probs, expected, atol=1e-4, rtol=1e-3)


def test_validate_and_interactive(data, runs):
    path = runs("alpha_relu")[0] / "checkpoint_best.pt"
    output = generate(
        data, path, "--valid-subset", "test", "--log-format", "json", command="fairseq_cli.validate"
    ).stdout
    (record,) = logged(output, "test")
    assert STATISTICS | {"tau"} <= {key.removeprefix("test_") for key in record}

    sentences = "w1 w2 w3\nw4\n"
    result = subprocess.run(
        [PYTHON, "-m", "fairseq_cli.interactive", str(data), "--user-dir", toy.USER_DIR]
        + ["--path", str(path), "--cpu", "--task", "translation_sparse"]
        + ["--source-lang", "de", "--target-lang", "en"],
        input=sentences,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(hypotheses(result.stdout)) == [0, 1]


@pytest.mark.slow_except("entmax15")
@pytest.mark.parametrize("transform", ["entmax15", "alpha_relu"])
def test_checkpoints_are_selected_by_bleu(transform, data, tmp_path):
    report = tmp_path / "report.jsonl"
    output = train(
        data,
        tmp_path,
        *output_flags(transform),
        *("--max-epoch", "1", "--eval-bleu", "--eval-bleu-args", '{"beam": 2}'),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
        *("--search-report", report),
    ).stdout
    (record,) = logged(output, "valid")
    assert float(record["valid_bleu"]) >= 0 and "valid_incomplete" in record
    checkpoint = load_checkpoint(tmp_path / "checkpoint_best.pt")
    best = checkpoint["extra_state"]["best"]
    assert best == pytest.approx(float(record["valid_bleu"]), abs=0.01)
    # The report is the training's alone: a later validation would overwrite it.
    assert len(report.read_text().splitlines()) > 0
    assert settings_of(checkpoint, "task")["search_report"] is None


def test_resuming_keeps_tau(data, tmp_path):
    flags = output_flags("alpha_relu")
    train(data, tmp_path, *flags, "--max-epoch", "1")
    first = load_checkpoint(tmp_path / "checkpoint1.pt")["model"][TAU]
    resumed = train(data, tmp_path, *flags, "--max-epoch", "2", "--output-tau", "0.1").stdout
    assert "from the checkpoint" in resumed
    assert load_checkpoint(tmp_path / "checkpoint2.pt")["model"][TAU] == first
    untouched = tmp_path / "straight"
    train(data, untouched, *flags, "--max-epoch", "2")
    straight = load_checkpoint(untouched / "checkpoint2.pt")["model"]
    assert straight[TAU] == first


def test_a_stock_checkpoint_is_fine_tuned_with_a_sparse_output(data, tmp_path):
    stock = ("--task", "translation", "--arch", "transformer_tiny", "--criterion", "cross_entropy")
    train(data, tmp_path / "stock", *stock, "--max-epoch", "1")
    start = tmp_path / "stock" / "checkpoint_last.pt"
    output = train(
        data,
        tmp_path / "tuned",
        *(*output_flags("alpha_relu"), "--output-tau", "data"),
        *("--max-epoch", "1", "--lr", "1e-9", "--finetune-from-model", start),
    ).stdout
    assert "tau of alpha_relu" in output
    before, after = (
        load_checkpoint(p)["model"] for p in (start, tmp_path / "tuned/checkpoint1.pt")
    )
    assert set(after) == set(before) | {TAU}
    # In fairseq 0.12.2, encoder layers also have copies for fused layers, made on loading.
    for key in (key for key in before if key.startswith("decoder.layers")):
        torch.testing.assert_close(after[key], before[key], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_an_alpha_relu_model_is_fine_tuned_with_another_output(data, runs, tmp_path):
    start = runs("alpha_relu")[0] / "checkpoint_last.pt"
    flags = ("--max-epoch", "1", "--finetune-from-model", start)
    output = train(data, tmp_path, *output_flags("entmax15"), *flags).stdout
    assert "tau of alpha_relu" in output and "in the checkpoint is left out" in output
    tuned = load_checkpoint(tmp_path / "checkpoint1.pt")["model"]
    assert load_checkpoint(start)["model"].keys() == tuned.keys() | {TAU}


@pytest.mark.slow_except("criterion")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            output_flags("entmax15"),
            ("--output-transform alpha_relu", "--output-transform entmax15"),
        ),
        (
            (*output_flags("alpha_relu"), "--finetune-from-model"),
            ("--output-tau weights", "--output-tau data"),
        ),
        (
            ("--task", "translation", "--arch", "transformer_tiny", "--criterion", "entmax_loss"),
            ("--arch transformer_tiny", "--arch transformer_sparse_tiny"),
        ),
    ],
    ids=["resumed", "tau", "criterion"],
)
def test_the_last_line_says_why_training_cannot_begin(flags, words, data, runs, tmp_path):
    folder = runs("alpha_relu")[0] if words[0] == "--output-transform alpha_relu" else tmp_path
    if flags[-1] == "--finetune-from-model":
        flags += (runs("softmax")[0] / "checkpoint_last.pt",)
    before = set(folder.iterdir())
    result = train(data, folder, *flags, check=False)
    assert result.returncode == 1 and set(folder.iterdir()) == before
    assert all(word in result.stderr.strip().splitlines()[-1] for word in words)


def test_a_stock_task_resumes_no_run_of_another_transform(data, tmp_path):
    """The parameters would fit; fairseq-validate and a fresh start may use another transform."""
    stock = ("--task", "translation", "--no-epoch-checkpoints", "--disable-validation")
    ours = (*stock, *output_flags("entmax15"))
    train(data, tmp_path, *ours, "--max-update", 1)
    last = tmp_path / "checkpoint_last.pt"
    before = last.read_bytes()
    other = (*stock, *output_flags("sparsemax"), "--max-update", 2)
    result = train(data, tmp_path, *other, check=False)
    assert result.returncode == 1 and list(tmp_path.iterdir()) == [last]
    assert last.read_bytes() == before
    message = result.stderr.strip().splitlines()[-1]
    for word in ("entmax15", "sparsemax", "--save-dir", f"--finetune-from-model {last}"):
        assert word in message

    train(data, tmp_path / "tuned", *other, "--finetune-from-model", last)
    copy = tmp_path / "copy.pt"
    copy.write_bytes(before)
    train(data, tmp_path, *other, "--reset-optimizer", "--reset-dataloader")
    assert last.read_bytes() != before
    validation = (data, "--path", copy, "--user-dir", toy.USER_DIR, "--cpu", "--max-tokens", 600)
    toy.run("fairseq_cli.validate", *validation, "--task", "translation")
    result = train(data, tmp_path, *ours, "--max-update", 3, check=False)
    assert result.returncode == 1 and "sparsemax" in result.stderr.strip().splitlines()[-1]
    train(data, tmp_path, *other[:-1], 3)


def test_flags_that_do_not_fit_stop_the_start(data, tmp_path):
    flags = ("--output-transform", "entmax15", "--criterion", "cross_entropy")
    result = train(data, tmp_path, *flags, check=False)
    assert result.returncode != 0 and not list(tmp_path.glob("*.pt"))
    assert all(word in result.stderr for word in (*flags, "--criterion entmax_loss"))
