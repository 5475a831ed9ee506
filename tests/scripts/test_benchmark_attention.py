"""scripts/benchmark/attention.py: what it measures and reports; not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import toy
from benchmark import attention, check_kernels, measure
from fork_python import PYTHON

SCRIPT = toy.ROOT / "scripts" / "benchmark" / "attention.py"
SMALL = (
    "--kinds rela_g,entmax_learned --lengths 4,30 --decode-lengths 6 --tokens 60 --max-len 3 "
    "--beam 2 --model-dim 8 --heads 2 --layers 1 --vocabulary 30 --rounds 2 --least-seconds 0 "
    "--threads 1"
).split()
KINDS = ("stock", "rela_g")
ROWS = [
    *[(part, length, kind) for part in attention.PARTS[:3] for length in (4, 30) for kind in KINDS],
    *[("decode", 6, kind) for kind in KINDS],
]


def test_table_and_json(tmp_path: Path) -> None:
    environment = {name: os.environ[name] for name in os.environ if "MALLOC" not in name}
    result = subprocess.run(
        [PYTHON, SCRIPT, *SMALL, "--kinds", "rela_g", "--json", tmp_path / "out.json"],
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
        if row["attention"] == "stock":
            assert row["speed"] == 1 and row["speed_quartiles"] == [1, 1]
            assert row.get("memory", 1) == 1
        assert ("sentences_per_second" in row) == (row["part"] == "decode")
        assert ("peak_bytes" in row) == (row["part"] != "decode")
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(row[0], int(row[2]), row[4]) for row in cells[2:]] == ROWS
    assert f"torch {torch.__version__}" in result.stdout and "1 threads" in result.stdout
    assert written["machine"]["threads"] == 1 and written["options"]["beam"] == 2
    assert written["command"].startswith("scripts/benchmark/attention.py --kinds")
    if sys.platform == "linux":
        assert written["malloc"] == measure.MALLOC


@pytest.mark.parametrize("causal", [False, True])
def test_attend_differs_in_the_kind_alone(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With softmax weights in place of its own, a kind gives what stock gives."""
    from fairseq_sparse.modules.attention_weights import ATTENTION_KINDS

    monkeypatch.setitem(ATTENTION_KINDS, "sparsemax", ATTENTION_KINDS["softmax"])
    flags = [*SMALL, "--kinds", "sparsemax,rela_g,rela_i", *(["--causal"] if causal else [])]
    jobs = attention.attend_jobs(attention.parse_arguments(flags), 7, 3, torch.float64)
    # rela_i differs from rela_g in the norm alone, which is not in this part.
    assert list(jobs) == ["stock", "sparsemax", "rela_g"]
    outputs: list[torch.Tensor] = []
    backward = torch.Tensor.backward

    def keep(self, gradient):
        outputs.append(self.detach())
        backward(self, gradient)

    monkeypatch.setattr(torch.Tensor, "backward", keep)
    for run in jobs.values():
        run()
    torch.testing.assert_close(outputs[1], outputs[0], check_dtype=False)
    assert not outputs[2].allclose(outputs[0])


def test_words_ahead_are_hidden_as_kernels_expect_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told that a mask is causal, and check it."""
    from fairseq_sparse import ops
    from fairseq_sparse.ops.attention_kernels import assert_causal

    seen = []

    def look(*arguments: object, **settings: torch.Tensor):
        assert settings["causal"]
        seen.append(settings["bias"])
        return attend(*arguments, **settings)

    attend = ops.attend
    monkeypatch.setattr(ops, "attend", look)
    options = attention.parse_arguments([*SMALL, "--causal"])
    attention.attend_jobs(options, 7, 3, torch.bfloat16)["rela_g"]()
    query = torch.zeros(1, 1, 9, 4)
    assert_causal(seen[0])
    assert_causal(check_kernels.words_ahead(query))


def test_all_kinds_translate_to_the_same_length() -> None:
    options = attention.parse_arguments(SMALL)
    jobs = attention.decode_jobs(options, length=5, batch=4, dtype=torch.float32)
    assert list(jobs) == ["stock", "rela_g", "entmax_learned"]
    for run in jobs.values():
        hypotheses = run()
        assert len(hypotheses) == 4
        # The three tokens of --max-len and the end of the sentence.
        assert {len(hypothesis["tokens"]) for best in hypotheses for hypothesis in best} == {4}


def test_kinds_differ_in_attention_only() -> None:
    options = attention.parse_arguments(SMALL)
    task = toy.task(30)
    kinds = [*options.kinds, "relu:cross"]

    def build(kind: str) -> torch.nn.Module:
        return attention.build_transformer(options, kind, task)

    models = attention.same_weights(options, kinds, build, torch.float32)
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
    flags: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    options = attention.parse_arguments([*SMALL, *flags])
    assert measure.main("attention", options, attention.run, attention.table) == 1
    printed = capsys.readouterr()
    assert message in printed.err and len(printed.err.splitlines()) == 1 and not printed.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--parts module,stop", "no stop; choose from"),
        ("--heads 3", "--heads 3 does not divide"),
        ("--lengths 5,0", "must be at least 1"),
        ("--attention-dropout 1", "must be in [0, 1)"),
    ],
)
def test_bad_flags_are_named(flags: str, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        attention.parse_arguments([*SMALL, *flags.split()])
    assert message in capsys.readouterr().err
