"""examples/quickstart/run.sh on a small corpus, with a few updates."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

import toy
from fork_python import PYTHON

SCRIPT = toy.ROOT / "examples" / "quickstart" / "run.sh"
VARIANTS = ("softmax", "rela_g_alpha_relu")


VARIABLES = {
    "PYTHON": PYTHON,
    "CORPUS_FLAGS": "--train 1000 --valid 30 --test 20 --held-out 6",
    "MAX_EPOCH": "1",
    "AVERAGE_LAST": "1",
}


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    folders = ["--data-dir", str(folder / "data"), "--runs-dir", str(folder / "runs")]
    return subprocess.run(
        ["bash", str(SCRIPT), *folders, *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **VARIABLES, **variables},
        timeout=900,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("quick & start")
    return folder, run(folder, "--jobs", "1", *VARIANTS)


@pytest.mark.slow
def test_table_and_pictures(finished):
    folder, result = finished
    assert result.returncode == 0, result.stderr
    assert "Synthetic corpus" in result.stdout
    tables = (folder / "runs" / "results.md").read_text(encoding="utf-8")
    assert tables in result.stdout
    rows = [line.strip("| ").split("|") for line in tables.splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in row] for row in rows]
    header, _, softmax, sparse = rows[:4]
    assert header[:2] == ["variant", "BLEU"] and (softmax[0], sparse[0]) == VARIANTS
    summary = json.loads((folder / "runs" / VARIANTS[1] / "summary.json").read_text())
    assert sparse[header.index("nonzeros")] == f"{summary['test']['nonzeros']:.1f}"
    assert summary["dataset_note"].startswith("synthetic") and summary["dataset_note"] in tables
    speed = header.index("words/s")
    assert softmax[speed].endswith(" (1.00)") and re.search(r" \(\d+\.\d\d\)$", sparse[speed])
    alignment = json.loads((folder / "runs" / VARIANTS[1] / "alignment.json").read_text())
    assert alignment["sentences"] == 20
    assert [len(layer["heads"]) for layer in alignment["folders"][0]["normal"]["layers"]] == [4, 4]
    for part in ("test: 20", "test_unseen_pairs: 6"):
        assert f"Synthetic corpus, {part} sentences" in tables
    picture = folder / "runs" / VARIANTS[1] / "cross_attention.png"
    assert picture.read_bytes()[:4] == b"\x89PNG" and str(picture) in result.stdout
    for name in ("results.md", "speeds.json"):
        assert (folder / "runs" / name).is_file()
    assert str(folder / "data" / "raw") in result.stdout


@pytest.mark.slow
def test_the_commands_to_try_next_can_be_copied(finished):
    folder, result = finished
    commands = result.stdout.partition("To try next:\n")[2]
    copied = re.findall(r"^  (.+) \\\n +(.+?)  +\w.*$", commands, re.MULTILINE)
    report, tree = (shlex.split(" ".join(lines)) for lines in copied)
    program = [PYTHON, "-m", "fairseq_sparse"]
    assert report[:4] == [*program, "report"] and tree[:6] == [
        *program,
        "analyze",
        "output",
        "tree",
    ]
    assert report[4:6] == [str(folder / "runs" / variant) for variant in VARIANTS]
    assert Path(tree[6]).is_dir() and Path(tree[8]).is_file()
    assert tree[7:9] == ["--path", str(Path(report[5], "average.pt"))]


@pytest.mark.slow
def test_second_run_repeats_nothing(finished):
    folder, first = finished
    average = folder / "runs" / VARIANTS[0] / "average.pt"
    before = average.stat().st_mtime_ns
    os.utime(folder / "runs" / "speeds.variants", (1, 1))  # as if the clock had been set back
    result = run(folder, *VARIANTS)
    assert result.returncode == 0, result.stderr
    assert "measuring speed" not in result.stderr
    assert average.stat().st_mtime_ns == before
    log = (folder / "runs" / f"{VARIANTS[0]}.log").read_text(encoding="utf-8")
    for stage in ("prepare", "train", "average", "generate", "align", "analyze"):
        assert f"[{stage}] done already" in log
    assert result.stdout == first.stdout


@pytest.mark.slow
def test_speeds_are_measured_again_for_other_models(finished):
    folder, _ = finished
    for variants in (VARIANTS[:1], VARIANTS):
        result = run(folder, *variants)
        assert result.returncode == 0, result.stderr
        assert "measuring speed" in result.stderr
        for variant in variants:  # both speeds have a ratio: they were measured side by side
            row, *_ = re.findall(rf"^\| {variant} .*", result.stdout, re.MULTILINE)
            assert len(re.findall(r"\d \(\d+\.\d\d\) ", row)) == 2


@pytest.mark.slow
def test_failure_names_the_log(finished):
    folder, _ = finished
    result = run(folder, VARIANTS[0], TRAIN_FLAGS="--arch no_such")
    assert result.returncode == 1
    log = folder / "runs" / f"{VARIANTS[0]}.log"
    assert str(log) in result.stderr and "other settings" in log.read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_can_be_suspended_while_models_train(finished, tmp_path):
    """Ctrl-Z stops the foreground process and its whole group."""
    folder, _ = finished
    slow = tmp_path / "python"
    training = f'case "$*" in *fairseq_cli.train*) exec sleep 60;; esac; exec "{PYTHON}" "$@"'
    slow.write_text(f"#!/bin/bash\n{training}\n")
    slow.chmod(0o755)
    folders = ["--data-dir", str(folder / "data"), "--runs-dir", str(tmp_path)]
    process = subprocess.Popen(
        ["bash", str(SCRIPT), *folders, VARIANTS[0]],
        stderr=subprocess.PIPE,
        env={**os.environ, **VARIABLES, "PYTHON": str(slow)},
        start_new_session=True,
    )
    try:
        assert any(b"epochs trained" in line for line in process.stderr)
        group = os.getpgid(sleeping_child(process.pid))
        os.killpg(group, signal.SIGSTOP)
        time.sleep(1.5)
        os.killpg(group, signal.SIGCONT)
        time.sleep(1.5)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM


def sleeping_child(parent: int) -> int:
    for _ in range(600):
        children = ["ps", "--ppid", str(parent), "-o", "pid=,comm="]
        for line in subprocess.run(children, capture_output=True, text=True).stdout.splitlines():
            pid, name = line.split()
            if name == "sleep":
                return int(pid)
        time.sleep(0.1)
    raise AssertionError("no sleep was started within a minute")
