"""The files of a finished run that are published, for others to check."""

import gzip
import json
import subprocess

import pytest

import toy
from fork_python import PYTHON

SCRIPT = toy.ROOT / "scripts" / "publish_run.py"
TEXT = "Zwei Männer .\n\nA dog .\n"
LONG_TEXT = "Zwei Männer und ein Hund .\n"


def publish(*arguments):
    command = [PYTHON, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def finished(tmp_path):
    run = tmp_path / "runs" / "softmax-1"
    (run / "stages").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "checkpoint_last.pt").write_bytes(b"0" * 99)
    summary = {"dataset": "multi30k_de_en", "variant": "softmax", "bleu": {"bleu": 30.5}}
    (run / "summary.json").write_text(json.dumps(summary))
    counted = {"scores": "p", "empty_is_best": 0.25, "name": "/home/a/x.pt", "checkpoints": []}
    empty = {"rows": [counted, {"scores": "p / sum"}]}
    (run / "empty.json").write_text(json.dumps(empty))
    for stage, settings in (
        ("train", {"--lr": "2e-3", "--dropout": "0.3"}),
        ("generate", {"--beam": "5"}),
    ):
        record = {"state": "finished", "settings": settings, "inputs": {"/home/a/x": {}}}
        (run / "stages" / f"{stage}.json").write_text(json.dumps(record))
    lines = [
        f"2026-01-01 | INFO | valid | {json.dumps({'epoch': epoch, 'valid_loss': loss})}"
        for epoch, loss in ((1, "4.5"), (2, "4.25"))
    ]
    (run / "logs" / "train.log").write_text("\n".join(lines) + "\n")
    (run / "hyp.detok.txt").write_text(TEXT)
    (run / "hyp-long.detok.txt").write_text(LONG_TEXT)
    return run


def test_all_but_the_checkpoints_is_kept(finished, tmp_path):
    options = ("--results", tmp_path / "results", "--commit", "0123abcd")
    result = publish(finished, *options)
    assert result.returncode == 0, result.stderr
    kept = tmp_path / "results" / "runs" / "multi30k_de_en" / "softmax-1"
    assert str(kept) in result.stdout
    texts = {"translations.gz": TEXT, "translations-long.gz": LONG_TEXT}
    names = {"summary.json", "settings.txt", "training.tsv", *texts}
    assert {path.name for path in kept.iterdir()} == names
    for name, text in texts.items():
        assert gzip.decompress((kept / name).read_bytes()).decode() == text
    summary = json.loads((kept / "summary.json").read_text())
    assert summary["bleu"] == {"bleu": 30.5}
    assert summary["empty"] == {"scores": "p", "empty_is_best": 0.25}
    assert (kept / "training.tsv").read_text() == "epoch\tloss\n1\t4.5\n2\t4.25\n"
    settings = (kept / "settings.txt").read_text()
    assert "commit 0123abcd" in settings and "--dropout 0.3" in settings and "--beam 5" in settings
    assert "# generate\n--beam 5\n" in settings and "/home" not in settings
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert publish(finished, *options).returncode == 0
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_guessed_forms_are_kept_by_language(finished, tmp_path):
    (finished / "hyp.detok.txt").unlink()
    (finished / "hyp-long.detok.txt").unlink()
    (finished / "guesses").mkdir()
    forms = {"danish": "hus\thuset\tN;DEF;SG\n", "turkish": "ev\tevler\tN;NOM;PL\n"}
    for language, line in forms.items():
        (finished / "guesses" / f"{language}-out").write_text(line)
    result = publish(finished, "--results", tmp_path / "results", "--commit", "0")
    assert result.returncode == 0, result.stderr
    kept = tmp_path / "results" / "runs" / "multi30k_de_en" / "softmax-1" / "guesses"
    assert {path.name: gzip.decompress(path.read_bytes()).decode() for path in kept.iterdir()} == {
        f"{language}-out.gz": line for language, line in forms.items()
    }


def test_a_run_without_a_training_log_leaves_nothing_behind(finished, tmp_path):
    (finished / "logs" / "train.log").unlink()
    result = publish(finished, "--results", tmp_path / "results", "--commit", "0")
    assert result.returncode == 1 and "train.log" in result.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("missing", ["summary.json", "hyp.detok.txt"])
def test_a_run_that_is_not_finished_is_refused(missing, finished, tmp_path):
    (finished / missing).unlink()
    result = publish(finished, "--results", tmp_path / "results")
    assert result.returncode == 1 and str(finished) in result.stderr
    assert not (tmp_path / "results").exists()


def log_line(tag, **numbers):
    return f"2026-01-01 | INFO | {tag} | {json.dumps(numbers)}"


def test_each_validation_is_kept(finished, tmp_path):
    """Several in an epoch; one that is repeated after an interruption counts once."""
    losses = ((50, "4.5"), (100, "4.0"), (100, "3.9"), (2_000_001, "3.5"))
    lines = [
        log_line("valid", epoch=1, valid_num_updates=updates, valid_loss=loss)
        for updates, loss in losses
    ]
    (finished / "logs" / "train.log").write_text("\n".join(lines) + "\n")
    assert publish(finished, "--results", tmp_path, "--commit", "0").returncode == 0
    (table,) = tmp_path.rglob("training.tsv")
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert [row[1:3] for row in rows] == [
        ["num_updates", "loss"],
        ["50", "4.5"],
        ["100", "3.9"],
        ["2000001", "3.5"],
    ]


def test_the_curves_of_what_is_kept_are_drawn(finished, tmp_path):
    lines = []
    for epoch, bleu in enumerate((10.5, 20.25), start=1):
        done = {"epoch": epoch}
        lines.append(log_line("train", **done, train_num_updates=9 * epoch, train_train_wall=900))
        lines.append(log_line("valid", **done, valid_num_updates=9 * epoch, valid_bleu=bleu))
    (finished / "logs" / "train.log").write_text("\n".join(lines) + "\n")
    results = tmp_path / "results"
    assert publish(finished, "--results", results, "--commit", "0").returncode == 0
    (table,) = results.rglob("training.tsv")
    head, *rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert [row[head.index("hours")] for row in rows] == ["0.25", "0.5"]

    def draw(*arguments):
        script = SCRIPT.with_name("draw_figures.py")
        command = [PYTHON, script, *map(str, arguments), "--results", str(results)]
        return subprocess.run(command, capture_output=True, text=True)

    picture = tmp_path / "curves.svg"
    result = draw("--runs", "multi30k_de_en/softmax-*", "--picture", picture)
    assert result.returncode == 0, result.stderr
    assert "validation BLEU" in picture.read_text() and "softmax" in picture.read_text()
    (summary,) = results.rglob("summary.json")
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"variant_name": "tau of 1"}))
    assert draw("--runs", "multi30k_de_en/softmax-*", "--picture", picture).returncode == 0
    assert "tau of 1" in picture.read_text()
    result = draw("--runs", "multi30k_de_en/softmax-*", "--picture", picture, "--metric", "loss")
    assert result.returncode == 1 and "loss" in result.stderr
    result = draw("--runs", "multi30k_de_en/entmax15-*", "--picture", picture)
    assert result.returncode == 1 and "entmax15-*" in result.stderr
