"""An engine may be killed at any moment, and started twice at once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from engines import Engine, is_alive, lines, plan, sh, stage, until
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import engine

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's death")
WORK = 'echo "begin $1 $$" >> "$2"; sleep 0.01; echo "end $1 $$" >> "$2"; echo done'
# A child of a child in a session of its own, as torchrun's workers are.
TREE = 'setsid sleep 100 & sleep 100 & echo $! >> "$1"; echo $$ >> "$1"; wait'


def children_of(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def busy(folder, count=4):
    """Return a plan of two stages of commands that note when they work."""
    folder.mkdir(exist_ok=True)
    outputs = [folder / str(number) for number in range(count)]
    commands = [sh(WORK, path.name, folder / "journal", stdout=path) for path in outputs]
    half = count // 2
    return plan(
        stage(folder, *commands[:half], name="first", changed="refuse"),
        stage(folder, *commands[half:], name="second", inputs=tuple(outputs[:half])),
    ), outputs


@linux
@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_kills_lose_no_finished_work_and_nothing_works_twice_at_once(tmp_path, victim):
    made, outputs = busy(tmp_path / "run")
    journal, state = tmp_path / "run" / "journal", random.Random(1)
    finished: dict[str, int] = {}
    for kill in range(8):
        process = Engine(made, tmp_path / "errors")
        if kill < 7:
            time.sleep(state.uniform(0, 0.15))
            target = process.process
            if victim == "worker":
                target = int((children_of(target) or [target])[0])
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        found = {path.name for path in outputs if path.exists()}
        status = process.wait()
        begun = [line.split()[1] for line in lines(journal) if line.startswith("begin")]
        for name, count in finished.items():
            assert begun.count(name) == count, f"{name} was done again"
        finished.update({name: begun.count(name) for name in found if name not in finished})
    assert status == 0
    for before, line in pairwise(["", *lines(journal)]):
        if line.startswith("end"):
            assert before == line.replace("end", "begin"), "two worked at once"
    assert all(path.read_text() == "done\n" for path in outputs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_whole_tree(tmp_path, number):
    made = plan(stage(tmp_path, sh(TREE, tmp_path / "processes"), outputs=(tmp_path / "no",)))
    process = Engine(made, tmp_path / "errors")
    until(lambda: len(lines(tmp_path / "processes")) == 2)
    process.kill(number)
    assert process.wait() == -number
    assert not any(is_alive(int(line)) for line in lines(tmp_path / "processes"))


@linux
def test_a_killed_engine_leaves_nothing_running(tmp_path):
    made = plan(stage(tmp_path, sh(TREE, tmp_path / "processes"), outputs=(tmp_path / "no",)))
    process = Engine(made, tmp_path / "errors")
    until(lambda: len(lines(tmp_path / "processes")) == 2)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    until(lambda: not any(is_alive(int(line)) for line in lines(tmp_path / "processes")))


def test_a_command_that_ignores_signals_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_sparse.recipes.processes.GRACE", 0.2)
    script = 'trap "" TERM; echo $$ > "$1"; while :; do sleep 0.01; done'
    made = plan(stage(tmp_path, sh(script, tmp_path / "process")))
    process = Engine(made, tmp_path / "errors")
    until(lambda: lines(tmp_path / "process"))
    process.kill(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert not is_alive(int(lines(tmp_path / "process")[0]))


def test_a_second_signal_does_not_wait(tmp_path):
    script = 'trap "" TERM; echo $$ > "$1"; while :; do sleep 0.01; done'
    process = Engine(plan(stage(tmp_path, sh(script, tmp_path / "process"))), tmp_path / "errors")
    until(lambda: lines(tmp_path / "process"))
    process.kill(signal.SIGINT)
    process.kill(signal.SIGTERM)  # a second SIGINT may come before the first is seen, and is lost
    assert process.wait() == -signal.SIGINT
    assert not is_alive(int(lines(tmp_path / "process")[0]))


def test_a_second_engine_waits_and_finds_the_work_done(tmp_path):
    script = 'echo x >> "$1"; while ! test -e "$2"; do sleep 0.01; done; touch "$3"'
    files = [tmp_path / name for name in ("runs", "go", "out")]
    made = plan(stage(tmp_path, sh(script, *files), outputs=(tmp_path / "out",)))
    first = Engine(made, tmp_path / "first")
    until(lambda: lines(tmp_path / "runs"))
    second = Engine(made, tmp_path / "second")
    until(lambda: "waiting" in "".join(lines(tmp_path / "second")))
    (tmp_path / "go").touch()
    assert first.wait() == second.wait() == 0
    assert lines(tmp_path / "runs") == ["x"]


def test_a_waiting_engine_can_be_ended(tmp_path):
    script = 'echo $$ > "$1"; sleep 100'
    made = plan(stage(tmp_path, sh(script, tmp_path / "process", stdout=tmp_path / "out")))
    first = Engine(made, tmp_path / "first")
    until(lambda: lines(tmp_path / "process"))
    second = Engine(made, tmp_path / "second")
    until(lambda: "waiting" in "".join(lines(tmp_path / "second")))
    second.kill(signal.SIGINT)
    assert second.wait() == -signal.SIGINT and is_alive(int(lines(tmp_path / "process")[0]))
    first.kill(signal.SIGTERM)
    first.wait()


@linux
def test_the_lock_outlives_the_engine_and_its_worker(tmp_path):
    """A command that cannot be ended, such as one that waits for a disk, still keeps others out."""
    script = 'trap "" TERM; echo $$ > "$1"; while ! test -e "$2"; do sleep 0.01; done; rm "$2"'
    command = sh(script, tmp_path / "process", tmp_path / "go", outputs=(tmp_path / "out",))
    first = Engine(plan(stage(tmp_path, command)), tmp_path / "first")
    until(lambda: lines(tmp_path / "process"))
    (orphan,) = map(int, lines(tmp_path / "process"))
    worker = int(open(f"/proc/{orphan}/stat").read().rpartition(") ")[2].split()[1])
    os.kill(first.process, signal.SIGSTOP)  # it can end nothing now
    os.kill(worker, signal.SIGKILL)
    os.kill(first.process, signal.SIGKILL)
    first.wait()
    assert is_alive(orphan)
    other = sh("touch $1", tmp_path / "out", outputs=(tmp_path / "out",))
    second = Engine(plan(stage(tmp_path, other)), tmp_path / "second")
    until(lambda: f"({orphan}" in "".join(lines(tmp_path / "second")))
    assert not (tmp_path / "out").exists()
    (tmp_path / "go").touch()
    assert second.wait() == 0 and not is_alive(orphan)


def test_a_worker_that_is_killed_is_an_error(tmp_path):
    made = plan(stage(tmp_path, sh("kill -9 $PPID; sleep 100", stdout=tmp_path / "out")))
    with pytest.raises(RecipeError, match="signal 9"):
        engine.run(made)
