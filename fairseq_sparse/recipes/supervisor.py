"""Workers and the process that was started: it forks them, shows how far they are, and ends them.

A worker tells its supervisor through a pipe what it does, and ends its work when nobody listens any
more.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import processes, progress

PERIOD = 0.5  # seconds between looks at logs


# Sends fields of ``Task.message``; ``say`` is a line to show. Raises Stopped without a supervisor.
Tell = Callable[..., None]


@dataclass(eq=False)
class Task:
    """The work of a worker.

    Attributes:
        work: what it calls, with the function by which it tells how far it is.
        name: of the run, where there are several; else empty.
        environment: variables of its commands.
        message: what the worker has told last, by field: ``stage``, how it ``begins``, its ``log``;
            ``argv`` of the command at work and the file ``watched`` from byte ``start`` on;
            ``error`` or None.
        process, share, connection: of the worker, once it has been forked.
    """

    work: Callable[[Tell], None]
    name: str
    environment: dict[str, str]
    message: dict[str, Any] = field(default_factory=lambda: {"error": None})
    process: int = 0
    share: dict[str, str] = field(default_factory=dict)
    connection: Optional[Connection] = None

    @property
    def error(self) -> Optional[str]:
        """What went wrong, or None."""
        return self.message["error"]

    def progress(self) -> str:
        """Return how far it is."""
        told = self.message
        if "argv" not in told:
            return self.name
        text = progress.describe(told["argv"], told["watched"], told["start"])
        return f"{self.name} [{told['stage']}] {text or told['argv'][0]}".strip()


def supervise(tasks: Sequence[Task], shares: Sequence[dict[str, str]]) -> None:
    """Do tasks in workers, as many at once as there are shares, until all have ended.

    A share of the machine is given by variables. Where a signal has ended the work, it ends this
    process, too.
    """
    waiting, working, free = list(tasks), [], list(shares)
    line = progress.Line()
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        for task in working:
            with suppress(ProcessLookupError):
                if len(received) == 1:
                    os.kill(task.process, signal.SIGTERM)
                else:  # the user does not want to wait
                    os.killpg(task.process, signal.SIGKILL)

    handlers = {number: signal.getsignal(number) for number in processes.ENDING}
    for number, handler in handlers.items():
        if handler != signal.SIG_IGN:  # set by nohup
            signal.signal(number, stop)
    try:
        while working or (waiting and not received):
            while waiting and free and not received:
                signal.pthread_sigmask(signal.SIG_BLOCK, processes.ENDING)
                _fork(waiting.pop(0), free.pop(0), working)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.ENDING)
            wait([task.connection for task in working], PERIOD)
            for task in list(working):
                if _has_ended(task, line):
                    working.remove(task)
                    free.append(task.share)
                    if task.name and not received:
                        line.say(f"{task.name}: {task.error or 'done'}")
            line.show("; ".join(task.progress() for task in working))
    finally:
        line.show("")
        for task in working:  # left by an error of this loop
            os.kill(task.process, signal.SIGTERM)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        sys.stdout.flush()
        signal.signal(received[0], signal.SIG_DFL)
        os.kill(os.getpid(), received[0])  # not exit(): then a shell's loop would go on
        raise SystemExit(128 + received[0])  # the first process of a container survives that


def _fork(task: Task, share: dict[str, str], working: list[Task]) -> None:
    """Start the worker of a task."""
    task.connection, connection = Pipe(duplex=False)
    task.share = share
    sys.stdout.flush()
    sys.stderr.flush()
    task.process = os.fork()
    if task.process:
        connection.close()
        working.append(task)
        return
    status = 1
    try:
        for other in [*working, task]:  # else it would not see the end of the supervisor
            other.connection.close()
        status = _work(task, connection)
    finally:
        os._exit(status)


def _work(task: Task, connection: Connection) -> int:
    """Do a task in its worker, and return the worker's exit status."""

    def tell(**message: Any) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise processes.Stopped from error

    try:
        processes.become_worker({**task.environment, **task.share})
        task.work(tell)
        return 0
    except processes.Stopped:
        return 1
    except BaseException as error:
        own = isinstance(error, RecipeError)
        tell(error=str(error) if own else traceback.format_exc())
        return 1
    finally:
        for number in processes.ENDING:
            signal.signal(number, signal.SIG_IGN)
        processes.end_descendants()


def _has_ended(task: Task, line: progress.Line) -> bool:
    """Read what a worker tells; return whether it has ended."""
    ended, status = os.waitpid(task.process, os.WNOHANG)  # first: what it told last is read below
    with suppress(EOFError, OSError):  # OSError: it was killed while it told something
        while task.connection.poll():
            message = task.connection.recv()
            task.message.update(message)
            if "say" in message:
                line.say(f"{task.name} {message['say']}".strip())
            if "begins" in message and not line.moves:
                line.say(f"{task.name} [{message['stage']}] {message['begins']}".strip())
    if not ended:
        return False
    with suppress(ProcessLookupError, PermissionError):  # what a killed worker has left
        os.killpg(task.process, signal.SIGKILL)
    task.connection.close()
    if status and task.error is None:
        code = os.waitstatus_to_exitcode(status)
        end = f"signal {-code}" if code < 0 else f"status {code}"
        task.message["error"] = f"the process at work ended ({end}): start again to resume"
    return True
