"""scripts/benchmark/measure.py: turns, ratios, failures and records; not how fast anything is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from benchmark import measure
from fairseq_sparse.analysis import measuring
from fairseq_sparse.analysis.measuring import peak_memory


def options(tmp_path: Path | None = None, **others: object) -> argparse.Namespace:
    path = tmp_path and tmp_path / "out.json"
    return argparse.Namespace(rounds=2, device="cpu", threads=None, json=path, **others)


def test_jobs_take_turns() -> None:
    order: list[str] = []
    jobs = {name: lambda name=name: order.append(name) for name in ("stock", "a", "b")}
    seconds = measuring.measure(jobs, rounds=3, least_seconds=0)
    assert order == ["stock", "a", "b"] * (2 + 3)
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys(jobs, 3)


def test_ratios_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the medians: here the job takes half of the baseline's time in most rounds."""
    seconds = {"base": [1.0, 10.0, 4.0, 2.0, 1.0], "job": [0.5, 5.0, 2.0, 4.0, 3.0]}
    monkeypatch.setattr(measuring, "measure", lambda *_: seconds)
    jobs = dict.fromkeys(seconds, lambda: None)
    base, job = measure.compare(jobs, options(), key="model", part="x")
    assert (base["time"], base["time_quartiles"]) == (1, [1, 1])
    assert job["time"] == 0.5 and job["time_quartiles"] == [0.5, 2.0]
    assert job["speed"] == 2 and job["speed_quartiles"] == [0.5, 2.0]
    assert (job["part"], job["model"], job["seconds"]) == ("x", "job", seconds["job"])


def test_one_round_has_no_spread() -> None:
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


def test_record_is_written_after_each_addition(tmp_path: Path) -> None:
    chosen = options(tmp_path, sizes=[(2, 3)])
    record = measure.Record("name", chosen)
    for count in (1, 2):
        record.add([{"name": "job", "seconds": [1.0]}])
        content = json.loads(chosen.json.read_text(encoding="utf-8"))
        assert len(content["results"]) == count
    assert content["benchmark"] == "name" and content["options"]["sizes"] == [[2, 3]]
    assert content["machine"]["torch"] == torch.__version__
    assert torch.__version__ in measure.conditions(content)


def test_error_is_one_line(capsys: pytest.CaptureFixture) -> None:
    def run(*_: object) -> None:
        raise ValueError("two\nlines")

    assert measure.main("name", options(), run, str) == 1
    assert capsys.readouterr().err == "name: error: two lines\n"
    for device in ("meta", "nowhere"):
        with pytest.raises(ValueError, match=f"--device {device}: choose cpu or cuda"):
            measure.begin(argparse.Namespace(**{**vars(options()), "device": device}))
    bad = argparse.Namespace(**{**vars(options()), "device": "nowhere"})
    assert measure.main("name", bad, run, str) == 1
    assert "--device nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (measure.one_of("a", "b"), "b,a,b", ["b", "a"]),
        (measure.one_of("a", "b"), "a,c", "no c; choose from a, b"),
        (measure.sizes(2), "3x4,5x6", [(3, 4), (5, 6)]),
        (measure.sizes(2), "3x4x5", "sizes have 2 numbers"),
        (measure.numbers, "1,32,1", [1, 32]),
        (measure.numbers, "0", "must be at least 1"),
    ],
)
def test_arguments(parse, text: str, value: object) -> None:
    if not isinstance(value, str):
        assert parse(text) == value
        return
    with pytest.raises(argparse.ArgumentTypeError, match=value):
        parse(text)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(text, capsys):
    parser = measure.argument_parser("")
    measure.add_arguments(parser, rounds=1, least_seconds=0.2)
    with pytest.raises(SystemExit):
        parser.parse_args(["--least-seconds", text])
    assert "argument --least-seconds: " in capsys.readouterr().err
