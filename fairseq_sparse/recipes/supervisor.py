"""Workers and the process that was started: it forks them, shows how far they are, and ends them.

A worker and its supervisor share a socket: the worker tells what it does, and ends its work when
nobody listens any more.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import processes, progress

PERIOD = 0.5  # seconds between looks at logs


class Link:
    """The worker's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def tell(self, **message: Any) -> None:
        """Send fields of ``Task.message``; ``say`` is a line to show.

        Raises:
            processes.Stopped: the supervisor has ended.
        """
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise processes.Stopped from error

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            processes.Stopped: the supervisor has ended.
        """
        if select.select([self._connection], [], [], seconds)[0]:
            raise processes.Stopped


@dataclass(eq=False)
class Task:
    """The work of a worker.

    Attributes:
        work: what it calls.
        name: of the run, where there are several; else empty.
        environment: variables of its commands.
        message: what the worker has told last, by field: ``stage``, how it ``begins``, its ``log``;
            ``argv`` of the command at work and the file ``watched`` from byte ``start`` on;
            ``error`` or None; and ``end`` when nothing follows.
        process, share, connection, received: of the worker, once it has been forked.
    """

    work: Callable[[Link], None]
    name: str
    environment: dict[str, str]
    message: dict[str, Any] = field(default_factory=lambda: {"error": None})
    process: int = 0
    share: dict[str, str] = field(default_factory=dict)
    connection: Optional[socket.socket] = None
    received: bytes = b""

    @property
    def error(self) -> Optional[str]:
        """What went wrong, or None."""
        return self.message["error"]

    def progress(self) -> str:
        """Return how far it is."""
        told = self.message
        if "argv" not in told:
            return self.name
        text = progress.describe(told["argv"], Path(told["watched"]), told["start"])
        return f"{self.name} [{told['stage']}] {text or told['argv'][0]}".strip()


def supervise(tasks: Sequence[Task], shares: Sequence[dict[str, str]]) -> None:
    """Do tasks in workers, as many at once as there are shares, until all have ended.

    Where a signal has ended the work, it ends this process, too.

    Args:
        shares: for each of the workers at once, variables that give it its share of the machine.
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
            select.select([task.connection for task in working], [], [], PERIOD)
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
    task.connection, connection = socket.socketpair()
    task.share = share
    sys.stdout.flush()
    sys.stderr.flush()
    task.process = os.fork()
    if task.process:
        connection.close()
        task.connection.setblocking(False)
        working.append(task)
        return
    status = 1
    try:
        for other in [*working, task]:  # else it would not see the end of the supervisor
            other.connection.close()
        status = _work(task, share, Link(connection))
    finally:
        os._exit(status)


def _work(task: Task, share: dict[str, str], link: Link) -> int:
    """Do a task in its worker, and return the worker's exit status."""
    try:
        processes.become_worker({**task.environment, **share})
        task.work(link)
        return 0
    except processes.Stopped:
        return 1
    except BaseException as error:
        own = isinstance(error, RecipeError)
        link.tell(error=str(error) if own else traceback.format_exc())
        return 1
    finally:
        for number in processes.ENDING:
            signal.signal(number, signal.SIG_IGN)
        processes.end_descendants()
        with suppress(processes.Stopped):
            link.tell(end=True)


def _has_ended(task: Task, line: progress.Line) -> bool:
    """Read what a worker tells; return whether it has ended."""
    with suppress(BlockingIOError):
        while block := task.connection.recv(1 << 16):
            task.received += block
    *messages, task.received = task.received.split(b"\n")
    for message in map(json.loads, messages):
        task.message.update(message)
        if "say" in message:
            line.say(f"{task.name} {message['say']}".strip())
        if "begins" in message and not line.moves:
            line.say(f"{task.name} [{message['stage']}] {message['begins']}".strip())
    ended, status = os.waitpid(task.process, 0 if task.message.get("end") else os.WNOHANG)
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
