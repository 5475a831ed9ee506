"""Toy plans, and engines in processes of their own that can be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_sparse.recipes import engine, processes
from fairseq_sparse.recipes.plan import Command, Plan, Stage


def sh(script: str, *arguments: object, **fields: object) -> Command:
    """Return a command that runs a shell script; its arguments are $1, $2, ..."""
    return Command(("sh", "-c", script, "sh", *map(str, arguments)), **fields)


def stage(folder: Path, *commands: Command, name: str = "make", **fields: object) -> Stage:
    """Return a stage whose outputs are those of its commands."""
    outputs = tuple(path for each in commands for path in each.made)
    defaults = {"settings": {}, "inputs": (), "outputs": outputs}
    return Stage(name=name, folder=folder, commands=commands, **{**defaults, **fields})


def plan(*stages: Stage) -> Plan:
    return Plan("toys", stages)


class Engine:
    """A process that runs a plan; ``errors`` gets what it writes for the user."""

    def __init__(
        self, plan: Plan, errors: Path, run: Callable[[Plan], object] = engine.run
    ) -> None:
        self.errors = errors
        self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(descriptor, 2)
                os.setsid()  # Ctrl-C would go to this group
                for number in processes.ENDING:  # the tests may be run with nohup
                    signal.signal(number, signal.SIG_DFL)
                sys.stderr = open(2, "w", buffering=1, closefd=False)
                run(plan)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process, number)

    def wait(self) -> int:
        """Return the exit status, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def is_alive(process: int) -> bool:
    """Return whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def lines(path: Path) -> Sequence[str]:
    return path.read_text().splitlines() if path.exists() else []
