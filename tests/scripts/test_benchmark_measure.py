"""scripts/benchmark/measure.py, targets.py and summarize.py: ratios, records, targets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from benchmark import measure, summarize, targets
from fairseq_sparse.analysis import measuring


def options(tmp_path: Path | None = None) -> argparse.Namespace:
    path = tmp_path and tmp_path / "out.json"
    return argparse.Namespace(rounds=2, device="cpu", threads=None, json=path)


def test_jobs_take_turns() -> None:
    order: list[str] = []
    jobs = {name: lambda name=name: order.append(name) for name in ("stock", "a", "b")}
    seconds = measuring.measure(jobs, rounds=3, least_seconds=0)
    assert order == ["stock", "a", "b"] * (2 + 3)
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys(jobs, 3)


def test_ratios_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the median times: the job takes half the baseline's time in most rounds."""
    seconds = {"base": [1.0, 10.0, 4.0, 2.0, 1.0], "job": [0.5, 5.0, 2.0, 4.0, 3.0]}
    monkeypatch.setattr(measuring, "measure", lambda *_: seconds)
    jobs = dict.fromkeys(seconds, lambda: None)
    base, job = measure.compare(jobs, options(), key="model", part="x")
    assert (base["time"], base["time_quartiles"]) == (1, [1, 1])
    assert job["time"] == 0.5 and job["time_quartiles"] == [0.5, 2.0]
    assert job["speed"] == 2 and job["speed_quartiles"] == [0.5, 2.0]
    assert (job["part"], job["model"], job["seconds"]) == ("x", "job", seconds["job"])
    # One round has no spread.
    assert measure.summary("time", [3.0]) == {"time": 3.0, "time_quartiles": [3.0, 3.0]}


@pytest.mark.parametrize("broken", ["stock", "peer"])
def test_a_failure_is_recorded_and_stops_nothing(broken: str) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel\nfor this device")

    jobs = {name: fail if name == broken else lambda: None for name in ("stock", "peer", "ours")}
    results = {result["name"]: result for result in measure.compare(jobs, options())}
    assert list(results) == ["stock", "peer", "ours"]
    assert results[broken]["failed"] == "RuntimeError: no kernel for this device"
    assert "seconds" not in results[broken] and len(results["ours"]["seconds"]) == 2
    assert ("time" in results["ours"]) == (broken != "stock")
    assert measure.ratio_cells(results[broken], "time") == ["failed", "-"]
    measure.add_memory(list(results.values()), jobs, "cpu")
    assert "peak_bytes" not in results[broken] and "peak_bytes" in results["ours"]


def test_memory_is_a_ratio_to_the_first() -> None:
    jobs = {"base": lambda: torch.ones(1 << 20), "job": lambda: torch.ones(1 << 18)}
    results = measure.compare(jobs, options())
    measure.add_memory(results, jobs, "cpu")
    assert [result["peak_bytes"] for result in results] == [1 << 22, 1 << 20]
    assert [result["memory"] for result in results] == [1, 0.25]


def test_record_is_written_after_each_addition(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    record = measure.Record("name", chosen)
    for count in (1, 2):
        record.add([{"name": "job", "seconds": [1.0]}])
        assert len(json.loads(chosen.json.read_text(encoding="utf-8"))["results"]) == count


def test_error_is_one_line(capsys: pytest.CaptureFixture) -> None:
    def run(*_: object) -> None:
        raise ValueError("two\nlines")

    assert measure.main("name", options(), run, str) == 1
    assert capsys.readouterr().err == "name: error: two lines\n"
    for device in ("meta", "nowhere"):
        chosen = argparse.Namespace(**{**vars(options()), "device": device})
        assert measure.main("name", chosen, run, str) == 1
        assert f"--device {device}: choose cpu or cuda" in capsys.readouterr().err


def test_the_device_is_the_current_one_of_what_takes_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current: list[torch.device] = []
    tensor = argparse.Namespace(device=torch.device("cuda:1"))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: tensor)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    measure.begin(argparse.Namespace(threads=None, device="cuda:1"))
    assert current == [tensor.device]


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
    """Return results with these seconds; the first is the baseline."""
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
    measured = targets.targets([record("losses", results)])
    found = {target.point.split(":")[0]: target for target in measured}
    assert {name: target.reached for name, target in found.items()} == {
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
    assert found["entmax_loss, 1.5"].cells()[-2:] == ["1.10 (1.10-1.10)", "no"]
    gpu = list(targets.targets([record("losses", results, "cuda")]))
    assert [target.limit for target in gpu] == [0.6, 1.0]  # other limits, and none for the package


def test_layers_on_a_gpu_against_the_fastest_peer() -> None:
    what = {"dtype": "bfloat16", "tokens": 4, "width": 2, "vocabulary": 9, "state": "like_model"}
    names = {
        "cross_entropy": [3.0],
        "linear_alpha_relu_loss": [0.9],
        "linear_entmax_loss, 1.5": [1.1],
        "QuACK": [2.0],
        "entmax package, k=100": [0.1],
        "one product": [0.2],
    }
    results = timed(names, **what)
    results.append({**what, "name": "Liger, triton", "failed": "no"})
    found = targets.targets([record("linear_loss", results, "cuda")])
    assert [target.point for target in found] == [
        "linear_alpha_relu_loss: time by that of QuACK",
        "linear_entmax_loss, 1.5: time by that of QuACK",
    ]
    assert [target.measured[0] for target in found] == pytest.approx([0.45, 0.55])
    assert [target.reached for target in found] == [True, False]
    untrained = [{**result, "state": "untrained"} for result in results]
    assert not list(targets.targets([record("linear_loss", untrained, "cuda")]))


def test_attention_on_a_gpu() -> None:
    found = []
    for length in (1024, 8192):
        what = {"part": "attend", "dtype": "bfloat16", "length": length}
        names = {"stock": [1.0], "rela_g": [0.9], "entmax15": [1.1]}
        results = timed(names, key="attention", **what)
        found += targets.targets([record("attention", results, "cuda")])
        assert not targets.targets([record("attention", results)])
    assert [target.reached for target in found] == [True, True, True, False]


def test_page_has_targets_parts_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    what = {"part": "loss", "dtype": "float32", "rows": 512, "vocabulary": 10000}
    content = record("losses", timed(LOSS, **what))
    (tmp_path / "losses.json").write_text(json.dumps(content))
    (tmp_path / "losses.status").write_text("done\n12\npython losses.py\n")
    (tmp_path / "decoding.status").write_text("stopped after 3 s\n3\npython decoding.py\n")
    (tmp_path / "old.json").write_text("{}")  # belongs to no part
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
