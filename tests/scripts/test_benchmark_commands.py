"""The benchmark scripts as commands: they finish, record their results, and refuse bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import commands
import frozen_checkpoints
import toy
from benchmark import attention, decoding, linear_loss, losses, measure, training_step
from fairseq_sparse.analysis.translator import load_translator
from fork_python import PYTHON

QUICK = ["--rounds", "2", "--least-seconds", "0"]
ATTENTION = (
    "--kinds rela_g --lengths 4,30 --decode-lengths 6 --tokens 60 --max-len 3 --beam 2 "
    "--model-dim 8 --heads 2 --layers 1 --vocabulary 30 --threads 1"
).split()
TINY = " ".join(
    f"--{side}-layers 1 --{side}-embed-dim 8 --{side}-ffn-embed-dim 8 --{side}-attention-heads 2"
    for side in ("encoder", "decoder")
)
MODELS = {
    "softmax": ["--criterion", "cross_entropy"],
    "alpha_relu": ["--criterion", "alpha_relu_loss", "--output-transform", "alpha_relu"],
}


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, flags in MODELS.items():
        commands.train(data, folder / name, "--max-update", 3, *flags)
    return [folder / name / "checkpoint_last.pt" for name in MODELS]


def run(script: str, folder: Path, *flags: object, restart: bool = False) -> list[dict]:
    """Run a script; check what all scripts record, and return its results."""
    environment = {name: os.environ[name] for name in os.environ if "MALLOC" not in name}
    if not restart:
        environment |= measure.MALLOC
    result = subprocess.run(
        [
            PYTHON,
            toy.ROOT / f"scripts/benchmark/{script}.py",
            *flags,
            "--json",
            folder / "out.json",
        ],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    content = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert content["benchmark"] == script and f"torch {torch.__version__}" in result.stdout
    assert content["command"].startswith(f"scripts/benchmark/{script}.py {flags[0]}")
    if sys.platform == "linux":
        assert content["malloc"] == measure.MALLOC
    for row in content["results"]:
        assert "failed" in row or (len(row["seconds"]) == 2 and min(row["seconds"]) > 0)
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(content["results"])
    return content["results"]


@pytest.mark.slow
def test_attention(tmp_path: Path) -> None:
    rows = run("attention", tmp_path, *ATTENTION, *QUICK, restart=True)
    lengths = [(part, length) for part in attention.PARTS[:3] for length in (4, 30)]
    expected = [(*what, kind) for what in [*lengths, ("decode", 6)] for kind in ("stock", "rela_g")]
    assert [(row["part"], row["length"], row["attention"]) for row in rows] == expected
    for row in rows:
        assert row["batch"] == 60 // row["length"]
        if row["attention"] == "stock":
            assert row["speed"] == row.get("memory", 1) == 1 and row["speed_quartiles"] == [1, 1]
        assert ("sentences_per_second" in row) == (row["part"] == "decode")
        assert ("peak_bytes" in row) == (row["part"] != "decode")


def test_losses(tmp_path: Path) -> None:
    pytest.importorskip("entmax")
    rows = run("losses", tmp_path, "--sizes", "8x40,4x60", *QUICK)
    found = {(row["part"], row["rows"], row["vocabulary"], row["name"]) for row in rows}
    ours = ["alpha_relu_loss", *(f"entmax_loss, {alpha}" for alpha in ("1.25", "1.5", "1.75", "2"))]
    for size in ((8, 40), (4, 60)):
        assert {("loss", *size, name) for name in ("cross_entropy", *ours, losses.SORT)} <= found
        assert {("mapping", *size, name) for name in ("torch.softmax", "entmax15")} <= found
    assert {row["time"] for row in rows if row["name"] in ("cross_entropy", "torch.softmax")} == {1}


def test_linear_loss(tmp_path: Path) -> None:
    states = ",".join(linear_loss.STATES)
    flags = ["--sizes", "70x8x400", "--states", states, "--bounds", "--errors", "8"]
    results = run("linear_loss", tmp_path, *flags, "--body-layers", "1", *QUICK)
    ours = ["linear_alpha_relu_loss", "alpha_relu_loss", "linear_entmax_loss, 1.5"]
    ours += ["entmax_loss, 1.5", "linear_entmax_loss, 2"]
    density = {}
    for state in linear_loss.STATES:
        rows = {row["name"]: row for row in results if row["state"] == state}
        assert list(rows)[:6] == [linear_loss.BASELINE, *ours]
        baseline = rows[linear_loss.BASELINE]
        assert baseline["time"] == baseline["memory"] == 1
        for row in rows.values():
            assert row["memory"] == row["peak_bytes"] / baseline["peak_bytes"]
        for name in ours:
            assert rows[name]["error"] < 1e-5 and 0 < rows[name]["share_of_step"] < 1
        for count, name in zip((1, 3), linear_loss.PRODUCTS, strict=True):
            work = rows[name]["tflops"] * sum(rows[name]["seconds"]) / 2  # the median of two
            assert work == pytest.approx(2 * count * 70 * 8 * 400 / 1e12)
        density[state] = rows[ours[2]]["density"]
        assert density[state] < baseline["density"]
        if state == "like_model":  # softmax is 0 in fp32 for the smallest logits
            assert 0.5 < baseline["density"] <= 1
        else:
            assert baseline["density"] == 1
    assert density["trained"] == pytest.approx(0.005, abs=0.001)
    assert density["untrained"] > 2 * density["trained"]


@pytest.mark.parametrize("flags", [[], ["--lenpen", "0.6"]])
def test_all_generators_have_the_same_length_penalty(flags: list[str], tmp_path: Path) -> None:
    packed = frozen_checkpoints.FOLDER / "set1-py311" / "alpha_relu_rela_g.pt.gz"
    path, data = str(frozen_checkpoints.unpack(packed, tmp_path)), str(frozen_checkpoints.DATA)
    options = decoding.parse_arguments([data, "--path", path, "--names", "a", "--stock", *flags])
    translator = load_translator(path, data, cpu=True, name="a")
    found = decoding.generators([translator], options, beam=2)
    assert list(found) == ["a", f"a{decoding.STOCK_SEARCH}"]
    expected = 0.6 if flags else 1
    assert [generator.len_penalty for generator in found.values()] == [expected] * 2


@pytest.mark.slow
def test_decoding(data: Path, checkpoints: list[Path], tmp_path: Path) -> None:
    flags = ["--beams", "1-2", "--batches", "1,3", "--bins", "2", "--sentences", "6", "--stock"]
    flags += ["--path", *checkpoints, "--names", *MODELS, "--plots", tmp_path / "plots"]
    rows = run("decoding", tmp_path, data, *flags, "--rounds", "2")
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == {"beams", "source_lengths"}
    names = [*MODELS, f"alpha_relu{decoding.STOCK_SEARCH}"]
    expected = [
        ("beam", batch, beam, name) for batch in (1, 3) for beam in (1, 2) for name in names
    ]
    expected += [("source length", 3, 5, name) for name in names] * 2
    assert [(row["part"], row["batch"], row["beam"], row["model"]) for row in rows] == expected
    for row in rows:
        if "failed" in row:
            assert row["model"] == names[2]
            continue
        assert row["rate"] > 0 and row["length"] >= 1
        assert row["model"] != "softmax" or row["speed"] == 1


@pytest.mark.slow
def test_training_step(data: Path, tmp_path: Path) -> None:
    variants = ["stock", "rela_g", "entmax15", "alpha_relu+rela_g"]
    flags = ["--variants", ",".join(variants), "--flags", TINY, "--max-tokens", "200"]
    rows = run("training_step", tmp_path, data, *flags, "--batches", "2", "--rounds", "2")
    sparse = [(name, f"{name}{training_step.UNFUSED}") for name in variants[2:]]
    assert [row["model"] for row in rows] == [*variants[:2], *sparse[0], *sparse[1]]
    for row in rows:
        ratios = measure.ratios(rows[0]["seconds"], row["seconds"])
        assert row["speed"] == pytest.approx(sum(ratios) / 2)  # the median of two
        assert row["peak_bytes"] > 0
    # All have the same tokens, so that the rates differ as the times do.
    assert len({round(row["rate"] * sum(row["seconds"]) / 2) for row in rows}) == 1


def test_a_language_model_is_measured_as_its_recipe_trains_it() -> None:
    options = training_step.parse_arguments(["DATA", "--recipe", "tinyshakespeare"])
    flags = " ".join(training_step.training_flags("entmax15", "fp32", options))
    assert "--task language_modeling_sparse --tokens-per-sample 256" in flags
    assert "--arch transformer_lm_sparse" in flags and "--source-lang" not in flags


SCRIPTS = {m.__name__.rpartition(".")[2]: m for m in (attention, decoding, losses, linear_loss)}
SCRIPTS["training_step"] = training_step


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("attention --kinds rela_g:all", "no rela_g:all; choose from softmax"),
        ("decoding data --path /no/such.pt", "/no/such.pt"),
        ("training_step data --recipe no_such", "no no_such among examples/datasets"),
    ],
)
def test_bad_values_are_one_line(command, message, data, capsys) -> None:
    name, *flags = [str(data) if word == "data" else word for word in command.split()]
    script = SCRIPTS[name]
    options = script.parse_arguments(flags)
    capsys.readouterr()
    assert measure.main(name, options, script.run, script.table) == 1
    printed = capsys.readouterr()
    last = printed.err.splitlines()[-1]
    assert last.startswith(f"{name}: error: ") and message in last and not printed.out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("attention --parts module,stop", "no stop; choose from"),
        ("losses --least-seconds nan", "argument --least-seconds: must be a number of at least 0"),
        ("linear_loss --sizes 2x3", "sizes have 3 numbers"),
        ("decoding data --path x --names a b", "--names"),
        ("training_step", "without DATA --vocabulary is needed"),
    ],
)
def test_bad_usage(command: str, message: str, capsys: pytest.CaptureFixture) -> None:
    name, *flags = command.split()
    with pytest.raises(SystemExit):
        SCRIPTS[name].parse_arguments(flags)
    assert message in capsys.readouterr().err
