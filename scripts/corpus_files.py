"""The files that corpora come in, as streams: members of archives, compressed or not, line by line.

A place is FILE, ARCHIVE!MEMBER or ARCHIVE!ARCHIVE!MEMBER, where an archive is a tar or a zip, and
anything may be compressed by gzip, bzip2 or xz; the end of each name says which. Nothing is
unpacked to the paths that an archive names, and memory does not grow with the corpus.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, TextIO

BLOCK = 1 << 20
# How a name ends, what that is called, and what reads it.
COMPRESSED: dict[str, tuple[str, Callable[[IO[bytes]], IO[bytes]]]] = {
    ".gz": ("gzip", gzip.open),
    ".tgz": ("gzip", gzip.open),
    ".bz2": ("bzip2", bz2.open),
    ".xz": ("xz", lzma.open),
}


class CorpusError(Exception):
    """The corpus cannot be used as it is; the message says what to do."""


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing that appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8", newline="\n") as handle:
        yield handle
    os.replace(partial, path)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into an error that names it."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise damaged(path, error) from error
    except OSError as error:
        # That of a system call has a number; gzip and bz2 use the class for bad data.
        if error.errno is not None:
            raise
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> CorpusError:
    kind = COMPRESSED[path.suffix][0] if path.suffix in COMPRESSED else path.suffix.lstrip(".")
    return CorpusError(
        f"{path} is not a complete {kind} archive ({error}): delete it and fetch it again"
    )


def read_lines(folder: Path, place: str) -> Iterator[bytes]:
    """The lines of a place in a folder, without the line feed; only that ends a line.

    What stands in an archive behind the member is read as well, so that all of it is checked.

    Raises:
        CorpusError: there is no such file or member, or it is damaged.
    """
    name, *members = place.split("!")
    path = folder / name
    if not path.is_file():
        raise CorpusError(f"no such file: {path}")
    with damage_named(path), ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(open(path, "rb"))
        for member in members:
            opened = open_member(stream, name, member)
            try:
                stream = stack.enter_context(opened)
            except KeyError:
                raise CorpusError(f"{path}: has no file {member} (of {place})") from None
            name = member
        for line in decompressed(stream, name):
            yield line[:-1] if line.endswith(b"\n") else line


def decompressed(stream: IO[bytes], name: str) -> IO[bytes]:
    """The content of a file of that name."""
    suffix = os.path.splitext(name)[1]
    return COMPRESSED[suffix][1](stream) if suffix in COMPRESSED else stream


def open_member(archive: IO[bytes], name: str, member: str) -> AbstractContextManager[IO[bytes]]:
    """A regular file in the archive of that name, to be read once from its beginning to its end.

    Raises:
        KeyError: on entry, there is no such member.
    """
    if name.endswith(".zip"):
        return zip_member(archive, member)
    return tar_member(decompressed(archive, name), member)


@contextmanager
def tar_member(archive: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        for member in tar:
            if plain_name(member.name) == plain_name(name) and member.isfile():
                break
        else:
            exhaust(archive)
            raise KeyError(name)
        yield tar.extractfile(member)
        for _ in tar:
            pass
    exhaust(archive)


@contextmanager
def zip_member(archive: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        if not isinstance(getattr(archive, "raw", None), io.FileIO):
            # Its list of members is at its end: of one inside an archive, a copy is needed.
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(archive, copy, BLOCK)
            archive = copy
        content = stack.enter_context(zipfile.ZipFile(archive))
        found = {plain_name(entry.filename): entry for entry in content.infolist()}
        try:
            stream = content.open(found[plain_name(name)])
        except RuntimeError as error:  # a password, or a compression that Python does not have
            raise zipfile.BadZipFile(str(error)) from error
        yield stack.enter_context(stream)


def plain_name(name: str) -> str:
    return name.removeprefix("./")


def exhaust(stream: IO[bytes]) -> None:
    """Read to the end, where a compressed stream has its checksum."""
    while stream.read(BLOCK):
        pass


def decode(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines as text: UTF-8, with or without a byte order mark.

    A line that is not UTF-8 is taken for Windows' Latin-1 (cp1252); how many are, is logged.
    """
    foreign = 0
    for number, line in enumerate(lines):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            foreign += 1
            yield line.decode("cp1252", "replace")
    if foreign:
        log(f"{name}: {foreign:,} lines are not UTF-8, and were read as Latin-1")
