"""scripts/benchmark/run_all.sh, run_gpu.sh and the parts that they are made of."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import toy
from fork_python import PYTHON

FOLDER = toy.ROOT / "scripts" / "benchmark"
NO_FAIRSEQ = """
import sys
sys.modules["fairseq"] = sys.modules["hypothesis"] = None
"""


def bash(*arguments: object, **variables: str) -> subprocess.CompletedProcess:
    environment = {"PYTHON": PYTHON, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        ["bash", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=900,
    )


def run_parts(out: Path, script: str, deadline: int = 0) -> subprocess.CompletedProcess:
    head = f'OUT="$1"; BENCHMARKS="{FOLDER}"; DEADLINE={deadline}; source "{FOLDER}/parts.sh"\n'
    return bash("-c", head + script, "bash", out)


def statuses(out: Path) -> dict[str, str]:
    return {file.stem: file.read_text().splitlines()[0] for file in out.glob("*.status")}


def test_parts_fail_and_are_stopped_on_their_own(tmp_path: Path) -> None:
    script = """
    part good 0 echo fine
    part bad 0 bash -c 'echo one; echo what went wrong >&2; exit 3'
    part slow 1 sleep 60
    skip other "no such thing here"
    echo "failed: $FAILED"
    """
    result = run_parts(tmp_path, script)
    assert result.returncode == 0 and result.stdout == "failed: 2\n", result.stderr
    assert statuses(tmp_path) == {
        "good": "done",
        "bad": "failed: what went wrong",
        "slow": "stopped after 1 s",
        "other": "skipped: no such thing here",
    }
    assert (tmp_path / "good.log").read_text() == "fine\n"


def test_what_is_done_is_skipped_while_it_is_the_same(tmp_path: Path) -> None:
    for word in ("a", "a", "b"):
        run_parts(tmp_path, f"part count 0 bash -c 'echo {word} >> \"$0\"' {tmp_path}/said")
    assert (tmp_path / "said").read_text() == "a\nb\n"
    failing = f"part fails 0 bash -c 'echo x >> \"$0\"; exit 1' {tmp_path}/tries"
    for _ in range(2):
        run_parts(tmp_path, failing)
    assert (tmp_path / "tries").read_text() == "x\nx\n"


def test_no_part_begins_after_the_deadline(tmp_path: Path) -> None:
    result = run_parts(tmp_path, "SECONDS=97\npart late 50 echo x", deadline=100)
    assert result.returncode == 0
    assert statuses(tmp_path) == {"late": "skipped: no time is left"}
    run_parts(tmp_path, "SECONDS=94\npart last 50 sleep 60", deadline=100)
    assert statuses(tmp_path)["last"] == "stopped after 6 s"


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["run_all.sh"], {"MODELS": "softmax=x.pt"}, "MODELS needs DATA"),
        (["run_gpu.sh", "--part", "overview,no_such"], {}, "--part no_such: choose from overview"),
    ],
)
def test_bad_usage(arguments: list[str], variables: dict[str, str], message: str) -> None:
    result = bash(FOLDER / arguments[0], *arguments[1:], **variables)
    assert result.returncode == 2 and message in result.stderr


@pytest.mark.slow
def test_run_all(tmp_path: Path) -> None:
    result = bash(FOLDER / "run_all.sh", "--dry-run", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert set(statuses(tmp_path / "out").values()) == {"done"}
    page = (tmp_path / "out" / "benchmarks.md").read_text(encoding="utf-8")
    assert page in result.stdout
    for line in (
        "alpha_relu_loss: time by cross_entropy's",
        "linear_alpha_relu_loss: memory",
        "training step: speed",
        "decoding: speed",
        "alpha_relu, beam 5, batch 32",
        "entmax15 --no-fused-loss",
    ):
        assert line in page
    records = json.loads((tmp_path / "out" / "benchmarks.json").read_text())["records"]
    vocabularies = {
        row["vocabulary"]
        for name in records
        if name.startswith("training_step")
        for row in records[name]["results"]
    }
    assert vocabularies == {2000, 3000}
    again = bash(FOLDER / "run_all.sh", "--dry-run", tmp_path / "out")
    assert again.stderr.count("done already") == len(statuses(tmp_path / "out"))
    assert again.stdout == result.stdout


@pytest.mark.slow
def test_run_gpu(tmp_path: Path) -> None:
    result = bash(FOLDER / "run_gpu.sh", "--dry-run", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert set(statuses(tmp_path).values()) == {"done"}
    records = json.loads((tmp_path / "benchmarks.json").read_text())["records"]
    # The tests and the ablations write no records.
    assert {record["benchmark"] for record in records.values()} == {
        *("check_kernels", "losses", "linear_loss", "attention", "training_step")
    }
    assert all(record["results"] for record in records.values())
    for name in ("full", "causal", "cross", "dropout", "trained"):
        rows = records[f"attention_{name}"]["results"]
        assert all(row["error"] < 1e-5 for row in rows)
    parts = {
        f"layers_{tokens}_{size}" for tokens in (2048, 8192) for size in (32000, 128000, 256000)
    }
    attention = {f"attention_{name}" for name in ("full", "causal", "cross", "dropout", "trained")}
    assert parts | attention | {"layers_cutedsl"} < set(records)
    assert {"softmax", "rela_g_alpha_relu"} <= {
        word.strip("`") for word in (tmp_path / "ablations.md").read_text().split()
    }


@pytest.mark.slow
def test_run_gpu_without_fairseq(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_FAIRSEQ)
    out = tmp_path / "out"
    parts = ["--part", "overview,ablations"]
    flags = ["--dry-run", "--out", out, *parts]
    result = bash(FOLDER / "run_gpu.sh", *flags, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    skipped = {name for name, status in statuses(out).items() if status.startswith("skipped")}
    assert skipped == {"training_step", "attention_models", "tests", "ablations"}
    assert {status for name, status in statuses(out).items() if name not in skipped} == {"done"}
    page = (out / "benchmarks.md").read_text(encoding="utf-8")
    assert "cannot import fairseq" in page and "attend" in page
