"""Reading text and JSON with messages that name the file, and writing files whole or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_BLOCK = 1 << 20  # bytes
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read_text(path: Path) -> str:
    """Return the text of a file without a byte order mark, with its line endings unchanged.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not in UTF-8.
    """
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not in UTF-8; convert the file") from error


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file; they end with LF or CRLF, and with nothing else.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not in UTF-8, or is not text.
    """
    return split_lines(path, read_text(path))


def split_lines(path: Path, text: str) -> list[str]:
    """Return the lines of the text of a file, as :func:`lines_of` does.

    Raises:
        ValueError: it has a NUL character; the message names the file and the line.
    """
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path}, line {number}: has a NUL character: not a text file")
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not contain a JSON object.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: too many brackets
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object: is it the right file?")
    return content


@contextmanager
def replacing(path: Path, binary: bool = False) -> Iterator[IO]:
    """Open a file for writing that replaces ``path`` once it is complete.

    It is a new file in the same folder, so that several processes can write ``path`` at once: the
    last one wins. If writing fails, the new file is removed, and ``path`` is unchanged. What a
    killed process has left is removed by the next one that writes ``path``.
    """
    partial, descriptor = _new_partial(path)
    try:
        text = {} if binary else {"encoding": "utf-8", "newline": "\n"}
        mode = "wb" if binary else "w"
        with open(partial, mode, opener=lambda *_: descriptor, **text) as handle:
            yield handle
            handle.flush()
            os.replace(partial, path)  # while it is locked
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.errno in _FULL:
            remedy = f"{os.strerror(error.errno)}; make room, or choose another folder"
            raise OSError(error.errno, remedy, str(path)) from error
        raise


def _new_partial(path: Path) -> tuple[Path, int]:
    """Make a file beside ``path`` under a new name, locked until it is closed."""
    stem = path.name[:50]  # a name has at most 255 bytes
    pattern = re.compile(re.escape(stem) + r"\.[0-9a-f]{8}\.partial")
    for name in filter(pattern.fullmatch, os.listdir(path.parent)):
        _remove_abandoned(path.with_name(name))
    while True:
        partial = path.with_name(f"{stem}.{secrets.token_hex(4)}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if partial.exists():  # nobody took it for abandoned before it was locked
            return partial, descriptor
        os.close(descriptor)


def _remove_abandoned(partial: Path) -> None:
    """Remove a file of :func:`replacing` whose writer has ended; a link stays."""
    with suppress(OSError):
        descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file that replaces ``path`` once it is complete."""
    with replacing(path) as handle:
        handle.write(text)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file that replaces ``path`` once it is complete."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of a file, or of several one after the other, in hexadecimal digits."""
    return digest_of("sha256", *paths)


def digest_of(algorithm: str, *paths: Path) -> str:
    """Return what :func:`sha256_of` does, by another of hashlib's algorithms."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for path in paths:
        with open(path, "rb") as handle:
            while block := handle.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
