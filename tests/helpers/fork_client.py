"""Client of the fork server: passes on the command line of a Python, and ends as the command did.

It is run as ``python -IS fork_client.py FOLDER ARGUMENTS``. Without torch and fairseq, it starts in
a hundredth of the time that they take to load.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(folder: str, *arguments: str) -> None:
    with open(os.path.join(folder, "settings.json")) as handle:
        settings = json.load(handle)
    python = settings["python"]
    # Options of the interpreter, and an interactive one, need a Python of their own.
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-", "-c", "-m")):
        os.execv(python, [python, *arguments])
    try:
        connection = connect(folder, settings)
    except OSError:
        os.execv(python, [python, *arguments])
    signals: list[int] = []
    for number in FORWARDED:
        signal.signal(number, lambda number, _: signals.append(number))
    send_request(connection, arguments)
    for number in FORWARDED:
        signal.signal(number, lambda number, _: forward(connection, [number]))
    forward(connection, signals)
    try:
        answer = connection.recv(4)
    except ConnectionError:
        answer = b""
    if not answer:
        sys.exit(f"fork_client.py: the fork server has ended (see {folder}/log)")
    end_with(*struct.unpack("!i", answer))


def connect(folder: str, settings: dict) -> socket.socket:
    """Connect to the server of a folder; start it if there is none yet."""
    address = os.path.join(folder, "socket")
    connection = socket.socket(socket.AF_UNIX)
    with open(os.path.join(folder, "lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            start_server(folder, address, settings)
        connection.connect(address)
    return connection


def start_server(folder: str, address: str, settings: dict) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(100)
    with open(os.path.join(folder, "log"), "a") as log:
        subprocess.Popen(
            [settings["python"], settings["server"], folder, str(listener.fileno())],
            **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": "/"},
            **{"pass_fds": [listener.fileno()], "start_new_session": True},
            env=settings["environment"],
        )


def send_request(connection: socket.socket, arguments: tuple[str, ...]) -> None:
    mask = os.umask(0)
    os.umask(mask)
    request = {"arguments": arguments, "cwd": os.getcwd(), "umask": mask}
    body = json.dumps(request | {"environment": dict(os.environ)}).encode()
    socket.send_fds(connection, [struct.pack("!I", len(body))], [0, 1, 2])
    connection.sendall(body)


def forward(connection: socket.socket, signals: list[int]) -> None:
    try:
        connection.sendall(bytes(signals))
    except OSError:
        pass  # the command has ended


def end_with(status: int) -> None:
    """End with an exit code, or by a signal if it is negative."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main(*sys.argv[1:])
