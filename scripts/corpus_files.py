"""Files of corpora, read as streams of lines, from archives and compressed files, too.

A place is FILE or ARCHIVE!MEMBER, where an archive is a tar or a zip, and anything may be
compressed by gzip, bzip2 or xz, according to the name's suffix. Nothing is unpacked
to the paths that an archive names, and memory does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import os
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, TextIO

from command_line import replacing
from corpus_workers import WorkerLost
from fairseq_sparse.errors import AnalysisError

BLOCK = 1 << 20
# A file without line feeds, which is no text, would fill the memory.
LONGEST_LINE = 1 << 24
# By suffix: the name of the compression, and the function that opens it.
COMPRESSED: dict[str, tuple[str, Callable[[IO[bytes]], IO[bytes]]]] = {
    ".gz": ("gzip", gzip.open),
    ".tgz": ("gzip", gzip.open),
    ".bz2": ("bzip2", bz2.open),
    ".xz": ("xz", lzma.open),
}


class CorpusError(AnalysisError):
    """Error that makes a corpus unusable; the message says what to do."""


class DamagedFile(CorpusError):
    """A file that is incomplete, or not of the type in its name."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{what}: delete it and fetch it again")
        self.path, self.what = path, what

    def set_aside(self) -> str:
        """Rename the file, so that the next run fetches it again; return a message about it."""
        aside = self.path.with_name(self.path.name + ".damaged")
        os.replace(self.path, aside)
        return f"{self.what}: it is now called {aside.name}, and the same command fetches it again"


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing that appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as handle:
        yield handle


class ParallelFiles:
    """Text files that are written together, and appear under their names when all are complete.

    ``save`` records the progress. After a kill, writing continues from there, with the recorded
    ``counts``; after a CorpusError in the ``with`` block, it starts from the beginning.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.partials = [path.with_name(path.name + ".partial") for path in paths]
        self.note = paths[0].with_name(paths[0].name + ".progress")
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> ParallelFiles:
        sizes = [0] * len(self.paths)
        if self.note.is_file() and all(partial.is_file() for partial in self.partials):
            sizes, counts = json.loads(self.note.read_text())
            self.counts.update(counts)
        else:  # sizes of files that are gone must not be taken for those of new ones
            self.note.unlink(missing_ok=True)
        self.paths[0].parent.mkdir(parents=True, exist_ok=True)
        self.handles = []
        for partial, size in zip(self.partials, sizes, strict=True):
            handle = open(partial, "ab", opener=_open_no_link)
            handle.truncate(size)
            self.handles.append(handle)
        return self

    def write(self, lines: Iterable[str], first: int = 0) -> None:
        """Add a line to each file, beginning with file number ``first``."""
        for handle, line in zip(self.handles[first:], lines, strict=False):
            handle.write(line.encode() + b"\n")

    def save(self) -> None:
        for handle in self.handles:
            handle.flush()
            os.fsync(handle.fileno())
        with open_atomically(self.note) as note:
            json.dump([[handle.tell() for handle in self.handles], self.counts], note)

    def __exit__(self, kind: type | None, error: object, trace: object) -> None:
        for handle in self.handles:
            handle.close()
        if kind is None:
            for partial, path in zip(self.partials, self.paths, strict=True):
                os.replace(partial, path)
        if kind is None or issubclass(kind, CorpusError):
            self.note.unlink(missing_ok=True)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def name_damage(path: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into an error that names it."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise damaged(path, error) from error
    except OSError as error:
        # Errors of system calls have a number; gzip and bz2 raise OSError without one for bad data.
        if error.errno is not None:
            raise
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DamagedFile:
    kind = COMPRESSED[path.suffix][0] if path.suffix in COMPRESSED else path.suffix.lstrip(".")
    return DamagedFile(path, f"{path} is not a complete {kind} archive ({error})")


def add_fetched(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fetched",
        action="store_true",
        help="the raw files can be fetched again: give a damaged one another name",
    )


def run(program: str, work: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Do the work and return the exit status; log errors in one line.

    A damaged file is set aside with ``--fetched``.
    """
    try:
        work(args)
    except DamagedFile as error:
        log(f"{program}: {error.set_aside() if args.fetched else error}")
    except (CorpusError, WorkerLost, OSError) as error:
        log(f"{program}: {error}")
    else:
        return 0
    return 1


def read_lines(folder: Path, place: str) -> Iterator[bytes]:
    """Read the lines of a place in a folder, without the line feed, which alone ends a line.

    The rest of the archive behind the member is read as well, so that all of it is checked.

    Raises:
        CorpusError: there is no such file or member, it is damaged, or a line is too long.
    """
    name, _, member = place.partition("!")
    path = folder / name
    if not path.is_file():
        raise CorpusError(f"no such file: {path}")
    with name_damage(path), ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(open(path, "rb"))
        if member:
            try:
                stream = stack.enter_context(open_member(stream, name, member))
            except KeyError:
                raise CorpusError(f"{path}: has no file {member}") from None
            name = member
        text = decompressed(stream, name)
        lines = iter(lambda: text.readline(LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                raise CorpusError(
                    f"{folder / place}, line {number}: has more than {LONGEST_LINE >> 20} MiB; a "
                    "corpus has one sentence per line"
                )
            yield line[:-1] if line.endswith(b"\n") else line


def decompressed(stream: IO[bytes], name: str) -> IO[bytes]:
    """Return the stream, decompressed if the file's name says that it is compressed."""
    suffix = os.path.splitext(name)[1]
    return COMPRESSED[suffix][1](stream) if suffix in COMPRESSED else stream


def open_member(archive: IO[bytes], name: str, member: str) -> AbstractContextManager[IO[bytes]]:
    """Open a regular file in the archive of that name, for reading once from beginning to end.

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
            read_to_end(archive)
            raise KeyError(name)
        yield tar.extractfile(member)
        for _ in tar:
            pass
    read_to_end(archive)


@contextmanager
def zip_member(archive: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(archive) as content:
        found = {plain_name(entry.filename): entry for entry in content.infolist()}
        try:
            stream = content.open(found[plain_name(name)])
        except RuntimeError as error:  # a password, or a compression that Python does not have
            raise zipfile.BadZipFile(str(error)) from error
        with stream:
            yield stream


def plain_name(name: str) -> str:
    return name.removeprefix("./")


def read_to_end(stream: IO[bytes]) -> None:
    """Read to the end, where a compressed stream has its checksum."""
    while stream.read(BLOCK):
        pass


def decode_utf8(lines: Iterable[bytes], path: Path) -> Iterator[str]:
    """Decode the lines of a file in UTF-8, with or without a byte order mark.

    Raises:
        CorpusError: a line is not UTF-8; the message names the file and the line.
    """
    for number, line in enumerate(lines, start=1):
        try:
            # Only at the beginning of a file is U+FEFF a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{path}, line {number}: not UTF-8 ({error})") from error


def decode(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode lines as text: UTF-8, with or without a byte order mark.

    A line that is not UTF-8 is read as Windows' Latin-1 (cp1252); the number of these is logged.
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


if __name__ == "__main__":
    raise SystemExit(
        "corpus_files.py is not a command: it is a part of unpack_corpus.py and prepare_text.py"
    )
