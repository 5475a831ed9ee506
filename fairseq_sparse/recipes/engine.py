"""Runs the stages of a plan: skips finished ones, resumes interrupted ones, keeps logs.

The work is done by a fork, the worker (see ``supervisor``); everything here runs in it, but
:func:`run`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fairseq_sparse import files
from fairseq_sparse.errors import AnalysisError, CheckpointError, RecipeError
from fairseq_sparse.recipes import processes, progress, records, script, supervisor
from fairseq_sparse.recipes.flag_check import check_flags
from fairseq_sparse.recipes.plan import CORES, Command, Plan, Stage

_SHOWN = 20  # last lines of the log of a failure


def run(plan: Plan, names: Sequence[str] = ()) -> None:
    """Run those stages of a plan, or of those with the names, that are not finished.

    SIGINT, SIGTERM and SIGHUP end the work, and then this process.
    """
    task = task_of(plan, names)
    supervisor.supervise([task], [{}])
    if task.error is not None:
        raise RecipeError(task.error)


def task_of(
    plan: Plan, names: Sequence[str] = (), name: str = "", later: Sequence[Stage] = ()
) -> supervisor.Task:
    """Return the task of running stages of a plan, for a worker.

    The flags of fairseq are checked before the first stage, with those of ``later`` stages.
    """
    stages = stages_of(plan, names)

    def work(tell: supervisor.Tell) -> None:
        new = (stage for stage in [*stages, *later] if not records.is_finished(stage))
        check_flags(command for stage in new for command in stage.commands)
        for stage in stages:
            try:
                _do(stage, tell)
            except OSError as error:
                reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                raise RecipeError(f"the stage {stage.name} failed: {reason}") from error

    return supervisor.Task(work, name, plan.environment)


def stages_of(plan: Plan, names: Sequence[str] = ()) -> list[Stage]:
    """Return those stages of a plan that have the names; without names, all.

    Raises:
        RecipeError: there is no such stage.
    """
    known = [stage.name for stage in plan.stages]
    for each in names:
        if each not in known:
            raise RecipeError(f"there is no stage {each}: the stages are {', '.join(known)}")
    return [stage for stage in plan.stages if not names or stage.name in names]


def _do(stage: Stage, tell: supervisor.Tell) -> None:
    """Do a stage, unless it is finished."""

    def say(text: str) -> None:
        tell(say=f"[{stage.name}] {text}")

    state = records.check(stage)
    if state.kind == records.FINISHED:
        say("done already")
        return
    _refuse(stage, state)
    for name in ("stages", "logs"):
        (stage.folder / name).mkdir(parents=True, exist_ok=True)
    lock = processes.lock(stage.folder, say)
    state = records.check(stage)  # another process may have worked on it meanwhile
    _refuse(stage, state)
    if state.kind == records.FINISHED:
        say("done already")
    else:
        _work(stage, state, tell, say)
    os.close(lock)  # otherwise this process ends it, after what it has started


def _refuse(stage: Stage, state: records.State) -> None:
    """Check that a stage can begin."""
    if state.missing:
        missing = ", ".join(map(str, state.missing))
        raise RecipeError(f"the stage {stage.name} needs {missing}: run the stages before it first")
    if stage.changed != "refuse":
        return
    # What failed or was stopped before it made anything that is worth keeping begins anew.
    resumable = stage.resumes_from is not None and stage.resumes_from.exists()
    if state.kind == records.CHANGED and (state.was_finished or resumable):
        lines = "\n  ".join(state.differences)
        raise RecipeError(
            f"the stage {stage.name} was begun or finished with other settings or inputs:\n  "
            f"{lines}\nGive the options that it was made with, or another folder than "
            f"{stage.folder} (--data-dir or --run-dir)."
        )
    made = [*records.made(stage), *filter(None, [stage.resumes_from])]
    found = [path for path in made if os.path.lexists(path)]
    if state.kind == records.NEW and found:
        raise RecipeError(
            f"the stage {stage.name} would replace {found[0]}, which has no record "
            f"({records.path_of(stage)} is missing): choose another folder, or delete it"
        )


def _work(
    stage: Stage, state: records.State, tell: supervisor.Tell, say: Callable[[str], None]
) -> None:
    """Do the work of a stage, from the start or from where it was interrupted."""
    begun = time.monotonic()
    resumes = state.kind == records.INTERRUPTED
    for path in state.running if resumes else records.made(stage):
        records.remove(path)
    records.write(stage, records.INTERRUPTED, state.inputs)
    for difference in state.differences:
        say(difference)
    begins = "resumed" if resumes else "begun anew" if state.differences else "begun"
    log = stage.folder / "logs" / f"{stage.name}.log"
    if not resumes or (stage.resumes_from and not stage.resumes_from.exists()):
        log.unlink(missing_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    start = os.stat(log).st_size
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    tell(stage=stage.name, begins=begins, log=str(log))
    try:
        if stage.before:
            stage.before()
        for command in stage.commands:
            made = command.made
            if made and all(path.exists() for path in made):
                continue
            # A part of its standard output cannot be left under the name of the whole.
            records.write(stage, records.INTERRUPTED, state.inputs, command.outputs)
            _run(command, log, tell)
            records.write(stage, records.INTERRUPTED, state.inputs)
        if stage.after:
            stage.after()
    except (AnalysisError, CheckpointError, RecipeError, OSError, ValueError) as error:
        shown = [line[:500] for line in progress.last_lines(log, _SHOWN, start)]
        lines = "".join(f"\n  {line}" for line in shown)
        raise RecipeError(
            f"the stage {stage.name} failed: {error}{lines}\nIts log: {log}"
        ) from error
    for path in stage.outputs:
        if not path.exists():
            raise RecipeError(f"the stage {stage.name} did not make {path}; its log: {log}")
    records.write(stage, records.FINISHED, state.inputs)
    say(f"finished in {time.monotonic() - begun:.1f} s")


def _run(command: Command, log: Path, tell: supervisor.Tell) -> None:
    """Run a command; its standard output is written whole or not at all."""
    argv = tuple(str(os.cpu_count()) if word == CORES else str(word) for word in command.argv)
    print(f"$ {script.as_line(replace(command, argv=argv))}", flush=True)
    for path in command.made:
        path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stdin = stdout = None
        watched = log
        if len(command.stdin) == 1:
            stdin = stack.enter_context(open(command.stdin[0], "rb")).fileno()
        elif command.stdin:
            joined = stack.enter_context(tempfile.TemporaryFile(dir=log.parent))
            for path in command.stdin:
                with open(path, "rb") as part:
                    shutil.copyfileobj(part, joined)
            joined.seek(0)
            stdin = joined.fileno()
        if command.stdout:
            handle = stack.enter_context(files.replacing(command.stdout, binary=True))
            stdout = handle.fileno()
            if command.with_errors:
                watched = Path(handle.name)
        tell(argv=argv, watched=watched, start=watched.stat().st_size)
        errors = stdout if command.with_errors else None
        status = processes.wait(processes.start(argv, stdin, stdout, errors))
        if status and command.with_errors:  # the file goes
            print(*progress.last_lines(watched, 1000), sep="\n", flush=True)
        if status:
            end = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
            raise RecipeError(f"{argv[0]} {end}")
        processes.end_descendants()
