"""Faults of the files that a script reads or writes, and functions that cause them."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

# capset(2): two words for each set of capabilities of this thread.
_VERSION, _READ_ALL, _WRITE_ALL = 0x20080522, 1 << 2, 1 << 1


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Make the permissions of files hold for root as well."""
    if os.geteuid() != 0:
        yield
        return
    libc, header, before = ctypes.CDLL(None), _Header(_VERSION, 0), (_Sets * 2)()
    assert libc.capget(ctypes.byref(header), before) == 0
    now = (_Sets * 2).from_buffer_copy(before)
    now[0].effective &= ~(_READ_ALL | _WRITE_ALL)
    assert libc.capset(ctypes.byref(header), now) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(header), before) == 0


@contextmanager
def full_disk() -> Iterator[None]:
    """Keep files from growing, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def remove(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def lose_a_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:-1]))


def not_utf8(path: Path) -> None:
    content = path.read_bytes()
    place = content.index(b"\n") if b"\n" in content else len(content) // 2
    path.write_bytes(content[:place] + b"\xff\xfe" + content[place:])


def hide(path: Path) -> None:
    path.chmod(0)


def nul(path: Path) -> None:
    path.write_bytes(b"\0" + path.read_bytes())


def carriage_returns(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def foreign_json(path: Path) -> None:
    path.write_text("[1, 2]\n")


def many_lines(path: Path) -> None:
    path.write_bytes(b"\n" * 999)


# Faults that make any input unusable.
FATAL: dict[str, Callable[[Path], None]] = {
    "missing": remove,
    "folder": make_folder,
    "empty": truncate,
    "unreadable": hide,
}
TEXT = {"not UTF-8": not_utf8, "NUL": nul, "CR LF": carriage_returns, "cut": cut}
JSON = {"not UTF-8": not_utf8, "cut": cut, "foreign": foreign_json}
COUNTED = {"a line less": lose_a_line, "many lines": many_lines}
# Faults with which some scripts can still read a file.
HARMLESS = {"NUL", "CR LF", "cut"}


def folder_in_the_way(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def no_folder(path: Path) -> None:
    for inside in path.parent.iterdir():
        inside.rmdir() if inside.is_dir() else inside.unlink()
    path.parent.rmdir()


def file_for_folder(path: Path) -> None:
    no_folder(path)
    path.parent.write_bytes(b"in the way\n")


def read_only(path: Path) -> None:
    path.parent.chmod(0o555)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(os.devnull)


# Faults of an output file's place, and the context in which the script then runs.
OUTPUT = {
    "folder in the way": (folder_in_the_way, nullcontext),
    "no folder": (no_folder, nullcontext),
    "file for folder": (file_for_folder, nullcontext),
    "read-only": (read_only, nullcontext),
    "device": (device, nullcontext),
    "disk full": (lambda path: None, full_disk),
}


def snapshot(folder: Path) -> dict[str, object]:
    """Return the contents of a folder by path: the bytes of files, the mode of all else."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else path.lstat().st_mode
        for path in folder.rglob("*")
    }


def assert_refused(capture, named: object, main: Callable, *arguments: object) -> None:
    """Assert that a command refuses its arguments in one line that names what is wrong."""
    try:
        status = main(*arguments)
    except SystemExit as end:
        status = end.code
    printed = capture.readouterr()
    assert status in (1, 2) and not printed.out, arguments
    (line,) = [line for line in printed.err.splitlines() if "error: " in line]
    assert str(named) in line
