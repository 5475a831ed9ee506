"""Runs side by side: shares of the machine, failures, data that are prepared once."""

from __future__ import annotations

import os
import signal

import pytest

from engines import Engine, is_alive, lines, plan, sh, stage, until
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import grid


def job(tmp_path, number, script='echo "$OMP_NUM_THREADS $CUDA_VISIBLE_DEVICES"', data="data"):
    """Return a run that uses prepared data and writes what its script prints."""
    data, run = tmp_path / data, tmp_path / f"run{number}"
    prepare = sh('echo x >> "$1"; test ! -e "$2"; ', data / "runs", data / "broken")
    train = sh(script, tmp_path, run, stdout=run / "out")
    stages = (
        stage(data, prepare, name="prepare", outputs=(data / "runs",)),
        stage(run, train, name="train", inputs=(data / "runs",)),
    )
    data.mkdir(exist_ok=True)
    return f"run {number}", plan(*stages), ()


def test_data_are_prepared_once_and_a_failure_does_not_stop_the_others(tmp_path, capfd):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "broken").touch()
    jobs = [
        job(tmp_path, 1),
        job(tmp_path, 2, "echo reason >&2; exit 3"),
        job(tmp_path, 3, data="other"),
        job(tmp_path, 4),
    ]
    failures = grid.run_all(jobs, 2, "cpu")
    assert [line.partition(":")[0] for line in failures] == ["run 2", "run 3"]
    assert str(tmp_path / "run2" / "logs" / "train.log") in failures[0]
    assert lines(tmp_path / "data" / "runs") == ["x"]
    assert (tmp_path / "run4" / "out").exists() and not (tmp_path / "run3").exists()
    said = capfd.readouterr().err
    assert "reason" in said and all(line in said for line in failures)


def test_only_the_stages_that_are_named(tmp_path):
    name, made, _ = job(tmp_path, 1)
    assert not grid.run_all([(name, made, ["prepare"])], 1, "cpu")
    assert not (tmp_path / "run1").exists()


def test_runs_work_side_by_side_but_not_more_than_asked_for(tmp_path):
    script = """cd "$1"; mkdir now.$$; ls -d now.* | wc -l; echo $$ >> started
    while test $(wc -l < started) -lt 2; do sleep 0.01; done; rmdir now.$$"""
    assert not grid.run_all([job(tmp_path, number, script) for number in range(4)], 2, "cpu")
    counts = [int((tmp_path / f"run{number}" / "out").read_text()) for number in range(4)]
    assert max(counts) == 2


@pytest.mark.parametrize(
    ("gpus", "visible", "at_once", "expected"),
    [
        (4, None, 0, ["0", "1", "2", "3"]),
        (4, None, 2, ["0,1", "2,3"]),
        (4, "4,5,6,7", 3, ["4", "5", "6"]),
        (2, "GPU-a,GPU-b", 4, ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]),
        (1, None, 1, ["0"]),
    ],
)
def test_gpus_are_shared_out(monkeypatch, gpus, visible, at_once, expected):
    monkeypatch.setattr(grid, "count_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in grid.shares(at_once, "gpu")] == expected


def test_cores_are_shared_out_unless_the_user_has_done_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert grid.shares(1, "cpu") == [{}]
    assert not grid.run_all([job(tmp_path, 1)], 3, "cpu")
    assert (tmp_path / "run1" / "out").read_text().strip() == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert not grid.run_all([job(tmp_path, 2)], 3, "cpu")
    assert (tmp_path / "run2" / "out").read_text().strip() == "5"


def test_without_a_gpu_there_is_nothing_to_share(monkeypatch):
    monkeypatch.setattr(grid, "count_gpus", lambda: 0)
    with pytest.raises(RecipeError, match="no GPU"):
        grid.run_all([], 1, "gpu")


def test_a_signal_ends_all_runs_and_begins_no_other(tmp_path):
    script = 'echo $$ >> "$1/started"; sleep 100'
    jobs = [job(tmp_path, number, script) for number in range(3)]
    process = Engine(jobs, tmp_path / "errors", lambda jobs: grid.run_all(jobs, 2, "cpu"))
    until(lambda: len(lines(tmp_path / "started")) == 2)
    process.kill(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    started = lines(tmp_path / "started")
    assert len(started) == 2 and not any(is_alive(int(line)) for line in started)
