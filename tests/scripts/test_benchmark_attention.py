"""scripts/benchmark_attention.py: what it measures and reports; not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import benchmark_attention
import toy
from fairseq_sparse.analysis.measuring import measure, peak_memory

SCRIPT = toy.ROOT / "scripts" / "benchmark_attention.py"
SMALL = (
    "--kinds rela_g,entmax_learned --lengths 4,30 --decode-lengths 6 --tokens 60 --max-len 3 "
    "--beam 2 --model-dim 8 --heads 2 --layers 1 --vocabulary 30 --rounds 2 --least-seconds 0 "
    "--threads 1"
).split()
ROWS = [
    *[("module", length, kind) for length in (4, 30) for kind in ("stock", "rela_g")],
    *[("step", length, kind) for length in (4, 30) for kind in ("stock", "rela_g")],
    *[("decode", 6, kind) for kind in ("stock", "rela_g")],
]


def test_table_and_json(tmp_path: Path) -> None:
    environment = {name: os.environ[name] for name in os.environ if "MALLOC" not in name}
    result = subprocess.run(
        [sys.executable, SCRIPT, *SMALL, "--kinds", "rela_g", "--json", tmp_path / "out.json"],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    rows = written["results"]
    assert [(row["part"], row["length"], row["attention"]) for row in rows] == ROWS
    for row in rows:
        assert row["batch"] == 60 // row["length"]
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0
        assert row["speed_least"] <= row["speed"] <= row["speed_greatest"]
        if row["attention"] == "stock":
            assert row["speed_least"] == row["speed_greatest"] == 1
            assert row.get("memory", 1) == 1
        assert ("sentences_per_second" in row) == (row["part"] == "decode")
        assert ("peak_bytes" in row) == (row["part"] == "module")
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(row[0], int(row[1]), row[3]) for row in cells[2:]] == ROWS
    assert f"torch {torch.__version__}" in result.stdout and "1 threads" in result.stdout
    assert written["machine"]["threads"] == 1 and written["options"]["beam"] == 2
    if sys.platform == "linux":
        assert written["malloc"]["MALLOC_MMAP_MAX_"] == "0"


def test_kinds_take_turns() -> None:
    order: list[str] = []
    jobs = {name: lambda name=name: order.append(name) for name in ("stock", "a", "b")}
    seconds = measure(jobs, rounds=3, least_seconds=0)
    assert order == ["stock", "a", "b"] * (2 + 3)
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys(jobs, 3)


def test_peak_memory_is_what_is_held_at_once() -> None:
    before = torch.ones(1 << 19)

    def run() -> None:
        nonlocal before
        before = None
        first = torch.ones(1 << 18)  # 1 MiB
        second = torch.ones(1 << 19)  # 2 MiB
        del first
        torch.ones(1 << 18)
        del second
        torch.ones(1 << 18)

    assert peak_memory(run) == 3 << 20


def test_all_kinds_translate_to_the_same_length() -> None:
    jobs = benchmark_attention.decode_jobs(
        benchmark_attention.parse_arguments(SMALL), length=5, batch=4
    )
    assert list(jobs) == ["stock", "rela_g", "entmax_learned"]
    for run in jobs.values():
        hypotheses = run()
        assert len(hypotheses) == 4
        # The three tokens of --max-len and the end of the sentence.
        assert {len(hypothesis["tokens"]) for best in hypotheses for hypothesis in best} == {4}


def test_kinds_differ_in_attention_only() -> None:
    options = benchmark_attention.parse_arguments(SMALL)
    task = toy.task(30)
    kinds = [*options.kinds, "relu:cross"]
    models = benchmark_attention.same_weights(
        options, kinds, lambda kind: benchmark_attention.build_transformer(options, kind, task)
    )
    stock = dict(models["stock"].named_parameters())
    # fairseq 0.12.2 keeps copies of an encoder layer's parameters, which are set on loading only.
    stock = {name: stock[name] for name in stock if not name.endswith(("_weight", "_bias"))}
    for kind, added in (("rela_g", {"weight", "gate"}), ("entmax_learned", {"alpha_logit"})):
        parameters = dict(models[kind].named_parameters())
        parameters = {n: parameters[n] for n in parameters if not n.endswith(("_weight", "_bias"))}
        assert all(torch.equal(parameters.pop(name), stock[name]) for name in stock)
        assert {name.rpartition(".")[2] for name in parameters} == added
    layer = models["relu:cross"].decoder.layers[0]
    assert layer.encoder_attn.attention_kind == "relu"
    assert not hasattr(layer.self_attn, "attention_kind")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--kinds", "rela_x"], "no rela_x; choose from softmax"),
        (["--kinds", "rela_g:all"], "no rela_g:all; choose from softmax"),
        (["--device", "nowhere"], "--device nowhere"),
    ],
)
def test_bad_values_are_one_line(
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for (
        name,
        value,
    ) in benchmark_attention.MALLOC.items():  # else the process of the tests would start again
        monkeypatch.setenv(name, value)
    assert benchmark_attention.main([*SMALL, *flags]) == 1
    printed = capsys.readouterr()
    assert message in printed.err and len(printed.err.splitlines()) == 1 and not printed.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--parts module,stop", "--parts: no stop"),
        ("--heads 3", "--heads 3 does not divide"),
        ("--lengths 5,0", "must be at least 1"),
        ("--attention-dropout 1", "must be in [0, 1)"),
        ("--json no/such/folder/x.json", "there is no such folder"),
    ],
)
def test_bad_flags_are_named(flags: str, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        benchmark_attention.parse_arguments([*SMALL, *flags.split()])
    assert message in capsys.readouterr().err
