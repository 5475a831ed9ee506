"""examples/quickstart/run.sh on a small corpus, with a few updates."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import toy

SCRIPT = toy.ROOT / "examples" / "quickstart" / "run.sh"
MODELS = ("softmax", "alpha_relu+rela_g")
CORPUS = "quickstart/make_corpus.py,--train,1000,--valid,30,--test,20,--held-out,6"
SMALL = ("--epochs", "1", "--average", "1", "--set", f"corpus.made_by={CORPUS}")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    folders = ["--data-dir", str(folder / "data"), "--runs-dir", str(folder / "runs")]
    return subprocess.run(
        ["bash", str(SCRIPT), *folders, *SMALL, *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHON": sys.executable},
        timeout=900,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("quick & start")
    return folder, run(folder, "--jobs", "1", *MODELS)


@pytest.mark.slow
def test_table_and_pictures(finished):
    folder, result = finished
    assert result.returncode == 0, result.stderr
    tables = (folder / "runs" / "comparison" / "results.md").read_text(encoding="utf-8")
    assert tables.startswith("Synthetic corpus") and tables in result.stdout
    rows = [line.strip("| ").split("|") for line in tables.splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in row] for row in rows]
    header, _, softmax, sparse = rows[:4]
    assert header[:2] == ["variant", "BLEU"] and softmax[0] == MODELS[0]
    summary = json.loads((folder / "runs" / MODELS[1] / "summary.json").read_text())
    assert sparse[header.index("nonzeros")] == f"{summary['test']['nonzeros']:.1f}"
    assert summary["dataset_note"].startswith("synthetic") and summary["dataset_note"] in tables
    assert summary["model"]["attention"] == "rela_g"
    speed = header.index("words/s")
    assert softmax[speed].endswith(" (1.00)") and re.search(r" \(\d+\.\d\d\)$", sparse[speed])
    alignment = json.loads((folder / "runs" / MODELS[1] / "alignment.json").read_text())
    assert alignment["sentences"] == 20
    assert [len(layer["heads"]) for layer in alignment["folders"][0]["normal"]["layers"]] == [4, 4]
    for part in ("test: 20", "test_unseen_pairs: 6"):
        assert f"Synthetic corpus, {part} sentences" in tables
    picture = folder / "runs" / MODELS[1] / "cross_attention.png"
    assert picture.read_bytes()[:4] == b"\x89PNG" and str(picture) in result.stdout


@pytest.mark.slow
def test_the_commands_to_try_next_can_be_copied(finished):
    folder, result = finished
    commands = result.stdout.partition("To try next:\n")[2]
    copied = re.findall(r"^  (.+) \\\n +(.+)$", commands, re.MULTILINE)
    report, tree = (shlex.split(" ".join(lines)) for lines in copied)
    assert report[:4] == [sys.executable, "-m", "fairseq_sparse", "report"]
    assert report[4:6] == [str(folder / "runs" / model) for model in MODELS]
    assert tree[3:5] == ["draw", "tree"]
    assert Path(tree[5]).is_dir() and Path(tree[7]).is_file()


@pytest.mark.slow
def test_second_run_repeats_nothing(finished):
    folder, first = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*.pt")}
    result = run(folder, *MODELS)
    assert result.returncode == 0, result.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*.pt")}
    assert result.stderr.count("done already") > len(MODELS) * 5
    assert result.stdout == first.stdout


@pytest.mark.slow
def test_speeds_are_measured_again_for_other_models(finished):
    folder, _ = finished
    for models in (MODELS[:1], MODELS):
        result = run(folder, *models)
        assert result.returncode == 0, result.stderr
        rows = re.findall(r"^\| (?:softmax|alpha_relu).*", result.stdout, re.MULTILINE)
        assert len(rows) >= len(models)
        for row in rows[: len(models)]:  # both speeds have a ratio: they were measured side by side
            assert len(re.findall(r"\d \(\d+\.\d\d\) ", row)) == 2


@pytest.mark.slow
def test_failure_names_the_model(finished):
    folder, _ = finished
    result = run(folder, MODELS[0], "--set", "arch=no_such")
    assert result.returncode == 1
    assert "--arch" in result.stderr and f" {MODELS[0]}: " in result.stderr
