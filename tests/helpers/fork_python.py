"""The Python that tests start commands with: a fork of one that has loaded torch and fairseq.

``PYTHON`` takes the arguments of a Python. ``sys.executable`` is for tests of the start itself, of
processes that are killed or looked up in /proc, and of variables that Python reads at its start.
"""

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
VARIABLE = "FAIRSEQ_SPARSE_FORK_PYTHON"  # tells pytest's workers the script to run


def start_server() -> str:
    """Start a server that ends with this process; return the script that stands for a Python."""
    folder = Path(tempfile.mkdtemp(prefix="python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen(100)
    with open(folder / "log", "w") as log:
        subprocess.Popen(
            [sys.executable, HERE / "fork_server.py", str(listener.fileno())],
            **{"stdin": subprocess.PIPE, "stdout": log, "stderr": log, "cwd": "/"},
            **{"pass_fds": [listener.fileno()], "start_new_session": True},
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    client = [sys.executable, "-IS", str(HERE / "fork_client.py"), str(folder / "socket")]
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    script.chmod(0o755)
    return str(script)


PYTHON = os.environ.setdefault(VARIABLE, "") or start_server()
os.environ[VARIABLE] = PYTHON
