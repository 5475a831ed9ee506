"""Running the command line of a Python in a fork of one that has loaded the libraries."""

from __future__ import annotations

import atexit
import builtins
import codecs
import importlib
import io
import os
import runpy
import signal
import sys
import tempfile
import threading
import warnings
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

# Prefixes of variables read at the start or on import: a fork keeps the server's values.
FIXED = ("PYTHON", "OMP_", "MKL_", "KMP_", "LD_", "TORCH", "PYTORCH", "CUDA_", "MPL")
FIXED += ("TRITON_INTERPRET",)
HONOURED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE")
HONOURED += ("PYTHON", "PYTHON_EXEC")  # used by the recipes and torchrun

server: dict = {}


def remember(environment: dict[str, str], own_warnings: int) -> None:
    """Record what a command must share with the server to run in a fork of it.

    Args:
        environment: the variables with which the server was started.
        own_warnings: number of the warning filters that are the interpreter's own.
    """
    # A command may have the values from before or after the libraries set theirs.
    server["fixed"] = fixed(environment), fixed(os.environ)
    server["path"] = list(sys.path)
    server["warnings"] = own_warnings
    server["modules"] = {name.partition(".")[0] for name in sys.modules} | {"torch", "fairseq"}
    server["modules"] |= {"sitecustomize", "usercustomize"}
    # Modules of this folder are no libraries: a command may have the folder on its path.
    server["modules"] -= {"forked_command", "shelf"}


def fixed(environment: dict[str, str]) -> dict[str, str]:
    values = {name: value for name, value in environment.items() if name.startswith(FIXED)}
    if all(option.startswith("ignore:") for option in warning_options(environment)):
        values.pop("PYTHONWARNINGS", None)
    for name in HONOURED:
        values.pop(name, None)
    names = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next(filter(None, names), "C").upper()
    # Python uses UTF-8 in the locale C too.
    is_utf8 = locale in ("C", "POSIX") or locale.endswith(("UTF-8", "UTF8"))
    return values | {"locale": "UTF-8" if is_utf8 else locale}


def warning_options(environment: dict[str, str]) -> list[str]:
    return [option for option in environment.get("PYTHONWARNINGS", "").split(",") if option]


def changed_variables(environment: dict[str, str]) -> list[str]:
    """Return the variables that differ from the server's and can no longer be changed in a fork."""
    found, (before, after) = fixed(environment), server["fixed"]
    names = before.keys() | after.keys() | found.keys()
    return [x for x in names if found.get(x) not in (before.get(x), after.get(x))]


def run_and_exit(request: dict, streams: list[int]) -> None:
    """Run a command as a process of its own would; never return."""
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    arguments, environment = request["arguments"], request["environment"]
    first = folder_of(arguments[0])
    more = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    obstacles = [*changed_variables(environment), *stand_ins([first, *more])]
    if obstacles:
        print("a process of its own:", *obstacles, *arguments[:2], file=sys.stderr, flush=True)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if obstacles:
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [first, *more, *server["path"]]
    importlib.invalidate_caches()
    open_streams()
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    tempfile.tempdir = None
    ignore_warnings(warning_options(environment))
    sys.modules["numpy"].random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    finish(status_of(arguments))


def folder_of(argument: str) -> str:
    """Return the entry that Python puts in front of ``sys.path``."""
    if argument in ("-", "-c"):
        return ""
    return os.getcwd() if argument == "-m" else str(Path(argument).resolve().parent)


def stand_ins(folders: list[str]) -> list[str]:
    """Return the files in the folders that a new process would import instead of loaded modules."""
    return [
        path
        for folder in folders
        if os.path.isdir(folder or ".")
        for module in server["modules"]
        for file in (f"{module}.py", f"{module}/__init__.py")
        if os.path.exists(path := os.path.join(folder, file))
    ]


def ignore_warnings(options: list[str]) -> None:
    """Put the filters in front of the interpreter's own, and behind those of the libraries."""
    sys.warnoptions[:] = options
    libraries = warnings.filters[: -server["warnings"]]
    del warnings.filters[: -server["warnings"]]
    warnings._processoptions(options)
    warnings.filters[:0] = libraries
    warnings._filters_mutated()


def open_streams() -> None:
    """Open the standard streams as the interpreter does."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    encoding = codecs.lookup(encoding or sys.__stdout__.encoding).name
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        raw = open(number, "rb" if number == 0 else "wb", 0, closefd=False)
        raw.name = f"<{name}>"
        buffer: io.IOBase = io.BufferedReader(raw) if number == 0 else raw
        if number and not unbuffered:
            buffer = io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding,
            errors="backslashreplace" if number == 2 else errors or sys.__stdout__.errors,
            newline="\n",
            line_buffering=number == 2 or raw.isatty(),
            write_through=bool(number) and unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def status_of(arguments: list[str]) -> int:
    """Run the command line; return its exit code, negative for a signal."""
    try:
        run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next.tb_next  # without this file
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def run(arguments: list[str]) -> None:
    name, *rest = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__ = builtins
    if name == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])
    elif name == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif name == "-":
        sys.argv = ["-", *rest]
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec"), vars(main))
    else:
        sys.argv = [name, *rest]
        main.__file__, main.__cached__ = os.path.abspath(name), None
        main.__loader__ = SourceFileLoader("__main__", main.__file__)
        source = Path(name).read_bytes()
        exec(compile(source, main.__file__, "exec"), vars(main))


def finish(status: int) -> None:
    """End as the interpreter does: threads, functions at exit, streams."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                status = status or 120
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)
