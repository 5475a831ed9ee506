#!/usr/bin/env python3
"""Make one multilingual corpus of characters from CoNLL-SIGMORPHON 2018, task 1.

Reads LANG-train-SETTING, LANG-dev and LANG-test (lemma, form and tags, separated by tabs) from a
folder. They may be in task1/all and task1/surprise, as in the shared task's repository, or in the
folder itself, or in that repository's archive conll2018.tar.gz, which is unpacked first. Writes
into the output folder:

    characters/{train,valid,test}.lemma   lang=turkish tag=N tag=PL e v
    characters/{train,valid,test}.form    e v l e r
    reference/test.tsv                    language, lemma, tags, form; in the order of test.lemma

The source is the token of the language, those of the tags and the characters of the lemma, as in
Peters, Niculae, Martins: Sparse Sequence-to-Sequence Models (2019). A character is a code point,
and none is normalised, because the shared task compares exact forms. A space is written ▁, so that
fairseq-generate --post-process sentencepiece restores words. Other white space (at which fairseq
would split), spaces at the ends, and a real ▁ are written as their code points, such as U+00A0;
scripts/score_inflection.py decodes them.

A byte order mark and CR LF line ends are dropped. A line that is not an item of the task is an
error, reported with its file and number.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from command_line import exit_status, replacing, script_parser
from corpus_files import (
    CorpusError,
    add_fetched,
    decode_utf8,
    log,
    name_damage,
    open_atomically,
    run,
)

SETTINGS = ("low", "medium", "high")
FOLDERS = ("task1/all", "task1/surprise", "all", "surprise", ".")
FILE_NAME = re.compile(r"(?P<language>\S+?)-(?P<part>train-\w+|dev|test|covered-test)")
# The archive of the shared task's repository, and its members with data.
ARCHIVE = "conll2018.tar.gz"
MEMBER = re.compile(r"[^/]+/task1/(?P<path>(all|surprise)/[\w-]+-(train-\w+|dev|test))")
SPACE = "\u2581"
NUMBERED = re.compile(r"U\+([0-9A-F]{4})")


class Item(NamedTuple):
    """One line of the shared task's files."""

    lemma: str
    form: str
    tags: str


def to_units(text: str) -> list[str]:
    """Turn the characters of a lemma, a form or a tag into units that fairseq neither splits nor
    joins."""
    units = []
    for position, character in enumerate(text):
        inside = 0 < position < len(text) - 1
        if character == " " and inside:
            units.append(SPACE)
        elif character.isspace() or character == SPACE:
            units.append(f"U+{ord(character):04X}")
        else:
            units.append(character)
    return units


def from_units(text: str) -> str:
    """Undo ``to_units`` in a form after ``--post-process sentencepiece``."""

    def restore(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character.isspace() or character == SPACE else match[0]

    return NUMBERED.sub(restore, text)


def source_units(language: str, item: Item) -> list[str]:
    """Return the tokens of the language and the tags, and the characters of the lemma."""
    tags = ["tag=" + "".join(to_units(tag)) for tag in item.tags.split(";")]
    return [f"lang={language}", *tags, *to_units(item.lemma)]


def find_files(folder: Path) -> dict[str, dict[str, Path]]:
    """Find the files: language -> part (``dev``, ``train-low``, ...) -> file."""
    found: dict[str, dict[str, Path]] = {}
    for path in (path for name in FOLDERS for path in sorted((folder / name).glob("*"))):
        match = FILE_NAME.fullmatch(path.name)
        if match and path.is_file():
            first = found.setdefault(match["language"], {}).setdefault(match["part"], path)
            if first != path:
                raise CorpusError(f"both {first} and {path} are there: remove one of them")
    if not found:
        raise CorpusError(f"{folder} has no LANG-train-*, LANG-dev or LANG-test, nor task1/all")
    return found


def choose_languages(
    found: dict[str, dict[str, Path]], names: Sequence[str], setting: str
) -> list[str]:
    """Return the requested languages in alphabetical order; all files of each must exist.

    ``all`` means every language with training data of the setting, because not all have ``high``.
    """
    train = f"train-{setting}"
    if list(names) == ["all"]:
        names = [language for language in found if train in found[language]]
        left_out = sorted(set(found) - set(names))
        if not names:
            raise CorpusError(
                f"no language has a file LANG-{train}: fetch it, or choose another --setting"
            )
        if left_out:
            log(f"left out, as they have no {train}: {' '.join(left_out)}")
    unknown = [name for name in names if name not in found]
    if unknown:
        raise CorpusError(
            f"no files of the language {', '.join(unknown)}; there are: {' '.join(sorted(found))}"
        )
    for name in names:
        missing = [part for part in (train, "dev", "test") if part not in found[name]]
        if missing:
            there = next(iter(found[name].values())).parent
            raise CorpusError(f"{there / name}-{missing[0]} is missing")
    return sorted(set(names))


def read_items(path: Path) -> Iterator[Item]:
    """Read the items of one file."""
    number = 0
    with open(path, "rb") as handle:
        for number, text in enumerate(decode_utf8(handle, path), start=1):
            where = f"{path}, line {number}"
            fields = text.removesuffix("\n").removesuffix("\r").split("\t")
            if len(fields) != 3:
                raise CorpusError(
                    f"{where}: {len(fields)} field(s) in place of lemma, form and tags"
                )
            item = Item(*fields)
            for name, field in item._asdict().items():
                if not field.strip():
                    raise CorpusError(f"{where}: empty {name}")
            yield item
    if not number:
        raise CorpusError(f"{path} is empty")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with open_atomically(path) as handle:
        handle.writelines(line + "\n" for line in lines)


def unpack(folder: Path) -> None:
    """Extract the data from the repository's archive into the folder, if there is an archive."""
    archive = folder / ARCHIVE
    if not archive.is_file():
        return
    with name_damage(archive), tarfile.open(archive) as members:
        for member in members:
            match = MEMBER.fullmatch(member.name)
            path = folder / match["path"] if match else None
            if path is None or not member.isreg() or path.is_file():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, binary=True) as handle:
                handle.write(members.extractfile(member).read())


def prepare(args: argparse.Namespace) -> None:
    unpack(args.data)
    found = find_files(args.data)
    languages = choose_languages(found, args.languages, args.setting)
    parts = {"train": f"train-{args.setting}", "valid": "dev", "test": "test"}
    if args.list:
        for language in languages:
            print(*(found[language][part] for part in parts.values()), sep="\n")
        return
    items_of = {  # read and check all files before writing any
        split: [
            (language, item) for language in languages for item in read_items(found[language][part])
        ]
        for split, part in parts.items()
    }
    for split, items in items_of.items():
        sources = (" ".join(source_units(language, item)) for language, item in items)
        write_lines(args.output / "characters" / f"{split}.lemma", sources)
        targets = (" ".join(to_units(item.form)) for _, item in items)
        write_lines(args.output / "characters" / f"{split}.form", targets)
        if split == "test":
            reference = (
                "\t".join((language, item.lemma, item.tags, item.form)) for language, item in items
            )
            write_lines(args.output / "reference" / "test.tsv", reference)
        log(f"{split}: {len(items):,} items of {len(languages)} language(s)")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--setting", required=True, choices=SETTINGS, help="of the training data")
    parser.add_argument(
        "--languages",
        type=lambda text: text.replace(",", " ").split(),
        default=["all"],
        metavar="LIST",
        help='such as "german,turkish", or all that have training data of the setting (default)',
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--output", type=Path, metavar="DIR")
    task.add_argument(
        "--list", action="store_true", help="print the paths of the files that would be read"
    )
    add_fetched(parser)
    args = parser.parse_args(argv)
    if not args.languages:
        parser.error("--languages: name at least one, or all")
    return args


def main(argv: list[str] | None = None) -> int:
    return run("prepare_inflection", prepare, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
