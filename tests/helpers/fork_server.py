"""A process that has loaded torch and fairseq, and forks for each command of ``fork_client.py``.

The command runs with the client's arguments, environment, folder and streams. What Python reads at
its start, such as the encoding, is the server's.
"""

import atexit
import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType

PRELOADED = (
    *("fairseq", "fairseq.checkpoint_utils", "fairseq.trainer", "hydra"),
    *("sacrebleu", "sacremoses", "subword_nmt.apply_bpe", "subword_nmt.learn_bpe"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("torch._dynamo", "torch.distributed.fsdp"),  # imported by the first optimizer
)


def serve(listener: socket.socket) -> list[str]:
    """Fork for each client, until stdin is closed. Returns, in a fork, the command to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            os._exit(0)
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return attend(client)
        client.close()


def attend(client: socket.socket) -> list[str]:
    """Fork the command, in which this returns; watch over it until it has ended."""
    head, streams, *_ = socket.recv_fds(client, 4, 3)
    with client.makefile("rb") as stream:
        arguments, folder, environment = json.loads(stream.read(*struct.unpack("!I", head)))
    command = os.fork()
    if command == 0:
        os.setpgid(0, 0)
        client.close()
        enter(folder, environment, streams)
        return arguments
    for stream in streams:
        os.close(stream)
    threading.Thread(target=pass_on, args=(client, command), daemon=True).start()
    _, status = os.waitpid(command, 0)
    with suppress(OSError):  # the client may be gone
        client.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
    os._exit(0)


def pass_on(client: socket.socket, command: int) -> None:
    """Pass on the client's signals, and kill the command if the client is killed."""
    while numbers := client.recv(100):
        for number in numbers:
            os.kill(command, number)
    os.killpg(command, signal.SIGKILL)


def enter(folder: str, environment: dict[str, str], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    sys.stdout.reconfigure(write_through=bool(environment.get("PYTHONUNBUFFERED")))


def run(name: str, *rest: str) -> None:
    """Run the command line of a Python: ``-m MODULE``, ``-c PROGRAM``, ``-`` or a script."""
    more = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    script = os.path.dirname(os.path.abspath(name))
    folders = [{"-m": os.getcwd(), "-c": "", "-": ""}.get(name, script), *more]
    # A new process would import these instead of what is loaded.
    stand_ins = [
        file
        for folder in folders
        for file in (*Path(folder).glob("*.py"), *Path(folder).glob("*/__init__.py"))
        if (file.parent.name if file.stem == "__init__" else file.stem) in sys.modules
    ]
    if stand_ins:
        sys.exit(f"fork_server.py: start this with sys.executable, for its own {stand_ins}")
    sys.path[:1] = folders
    sys.argv = [name, *(rest[1:] if name in ("-m", "-c") else rest)]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if name == "-m":
        runpy._run_module_as_main(rest[0])
    elif name in ("-c", "-"):
        exec(rest[0] if name == "-c" else sys.stdin.read(), vars(main))
    else:
        runpy.run_path(name, run_name="__main__")


def run_and_exit(command: list[str]) -> None:
    """Run a command, and end as Python does, without unloading the libraries, which takes long."""
    status: object = 1
    try:
        run(*command)
        status = None
    except SystemExit as end:
        status = end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    for module in PRELOADED:
        importlib.import_module(module)
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)
    gc.collect()
    gc.freeze()
    run_and_exit(serve(socket.socket(fileno=int(sys.argv[1]))))
