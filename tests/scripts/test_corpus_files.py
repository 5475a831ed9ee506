"""scripts/corpus_files.py: writing files in step, and setting damaged ones aside.

Reading from archives is tested with unpack_corpus.py.
"""

from __future__ import annotations

import gzip
from argparse import Namespace
from pathlib import Path

import pytest

from corpus_files import LONGEST_LINE, CorpusError, DamagedFile, ParallelFiles, read_lines, run


def write(files: ParallelFiles, numbers: range, save_every: int) -> None:
    for number in numbers:
        files.write([f"Zeile {number}", f"line {number}"])
        files.counts["read"] += 1
        if files.counts["read"] % save_every == 0:
            files.save()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("lines_until_the_end", [0, 1, 4, 5, 6, 9])
def test_interrupted_files_go_on_where_they_were_saved(
    lines_until_the_end: int, tmp_path: Path
) -> None:
    paths = [tmp_path / "de", tmp_path / "en"]
    with pytest.raises(KeyboardInterrupt), ParallelFiles(paths) as files:
        write(files, range(lines_until_the_end), save_every=5)
        raise KeyboardInterrupt
    assert not any(path.exists() for path in paths)
    with ParallelFiles(paths) as files:
        done = files.counts["read"]
        assert done == lines_until_the_end // 5 * 5
        write(files, range(done, 12), save_every=5)
    assert paths[0].read_text() == "".join(f"Zeile {number}\n" for number in range(12))
    assert paths[1].read_text() == "".join(f"line {number}\n" for number in range(12))
    assert names(tmp_path) == {"de", "en"}


def test_sizes_of_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    paths = [tmp_path / "de", tmp_path / "en"]
    with pytest.raises(KeyboardInterrupt), ParallelFiles(paths) as files:
        write(files, range(5), save_every=5)
        raise KeyboardInterrupt
    (tmp_path / "de.partial").unlink()
    with pytest.raises(KeyboardInterrupt), ParallelFiles(paths) as files:
        write(files, range(3), save_every=5)
        raise KeyboardInterrupt
    with ParallelFiles(paths) as files:
        write(files, range(files.counts["read"], 6), save_every=5)
    assert paths[0].read_text() == "".join(f"Zeile {number}\n" for number in range(6))


def test_files_of_bad_input_begin_anew(tmp_path: Path) -> None:
    paths = [tmp_path / "de", tmp_path / "en"]
    with pytest.raises(CorpusError), ParallelFiles(paths) as files:
        write(files, range(5), save_every=5)
        raise CorpusError("the two sides must have the same number of lines")
    with ParallelFiles(paths) as files:
        assert files.counts == {}
        write(files, range(2), save_every=5)
    assert paths[0].read_text() == "Zeile 0\nZeile 1\n"


def test_damaged_file_is_set_aside_only_if_it_was_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "corpus.tgz"
    path.write_bytes(b"<html>")

    def work(_: Namespace) -> None:
        raise DamagedFile(path, f"{path} is not a complete gzip archive")

    assert run("unpack", work, Namespace(fetched=False)) == 1
    assert capsys.readouterr().err.endswith("delete it and fetch it again\n")
    assert names(tmp_path) == {"corpus.tgz"}
    assert run("unpack", work, Namespace(fetched=True)) == 1
    assert "it is now called corpus.tgz.damaged" in capsys.readouterr().err
    assert names(tmp_path) == {"corpus.tgz.damaged"}


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_line_without_an_end_is_named_before_it_fills_the_memory(
    name: str, tmp_path: Path
) -> None:
    def write_lines(*sizes: int) -> None:
        content = b"\n".join(b"a" * size for size in sizes)
        path = tmp_path / name
        path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)

    write_lines(3, LONGEST_LINE - 1, LONGEST_LINE)
    assert list(map(len, read_lines(tmp_path, name))) == [3, LONGEST_LINE - 1, LONGEST_LINE]
    write_lines(3, LONGEST_LINE + 1, 1)
    lines = read_lines(tmp_path, name)
    assert next(lines) == b"aaa"
    with pytest.raises(CorpusError, match=f"{name}, line 2: has more than 16 MiB"):
        next(lines)
