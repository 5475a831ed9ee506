"""Streams of lines from text files and from archives.

A place is FILE or ARCHIVE!MEMBER below a folder. An archive is a tar or a zip, and anything may be
compressed by gzip, bzip2 or xz, according to its suffix. Nothing is unpacked to the paths that an
archive names.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import itertools
import lzma
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import IO

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import replacing

_BLOCK = 1 << 20
# A file without line feeds, which is no text, would fill the memory.
LONGEST_LINE = 1 << 24
_OPEN: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError)


def log(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def open_all(paths: Iterable[Path]) -> Iterator[list[IO[str]]]:
    """Open text files for writing that appear under their names when all are complete.

    Raises:
        RecipeError: a file is named twice.
    """
    paths = list(paths)
    if len(set(paths)) < len(paths):
        raise RecipeError(f"{paths[0].parent}: two texts of one name; name different languages")
    with ExitStack() as stack:
        handles = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            handles.append(stack.enter_context(replacing(path)))
        yield handles


def keep_inputs(output: Path, *inputs: Path) -> None:
    """Raise RecipeError where a folder that is read would be written."""
    if output.resolve() in [folder.resolve() for folder in inputs]:
        raise RecipeError(
            f"{output} is also the input, and would be overwritten: name another folder"
        )


def raw_file(folder: Path, place: str) -> Path:
    """Return the file of a place; ``NAME.gz`` will do for ``NAME``, and the other way round."""
    name = place.partition("!")[0]
    for candidate in (name, f"{name}.gz", name.removesuffix(".gz")):
        if (folder / candidate).is_file():
            return folder / candidate
    raise RecipeError(f"{folder / name}: no such file")


def read_lines(folder: Path, place: str) -> Iterator[bytes]:
    """Yield the lines of a place without the line feed, which alone ends a line."""
    path, member = raw_file(folder, place), place.partition("!")[2]
    with naming_damage(path), open(path, "rb") as file, ExitStack() as stack:
        stream: IO[bytes] = file
        if member:
            opener = _zip_member if path.suffix == ".zip" else _tar_member
            stream = stack.enter_context(opener(file, path, member))
        text = _decompressed(stream, member or path)
        lines = iter(lambda: text.readline(LONGEST_LINE + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                raise RecipeError(
                    f"{folder / place}, line {number}: has more than {LONGEST_LINE >> 20} MiB; a "
                    "corpus has one sentence per line"
                )
            yield line.removesuffix(b"\n")


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into an error that names it."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        # Errors of system calls have a number; gzip and bz2 raise OSError without one for bad data,
        # and a zip that names a place which it does not have makes the call an invalid one.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise RecipeError(f"{path} is damaged ({error}): delete it and fetch it again") from error


def _decompressed(stream: IO[bytes], name: str | Path) -> IO[bytes]:
    """Return the stream, decompressed if the file's name says that it is compressed."""
    suffix = PurePath(name).suffix
    return _OPEN[suffix](stream) if suffix in _OPEN else stream


@contextmanager
def _tar_member(file: IO[bytes], path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a member; at the end, read the rest of the archive, so that all of it is checked."""
    archive = _decompressed(file, path)
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        found = False
        for member in tar:
            if not found and _plain(member.name) == _plain(name) and member.isfile():
                found = True
                yield tar.extractfile(member)
    while archive.read(_BLOCK):  # the checksum of a compressed stream is at its end
        pass
    if not found:
        raise RecipeError(f"{path}: has no file {name}")


@contextmanager
def _zip_member(file: IO[bytes], path: Path, name: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(file) as archive:
        found = {_plain(entry.filename): entry for entry in archive.infolist()}
        if _plain(name) not in found:
            raise RecipeError(f"{path}: has no file {name}")
        try:
            stream = archive.open(found[_plain(name)])
        except RuntimeError as error:  # a password, or a compression that Python does not have
            raise zipfile.BadZipFile(str(error)) from error
        with stream:
            yield stream


def _plain(name: str) -> str:
    return name.removeprefix("./")


def decode(lines: Iterable[bytes], name: object, strict: bool = True) -> Iterator[str]:
    """Decode lines in UTF-8, with or without a byte order mark, and drop CR at their ends.

    Args:
        strict: whether a line that is not UTF-8 is an error. Otherwise it is read as Windows'
            Latin-1 (cp1252), and the number of such lines is logged.
    """
    foreign = 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if b"\0" in line:
            raise RecipeError(f"{name}, line {number}: has a NUL character; convert it to UTF-8")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            if strict:
                raise RecipeError(f"{name}, line {number}: not UTF-8 ({error})") from error
            foreign += 1
            text = line.decode("cp1252", "replace")
        yield text.rstrip("\r")
    if foreign:
        log(f"{name}: {foreign:,} lines are not UTF-8, and were read as Latin-1")


def in_step(sides: Sequence[Iterable[str]], names: Sequence[object]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of parallel files together, of which each must have as many."""
    counts = [0] * len(sides)
    for row in itertools.zip_longest(*sides):
        for side, line in enumerate(row):
            counts[side] += line is not None
        if None not in row:
            yield row
    if len(set(counts)) > 1:
        found = zip(counts, names, strict=True)
        text = " but ".join(f"{count:,} lines in {name}" for count, name in found)
        raise RecipeError(f"{text}: they must have the same number")
    if not counts[0]:
        raise RecipeError(f"{names[0]}: no text")
