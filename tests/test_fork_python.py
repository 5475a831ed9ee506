"""The forking Python with which tests start commands behaves as a new process does."""

import os
import signal
import subprocess
import sys
import time

import pytest

import fork_python
from fork_python import PYTHON

PROGRAMS = {
    "arguments": "import os, sys; print(sys.argv, sys.path[0], __name__, os.getcwd())",
    "text": "import os, sys; print(os.environ['X'], 'ü', sys.stdin.read().upper())",
    "large number": "import sys; sys.exit(-1)",
    "message": "import sys; sys.exit('what went wrong')",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "interrupt": "import signal; signal.raise_signal(signal.SIGINT)",
    "at exit": "import atexit, sys; atexit.register(print, 'last'); sys.exit(3)",
    "thread": "import threading; threading.Timer(0.1, print, ['late']).start(); print('soon')",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "threads": "import torch; print(torch.get_num_threads())",
}
WAIT = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit(9))
print(os.getpid(), flush=True)
for _ in range(1000):  # a signal that comes just before a sleep is seen after it
    time.sleep(0.1)
"""


@pytest.fixture
def variables():
    return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "2", "X": "ein Ü", "PYTHONPATH": "a:b"}


@pytest.fixture
def no_ignored_interrupts():
    """A shell makes what it starts in the background ignore them, and a new process inherits it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, "-c") for name in PROGRAMS]
    + [(name, form) for name in ("arguments", "pickle") for form in ("-", "module", "script")],
)
@pytest.mark.usefixtures("no_ignored_interrupts")
def test_a_fork_does_what_a_process_does(name, form, variables, tmp_path):
    (tmp_path / "a_script.py").write_text(PROGRAMS[name])
    command = {"-c": ["-c", PROGRAMS[name]], "-": ["-"], "module": ["-m", "a_script"]}
    command = command.get(form, ["a_script.py"])
    standard_input = PROGRAMS[name] if form == "-" else "für"
    fork, process = (
        subprocess.run(
            [python, *command, "ö", "-m"],
            **{"input": standard_input.encode(), "capture_output": True, "timeout": 300},
            **{"cwd": tmp_path, "env": variables},
        )
        for python in (PYTHON, sys.executable)
    )
    assert (fork.returncode, fork.stdout) == (process.returncode, process.stdout)
    assert fork.stderr == process.stderr or name == "interrupt"  # only its traceback differs


def test_an_error_ends_a_fork_with_its_message():
    result = subprocess.run([PYTHON, "-c", "1 / 0"], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command(number):
    process = subprocess.Popen([PYTHON, "-c", WAIT], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(number)
    assert process.wait(60) == 9


def test_a_command_does_not_outlive_its_client():
    process = subprocess.Popen([PYTHON, "-c", WAIT], stdout=subprocess.PIPE)
    number = int(process.stdout.readline())
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        for _ in range(600):
            os.kill(number, 0)
            time.sleep(0.1)


def test_the_server_ends_with_the_process_that_started_it():
    program = "import os; print(open(f'/proc/{os.getppid()}/stat').read().split()[3])"
    owner = "import subprocess, sys, fork_python; "
    owner += "subprocess.run([fork_python.PYTHON, '-c', sys.argv[1]], check=True)"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(fork_python.__file__)}
    del environment[fork_python.VARIABLE]
    command = [sys.executable, "-c", owner, program]
    server = int(subprocess.run(command, env=environment, stdout=-1, check=True).stdout)
    with pytest.raises(ProcessLookupError):
        for _ in range(600):
            os.kill(server, 0)
            time.sleep(0.1)
