"""The forking Python with which tests start commands behaves as a new process does."""

import os
import signal
import subprocess
import sys
import time

import pytest

import recipes
from fork_python import PYTHON

SHOW = "import os, sys; print(sys.argv, sys.path[0], __name__, os.getcwd(), os.environ.get('X'))"
PROGRAMS = {
    "arguments": SHOW,
    "text": "import sys; print('ü', sys.stdout.encoding, sys.stdin.read().upper())",
    "number": "import sys; sys.exit(7)",
    "large number": "import sys; sys.exit(-1)",
    "message": "import sys; sys.exit('what went wrong')",
    "error": "def divide(): return 1 / 0\ndivide()",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "at exit": "import atexit, sys; atexit.register(print, 'last'); sys.exit(3)",
    "thread": "import threading; threading.Timer(0.1, print, ['late']).start(); print('soon')",
    "streams": "import os, sys; sys.stdout.write('b'); sys.stderr.write('a'); os.write(1, b'c')",
    "modules": "import sys; print({'torch', 'fairseq', 'fairseq_sparse'} & {*sys.modules})",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "folder": "import tempfile; print(tempfile.gettempdir())",
}
# Programs for which buffers and encodings matter.
PRINTING = ("arguments", "text", "message", "at exit", "thread", "streams")


def results(*arguments, **options):
    """Return exit code, stdout and stderr of a command, by the forking Python and a new one."""
    options = {"capture_output": True, "timeout": 300, **options}
    both = [subprocess.run([python, *arguments], **options) for python in (PYTHON, sys.executable)]
    return [(result.returncode, result.stdout, result.stderr) for result in both]


@pytest.fixture
def variables(tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "X": "ein Ü", "TMPDIR": str(tmp_path)}


@pytest.mark.parametrize(
    ("name", "unbuffered"), [(x, False) for x in PROGRAMS] + [(x, True) for x in PRINTING]
)
def test_a_fork_does_what_a_process_does(name, unbuffered, variables, tmp_path):
    if unbuffered:
        variables |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "latin-1"}
    (tmp_path / "a module.py").write_text(PROGRAMS[name])
    (tmp_path / "module.py").write_text(PROGRAMS[name])
    options = {"env": variables, "cwd": tmp_path}
    if not unbuffered:
        options["input"] = "für".encode()
    for command in (["-c", PROGRAMS[name], "-m", "b"], ["a module.py", "ö"], ["-m", "module", "c"]):
        fork, process = results(*command, **options)
        assert fork == process


def test_a_program_may_come_by_the_standard_input(variables):
    fork, process = results("-", "a b", env=variables, input=SHOW.encode())
    assert fork == process and b"a b" in fork[1]


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["-W", "error", "-c", "import warnings; warnings.warn('x')"], {}),
        (["-c", "import sys; print(sys.flags.hash_randomization)"], {"PYTHONHASHSEED": "0"}),
        (["-c", "import torch; print(torch.get_num_threads())"], {"OMP_NUM_THREADS": "2"}),
        (["-c", "import numpy; print(numpy.__file__)"], {"PYTHONPATH": "."}),
        (["-c", "pass"], {"PYTHONPATH": "."}),
        (["numpy.py"], {}),
    ],
    ids=["option", "hash seed", "threads", "numpy of its own", "sitecustomize", "script"],
)
def test_what_a_fork_cannot_give_comes_from_a_process(arguments, more, variables, tmp_path):
    (tmp_path / "numpy.py").write_text("print('no numpy')")
    (tmp_path / "sitecustomize.py").write_text("print('first of all')")
    fork, process = results(*arguments, env=variables | more, cwd=tmp_path)
    assert fork == process


def test_helpers_on_the_path_do_not_hinder_a_fork(variables):
    program = "import sys; print('forked_command' in sys.modules)"
    helpers = os.path.dirname(recipes.__file__)
    fork, _ = results("-c", program, env=variables | {"PYTHONPATH": helpers})
    assert fork[1] == b"True\n"


def test_commands_are_forks_whatever_the_other_tests_set():
    """The tests of GPU kernels set a Triton variable for the rest of the suite."""
    program = "import sys; print('forked_command' in sys.modules)"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    fork, process = results("-c", program, env=environment)
    assert (fork[1], process[1]) == (b"True\n", b"False\n")


WARN = (
    "import sys, warnings\n"
    "import {module}\n"
    "print('forked_command' in sys.modules, file=sys.stderr)\n"
    "print(sys.warnoptions)\n"
    "for category in (UserWarning, DeprecationWarning, FutureWarning):\n"
    "    try: warnings.warn('a warning', category)\n"
    "    except Warning as error: print(repr(error))\n"
    "with warnings.catch_warnings(record=True) as caught:\n"
    "    warnings.warn_explicit('b', UserWarning, 'file', 1, module='hydra.compose')\n"
    "    warnings.warn_explicit('b', UserWarning, 'file', 1, module='hydra.compose.x')\n"
    "print(len(caught))\n"
)


@pytest.mark.slow_except("ignored-sys", "errors-sys")
@pytest.mark.parametrize("module", ["sys", "fairseq"])
@pytest.mark.parametrize(
    ("options", "forked"),
    [
        ("ignore::UserWarning:hydra.compose,ignore::FutureWarning,ignore:a:nonsense", True),
        ("ignore::UserWarning:hydra.compose,error::UserWarning:__main__", False),
    ],
    ids=["ignored", "errors"],
)
def test_warnings_that_are_not_wanted_do_not_come(options, forked, module, variables):
    """Recipes ignore some. Other filters need a new process: a loaded library no longer warns."""
    program = WARN.format(module=module)
    fork, process = results("-c", program, env=variables | {"PYTHONWARNINGS": options})
    assert fork[:2] == process[:2]
    told = [result[2].decode().splitlines() for result in (fork, process)]
    assert str(forked) in told[0] and "False" in told[1]
    told[0].remove(str(forked)), told[1].remove("False")
    assert told[0] == told[1]


def test_the_commands_of_the_recipes_are_forks():
    """That holds with all variables that the recipes set."""
    program = "import sys; print('forked_command' in sys.modules)"
    script = f'source \'{recipes.EXAMPLES}/stages/common.sh\'; "$PYTHON" -c "{program}"'
    command, environment = ["bash", "-c", script], recipes.environment()
    assert subprocess.check_output(command, env=environment, text=True) == "True\n"


@pytest.mark.slow
def test_fairseq_is_loaded_when_it_is_imported(variables):
    """It then adds its log handler, unless there is one, and the package registers itself."""
    program = (
        "import logging, sys\n"
        "{first}\n"
        "import fairseq_sparse\n"
        "assert 'fairseq' not in sys.modules\n"
        "import fairseq.data\n"
        "from fairseq.models import ARCH_MODEL_REGISTRY\n"
        "print('lstm_sparse' in ARCH_MODEL_REGISTRY, 'torch' in sys.modules)\n"
        "print(logging.root.level, [handler.stream.name for handler in logging.root.handlers])\n"
        "print(fairseq.__spec__.name, fairseq.__file__, sorted(vars(fairseq))[:5])\n"
    )
    first = "logging.basicConfig(stream=sys.stdout, level=logging.ERROR)"
    plain, process = results("-c", program.format(first=""), env=variables)
    assert plain[:2] == process[:2] and plain[1].startswith(b"True True\n")
    (own, *_), _ = results("-c", program.format(first=first), env=variables)
    assert own == 0


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


def test_a_command_may_end_before_its_client_is_ready_for_signals(variables):
    """The server has then closed the connection: each step of the client is delayed for that."""
    client = str(recipes.EXAMPLES.parent / "tests" / "helpers" / "fork_client.py")
    slow = f"""import runpy, signal, sys, time
set_handler = signal.signal
signal.signal = lambda *arguments: (time.sleep(0.2), set_handler(*arguments))[1]
sys.argv = [{client!r}, {os.path.dirname(PYTHON)!r}, "-c", "raise SystemExit(7)"]
runpy.run_path({client!r}, run_name="__main__")
"""
    subprocess.run([PYTHON, "-c", ""], check=True)  # starts the server
    result = subprocess.run([sys.executable, "-c", slow], env=variables, capture_output=True)
    assert (result.returncode, result.stderr) == (7, b"")


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
