"""A process that has loaded torch and fairseq, and forks for each command that a test starts.

Instead of a Python, a test, or a recipe that it runs, starts the script ``python`` in the server's
folder. The command runs in a fork, with the arguments, environment, folder and streams that it was
given, and ends as in a process of its own. The fork loads this package and its scripts itself;
torch and fairseq are hidden from it until it imports them (``shelf.py``).
"""

import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import forked_command
from shelf import Shelf

PRELOADED = (
    *("numpy", "sacrebleu", "sacremoses", "subword_nmt.apply_bpe", "subword_nmt.learn_bpe"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("matplotlib.font_manager", "multiprocessing.pool"),
    *("torch._dynamo", "torch.distributed.fsdp"),  # imported by the first optimizer
)


class Server:
    """A server that runs the commands of the clients that connect to ``listener``."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.commands: dict[int, socket.socket] = {}  # process number -> its client
        self.wake_up, self.woken = socket.socketpair()
        for end in (self.wake_up, self.woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.woken.fileno())
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, lambda _: self.accept())
        self.selector.register(self.wake_up, selectors.EVENT_READ, lambda _: self.reap())

    def step(self) -> None:
        """Handle the events that have come, waiting for about a second at most."""
        for key, _ in self.selector.select(1):
            key.data(key.fileobj)

    def accept(self) -> None:
        client, _ = self.listener.accept()
        request, streams = receive(client)
        pid = os.fork() if request else None
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            ends = (self.listener, self.wake_up, self.woken, client, *self.commands.values())
            for end in ends:
                end.close()
            os.setpgid(0, 0)
            forked_command.run_and_exit(request, streams)
        for stream in streams:
            os.close(stream)
        if pid is None:
            client.close()
            return
        try:
            os.setpgid(pid, pid)  # the child does the same: either may be first
        except OSError:
            pass
        self.commands[pid] = client
        self.selector.register(client, selectors.EVENT_READ, lambda _: self.pass_on(pid))

    def pass_on(self, pid: int) -> None:
        """Pass on a client's signals to its command; kill the command if the client was killed."""
        client = self.commands[pid]
        try:
            numbers = client.recv(100)
        except OSError:
            numbers = b""
        if not numbers:
            self.selector.unregister(client)
        try:
            for number in numbers:
                os.kill(pid, number)
            if not numbers:
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def reap(self) -> None:
        """Send the exit codes of ended commands to their clients."""
        self.wake_up.recv(4096)
        for pid, status in ended():
            client = self.commands.pop(pid)
            if client in self.selector.get_map():
                self.selector.unregister(client)
            try:
                client.sendall(struct.pack("!i", status))
            except OSError:
                pass  # the client was killed
            client.close()

    def stop(self) -> None:
        for pid in self.commands:
            os.killpg(pid, signal.SIGKILL)


def receive(client: socket.socket) -> tuple[dict | None, list[int]]:
    """Return a client's request, or None if it has gone, and the streams that came with it."""
    streams: list[int] = []
    try:
        head, streams, *_ = socket.recv_fds(client, 4, 3)
        (size,) = struct.unpack("!I", head)
        with client.makefile("rb") as stream:
            return json.loads(stream.read(size)), streams
    except (OSError, struct.error, ValueError):
        return None, streams


def ended() -> Iterator[tuple[int, int]]:
    """Yield the process number and the exit code of each command that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main(folder: Path, descriptor: int) -> None:
    """Serve until the folder, or the process that made it, is gone."""
    owner = json.loads((folder / "settings.json").read_text())["owner"]
    del sys.path[0]  # this script's folder
    environment, own_warnings = dict(os.environ), len(warnings.filters)
    shelves = [Shelf("torch"), Shelf("fairseq", needs=("torch",))]
    for name in PRELOADED:
        importlib.import_module(name)
    # fairseq passes every flag to hydra's parser, which is slow until it has parsed some.
    parser = importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser
    parser.create().parse_overrides(["a.b=1", "a.b=-0.5", "a.b=null", "a.b='c d'", "a.b=[1,2]"])
    for shelf in shelves:
        shelf.hide()
    forked_command.remember(environment, own_warnings)
    gc.collect()
    gc.freeze()
    server = Server(socket.socket(fileno=descriptor))
    while (folder / "settings.json").exists() and is_alive(owner):
        server.step()
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
