"""scripts/benchmark/targets.py and summarize.py: what is reached, and the page that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark import measure, summarize, targets


def record(benchmark: str, results: list[dict], device: str = "cpu") -> dict:
    machine = {"hardware": "a CPU", "cores": 2, "threads": 2, "torch": "2", "fairseq": None}
    return {
        "benchmark": benchmark,
        "command": f"scripts/benchmark/{benchmark}.py",
        "machine": machine | {"peers": {}},
        "options": {"device": device, "rounds": 2},
        "results": results,
    }


def timed(names: dict[str, list[float]], key: str = "name", **what: object) -> list[dict]:
    """Results with these seconds, the first the baseline."""
    baseline = next(iter(names.values()))
    return [
        {**what, key: name, "seconds": seconds}
        | measure.summary("time", measure.ratios(seconds, baseline))
        | measure.summary("speed", measure.ratios(baseline, seconds))
        for name, seconds in names.items()
    ]


LOSS = {
    "cross_entropy": [1.0, 1.0],
    "alpha_relu_loss": [0.5, 0.5],
    "entmax_loss, 1.5": [1.1, 1.1],
    "entmax_loss, 2": [0.9, 0.9],
    "entmax package, k=100": [3.4, 3.4],
    "entmax package, sort": [11.0, 11.0],
    "entmax package, bisect 22": [55.0, 55.0],
}


def test_losses() -> None:
    what = {"part": "loss", "dtype": "float32", "rows": 512, "vocabulary": 10000}
    results = timed(LOSS, **what) + timed({"torch.softmax": [1.0]}, **{**what, "part": "mapping"})
    found = {
        target.point.split(":")[0]: target
        for target in targets.targets([record("losses", results)])
    }
    reached = {name: target.reached for name, target in found.items()}
    assert reached == {
        "alpha_relu_loss": True,  # 0.5, at the limit
        "entmax_loss, 1.5": False,
        "entmax_loss, 2": True,
        "entmax_loss, 1.25": False,  # not measured
        "entmax_loss, 1.75": False,
        "entmax package, k=100": True,  # 3.1 times ours
        "entmax package, sort": False,  # 10 times
        "entmax package, bisect": True,  # 50 times
    }
    assert found["entmax package, sort"].measured == pytest.approx((10, 10, 10))
    assert found["entmax_loss, 1.25"].cells()[-2:] == ["-", "not measured"]
    assert found["entmax_loss, 1.5"].cells()[1:] == [
        "[512, 10000] float32",
        "≤ 1.00",
        "1.10 (1.10-1.10)",
        "no",
    ]
    gpu = list(targets.targets([record("losses", results, "cuda")]))
    assert [target.limit for target in gpu] == [0.6, 1.0]  # no package, other limits


def test_layers_and_their_memory() -> None:
    what = {"dtype": "float32", "tokens": 4, "width": 2, "vocabulary": 9, "state": "trained"}
    names = {"cross_entropy": [1.0], "linear_alpha_relu_loss": [0.4]}
    results = timed(names, **what)
    results[1]["memory"] = 0.31
    found = targets.targets([record("linear_loss", results)])
    assert [target.reached for target in found] == [True, False, False, False]
    assert [target.measured is None for target in found] == [False, False, True, True]


def test_whole_models() -> None:
    training = timed({"stock": [1.0], "alpha_relu": [0.7], "softmax": [1.0]}, key="model")
    for result in training:
        result |= {"part": "training", "vocabulary": 8000}
    beam = {"part": "beam", "beam": 5, "batch": 32}
    decoding = timed({"softmax": [1.0], "entmax15": [1.25]}, key="model", **beam)
    decoding.append({**beam, "model": "alpha_relu", "failed": "no"})
    decoding.append({**decoding[1], "model": "entmax15, stock search"})
    contents = [record("training_step", training), record("decoding", decoding)]
    found = {target.what: target for target in targets.targets(contents)}
    assert {what: target.reached for what, target in found.items()} == {
        "alpha_relu, V = 8000": True,
        "entmax15, beam 5, batch 32": False,
        "alpha_relu, beam 5, batch 32": False,
    }
    assert found["alpha_relu, beam 5, batch 32"].measured is None


def test_attention_on_a_gpu() -> None:
    what = {"part": "attend", "dtype": "bfloat16", "length": 1024}
    names = {"stock": [1.0], "rela_g": [0.9], "entmax15": [3.0]}
    results = timed(names, key="attention", **what)
    assert [t.reached for t in targets.targets([record("attention", results, "cuda")])] == [True]
    assert not targets.targets([record("attention", results)])


def test_page_has_targets_parts_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    what = {"part": "loss", "dtype": "float32", "rows": 512, "vocabulary": 10000}
    content = record("losses", timed(LOSS, **what))
    (tmp_path / "losses.json").write_text(json.dumps(content))
    (tmp_path / "losses.status").write_text("done\n12\npython losses.py\n")
    (tmp_path / "decoding.status").write_text("stopped after 3 s\n3\npython decoding.py\n")
    (tmp_path / "old.json").write_text("{}")  # of no part
    assert summarize.main([str(tmp_path), "--dry-run"]) == 0
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    assert "4 of 8 reached" in page and "stopped after 3 s" in page and "mean nothing" in page
    assert "| float32 | 512 x 10000 | entmax package, sort " in page
    written = json.loads((tmp_path / "benchmarks.json").read_text(encoding="utf-8"))
    assert [part["name"] for part in written["parts"]] == ["losses", "decoding"]
    assert written["records"] == {"losses": content}
    assert sum(target["reached"] for target in written["targets"]) == 4


def test_empty_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert summarize.main([str(tmp_path)]) == 1
    assert "run run_all.sh or run_gpu.sh first" in capsys.readouterr().err
