"""The forking Python with which tests start commands behaves as a new process does."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fork_python import PYTHON

SHOW = "import os, sys; print(sys.argv, sys.path[0], __name__, os.getcwd(), os.environ.get('X'))"
PROGRAMS = {
    "arguments": SHOW,
    "text": "import sys; print('ü', sys.stdout.encoding, sys.stdin.read().upper())",
    "large number": "import sys; sys.exit(-1)",
    "message": "import sys; sys.exit('what went wrong')",
    "error": "def divide(): return 1 / 0\ndivide()",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "at exit": "import atexit, sys; atexit.register(print, 'last'); sys.exit(3)",
    "thread": "import threading; threading.Timer(0.1, print, ['late']).start(); print('soon')",
    "streams": "import os, sys; sys.stdout.write('b'); sys.stderr.write('a'); os.write(1, b'c')",
    "modules": "import sys; print({'torch', 'fairseq', 'fairseq_sparse'} & {*sys.modules})",
}
# Programs for which buffers and encodings matter.
PRINTING = ("text", "streams")
PICKLE = "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))"


def results(*arguments, **options):
    """Return exit code, stdout and stderr of a command, by the forking Python and a new one."""
    options = {"capture_output": True, "timeout": 300, **options}
    both = [subprocess.run([python, *arguments], **options) for python in (PYTHON, sys.executable)]
    return [(result.returncode, result.stdout, result.stderr) for result in both]


@pytest.fixture
def variables(tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "X": "ein Ü", "TMPDIR": str(tmp_path)}


def test_a_fork_does_what_a_process_does(variables, tmp_path):
    options = {"cwd": tmp_path, "input": "für".encode()}
    for name, program in PROGRAMS.items():
        fork, process = results("-c", program, "-m", "b", env=variables, **options)
        assert fork == process, name
    variables |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "latin-1"}
    for name in PRINTING:
        fork, process = results("-c", PROGRAMS[name], env=variables, **options)
        assert fork == process, name


def test_a_fork_runs_scripts_and_modules(variables, tmp_path):
    (tmp_path / "a script.py").write_text(f"{SHOW}\n{PICKLE}")
    (tmp_path / "module.py").write_text(SHOW)
    for command in (["a script.py", "ö"], ["-m", "module", "c"]):
        fork, process = results(*command, env=variables, cwd=tmp_path)
        assert fork == process and fork[0] == 0


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["-W", "error", "-c", "import warnings; warnings.warn('x')"], {}),
        (["-c", "import torch; print(torch.get_num_threads())"], {"OMP_NUM_THREADS": "2"}),
        (["-c", "import numpy; print(numpy.__file__)"], {"PYTHONPATH": "."}),
    ],
    ids=["option", "threads", "numpy of its own"],
)
def test_what_a_fork_cannot_give_comes_from_a_process(arguments, more, variables, tmp_path):
    (tmp_path / "numpy.py").write_text("print('no numpy')")
    fork, process = results(*arguments, env=variables | more, cwd=tmp_path)
    assert fork == process


def test_commands_are_forks_whatever_the_other_tests_set():
    """The tests of GPU kernels set a Triton variable for the rest of the suite."""
    program = "import sys; print('forked_command' in sys.modules)"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    fork, process = results("-c", program, env=environment)
    assert (fork[1], process[1]) == (b"True\n", b"False\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command(number, variables):
    program = (
        "import signal, sys, time\n"
        "def end(*_): sys.exit(9)\n"
        f"signal.signal({int(number)}, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    process = subprocess.Popen([PYTHON, "-c", program], stdout=subprocess.PIPE, env=variables)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.wait(60) == 9


def test_a_command_does_not_outlive_its_client(variables):
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    process = subprocess.Popen([PYTHON, "-c", program], stdout=subprocess.PIPE, env=variables)
    number = int(process.stdout.readline())
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        for _ in range(600):
            os.kill(number, 0)
            time.sleep(0.1)
