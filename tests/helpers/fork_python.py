"""The Python that tests start commands with: a fork of one that has loaded torch and fairseq.

``PYTHON`` takes the arguments of a Python. ``sys.executable`` is for tests of the start itself, of
processes that are killed from outside, and of those that are looked up in /proc.
"""

import atexit
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = "FAIRSEQ_SPARSE_FORK_PYTHON"  # tells pytest's workers the folder of the server


def make_folder() -> str:
    """Make the folder of a server. Its first command starts it, and it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="python-"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Variables that each fork applies itself.
    for name in ("PATH", "UNBUFFERED", "IOENCODING", "DONTWRITEBYTECODE", "WARNINGS"):
        environment.pop(f"PYTHON{name}", None)
    settings = {"python": sys.executable, "server": str(HERE / "fork_server.py")}
    settings |= {"environment": environment, "owner": os.getpid()}
    (folder / "settings.json").write_text(json.dumps(settings))
    command = shlex.join([sys.executable, "-IS", str(HERE / "fork_client.py"), str(folder)])
    # The tests of GPU kernels set this variable for all of pytest. A fork cannot change its value,
    # so that every command would need a new process.
    script = f'#!/bin/sh\nunset TRITON_INTERPRET\nexec {command} "$@"\n'
    (folder / "python").write_text(script)
    (folder / "python").chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


if FOLDER not in os.environ:
    os.environ[FOLDER] = make_folder()
PYTHON = os.path.join(os.environ[FOLDER], "python")
