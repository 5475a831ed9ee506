"""Processes: commands in forks of a Python that has loaded fairseq, locks, and ends of whole trees.

The process that does the work of a run, its *worker*, starts the commands. It is the leader of a
process group, and on Linux it adopts what loses its parent, so that it finds all descendants.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import glob
import importlib
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Optional

from fairseq_sparse.errors import RecipeError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 10  # seconds from SIGTERM to SIGKILL; torchrun needs some of them to end its workers
# Loaded once, before the first program of these packages is started.
_PACKAGES = ("fairseq", "fairseq_cli", "fairseq_sparse", "torch")
_LOADED = ("fairseq", "fairseq.checkpoint_utils", "fairseq.trainer", "hydra", "torch._dynamo")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_libc = ctypes.CDLL(None)


class Stopped(BaseException):
    """Raised in a worker that must end its work."""


def become_worker(environment: dict[str, str]) -> None:
    """Make this fork a worker, with these variables and without standard streams.

    From here on, SIGTERM raises :class:`Stopped`, and so does the death of the parent, on Linux.
    """
    parent = os.getppid()
    os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the parent alone
    atexit._clear()  # what the parent registered is for the parent to do
    for number in ENDING:
        signal.signal(number, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    _end_with(parent)
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ.update({"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", **environment})
    path = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(path)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    # The second names keep the files open if a program replaces sys.stdout.
    text = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, **text)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, **text)
    logging.getLogger().handlers.clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "fairseq_cli"]:
        del sys.modules[name]  # a command of fairseq sets up its log where it is imported
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):  # fairseq-sparse shows only warnings of fairseq
            logger.setLevel(logging.NOTSET)


def _stop(number: int, _: object) -> None:
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def _end_with(parent: int) -> None:
    """Let this process get SIGTERM when its parent ends, on Linux."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def start(
    argv: Sequence[str],
    stdin: Optional[int] = None,
    stdout: Optional[int] = None,
    stderr: Optional[int] = None,
) -> int:
    """Start a program and return its process.

    Console scripts of this Python's packages run in a fork; other programs are executed. The
    descriptors stay open here.
    """
    program = _console_script(argv[0])
    worker = os.getpid()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        _end_with(worker)
        for number, descriptor in enumerate((stdin, stdout, stderr)):
            if descriptor is not None:
                os.dup2(descriptor, number)
        if program is None:
            _execute(argv)
        sys.stdout.reconfigure(line_buffering=stdout is None)
        sys.argv = list(argv)
        status = _run(program)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _execute(argv: Sequence[str]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    try:
        os.execvp(sys.executable if argv[0] in ("python", "python3") else argv[0], argv)
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        os._exit(127)


def _console_script(name: str) -> Optional[Callable[[], object]]:
    """Return the function of a console script of this Python's packages, or None."""
    from importlib.metadata import entry_points  # takes long to load

    script = next(iter(entry_points(group="console_scripts", name=name)), None)
    if script is not None and re.split("[.:]", script.value)[0] in _PACKAGES:
        load_fairseq()
    return script and (lambda: script.load()())


def load_fairseq() -> None:
    """Import fairseq and what its commands need, once for all forks of this process."""
    # Asking the driver for GPUs would make CUDA unusable in forks; asking NVML does not.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    logging.disable(logging.INFO)  # what fairseq says while it loads
    for module in _LOADED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise RecipeError(f"{module} cannot be loaded ({error}); install fairseq") from error
    logging.disable(logging.NOTSET)
    logging.getLogger().handlers.clear()  # fairseq's commands set up their own
    logging.getLogger().setLevel(logging.WARNING)
    # fairseq uses deprecated parts of hydra, which warns five times per command.
    hydra = rf"hydra\.|{re.escape(__name__)}$"  # some warnings name the caller of the program
    warnings.filterwarnings("ignore", category=UserWarning, module=hydra)
    gc.freeze()  # otherwise each fork's collection of garbage copies all pages


def _run(program: Callable[[], object]) -> int:
    """Run a Python program in this fork as a new process would, and return its exit status."""
    sys.modules["__main__"] = ModuleType("__main__")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # otherwise all forks would draw the same numbers
    if "torch" in sys.modules and "OMP_NUM_THREADS" in os.environ:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if "MALLOC_MMAP_MAX_" in os.environ and hasattr(_libc, "mallopt"):
        # glibc reads these variables at the start of a process; -1: memory is never given back.
        _libc.mallopt(_M_MMAP_MAX, int(os.environ["MALLOC_MMAP_MAX_"]))
        _libc.mallopt(_M_TRIM_THRESHOLD, -1)
    status: object = 1
    try:
        status = program()
    except SystemExit as end:
        status = end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._exit_function()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    return (status or 0) & 0xFF


def wait(process: int) -> int:
    """Return the exit status of a command, negative for a signal, when it has ended."""
    seconds = 0.002
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(seconds)  # a blocked waitpid could miss a signal that comes just before
        seconds = min(2 * seconds, 0.1)


def end_descendants() -> None:
    """End all processes that this worker and its commands have started, and wait for their ends."""
    asked: set[int] = set()
    deadline = time.monotonic() + GRACE
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        descendants = _descendants()
        if not descendants:
            return
        late = time.monotonic() > deadline
        for process in descendants if late else descendants - asked:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        asked |= descendants
        time.sleep(0.01)


def _descendants() -> set[int]:
    """Return the processes below this one, and the others of its group."""
    own, listed = os.getpid(), _all_processes()
    parents = {process: parent for process, parent, _ in listed}
    found = {process for process, _, group in listed if group == own}
    for process, above in parents.items():
        while above in parents and above != own:
            above = parents[above]
        if above == own:
            found.add(process)
    return found - {own}


def _all_processes() -> list[tuple[int, int, int]]:
    """Return process, parent and group of all processes that have not ended."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with suppress(OSError):
            number, rest = Path(path).read_text(errors="replace").split(" (", 1)
            state, parent, group = rest.rpartition(") ")[2].split()[:3]
            if state not in "ZX":
                found.append((int(number), int(parent), int(group)))
    return found


def lock(folder: Path, say: Callable[[str], None]) -> int:
    """Wait until nothing works in a folder, then keep others out until the result is closed.

    Commands inherit the descriptor, so the folder stays locked while one of them works.

    Raises:
        OSError: the folder cannot be written.
    """
    path, said = folder / ".lock", False
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    os.set_inheritable(descriptor, True)
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if not said:
            say(f"waiting for the processes that work in {folder} ({_holders(descriptor)})")
        said = True
        time.sleep(0.1)


def _holders(descriptor: int) -> str:
    """Return the numbers of the processes that hold a lock, as far as /proc has them."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                if "FLOCK" in Path(path.replace("/fd/", "/fdinfo/")).read_text():
                    found.add(int(path.split("/")[2]))
    return " ".join(map(str, sorted(found)))
