#!/usr/bin/env python3
"""Extract the sentences of a data set from its archives, one per line, both sides parallel.

Each --take adds the sentences of one pair of files to a split, in the order given:

    --take train text europarl.tgz!training/europarl-v8.ro-en.ro europarl.tgz!training/europarl...

A place is FILE or ARCHIVE!MEMBER below --raw; an archive is a tar or a zip, and anything may be
compressed (gzip, bzip2, xz). FORMAT is the format of the files:

    text   one sentence per line
    tags   the same, but lines that begin with a tag are skipped: metadata (IWSLT's train)
    talks  the same as tags, but titles and descriptions are sentences, too (fairseq's IWSLT'14)
    seg    XML or SGML with <seg> elements (IWSLT's and WMT's development and test sets)
    tsv    columns separated by tabs; the place ends in #N, where N is the column, from 1
    bars   the same, separated by "|||" (WMT's headlines)

Writes OUTPUT/{train,valid,test}.LANG, in UTF-8. Any run of white space becomes one space, including
the characters that Unicode counts as line ends, so that every program sees the same lines. Pairs
with an empty side are kept. Existing splits are kept: delete their files to make them again.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from command_line import exit_status, script_parser
from corpus_files import (
    CorpusError,
    add_fetched,
    decode,
    log,
    open_atomically,
    read_lines,
    run,
)

# The small ones first, so that missing files are found sooner.
SPLITS = ("test", "valid", "train")
PAIRS_PER_REPORT = 1_000_000

NO_SENTENCE = re.compile("<url>|<talkid>|<keywords>")
TITLE = re.compile("</?(?:title|description)>")
TAG = re.compile(r"\s*</?[A-Za-z]")
# The end is missing if the tag continues on the next line.
SEGMENT_TAG = re.compile(r"<(?P<closing>/?)seg\b[^>]*(?P<end>>?)", re.IGNORECASE)
LONGEST_TAG = 10_000
ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class Take(NamedTuple):
    """The sentences of one pair of files, and the split that they belong to."""

    split: str
    format: str
    places: tuple[str, str]


def unescape(text: str) -> str:
    """Replace XML's predefined entities and character references, once; keep invalid ones."""

    def character(match: re.Match[str]) -> str:
        name, decimal, hexadecimal = match.groups()
        if name:
            return NAMED[name]
        code = int(decimal) if decimal else int(hexadecimal, 16)
        is_character = 0 < code < 0x110000 and not 0xD800 <= code < 0xE000
        return chr(code) if is_character else match[0]

    return ENTITY.sub(character, text)


def untagged(lines: Iterable[str], _: str) -> Iterator[str]:
    return (unescape(line) for line in lines if not TAG.match(line))


def talks(lines: Iterable[str], _: str) -> Iterator[str]:
    return (unescape(TITLE.sub("", line)) for line in lines if not NO_SENTENCE.search(line))


def segments(lines: Iterable[str], place: str) -> Iterator[str]:
    """Yield the content of each <seg>, which may span several lines, in a single pass."""
    found, content, rest = False, None, ""
    for line in lines:
        text, rest, end = f"{rest}{line}\n", "", 0
        for tag in SEGMENT_TAG.finditer(text):
            if not tag["end"]:
                text, rest = text[: tag.start()], text[tag.start() :]
                break
            if content is not None:
                content.append(text[end : tag.start()])
            end = tag.end()
            if not tag["closing"]:
                if content is not None:
                    raise CorpusError(f"{place}: a <seg> does not end before the next begins")
                content = []
            elif content is not None:
                found = True
                yield unescape("".join(content))
                content = None
        if content is not None:
            content.append(text[end:])
        if len(rest) > LONGEST_TAG:
            raise CorpusError(f"{place}: the tag of a <seg> does not end")
    if content is not None or rest:
        raise CorpusError(f"{place}: the last <seg> does not end")
    if not found:
        raise CorpusError(f"{place}: has no <seg>")


def column(lines: Iterable[str], place: str, separator: str = "\t") -> Iterator[str]:
    number = int(place.rpartition("#")[2])
    for count, line in enumerate(lines, start=1):
        cells = line.split(separator)
        if len(cells) < number:
            raise CorpusError(f"{place}, line {count}: has {len(cells)} columns")
        yield cells[number - 1]


FORMATS: dict[str, Callable[[Iterable[str], str], Iterator[str]]] = {
    "text": lambda lines, _: iter(lines),
    "tags": untagged,
    "talks": talks,
    "seg": segments,
    "tsv": column,
    "bars": partial(column, separator="|||"),
}
WITH_COLUMNS = ("tsv", "bars")


def sentences(raw: Path, take: Take, place: str) -> Iterator[str]:
    """Return the sentences of one side, each on one line."""
    file = place.rpartition("#")[0] if take.format in WITH_COLUMNS else place
    for text in FORMATS[take.format](decode(read_lines(raw, file), file), place):
        yield " ".join(text.split())


def write_pairs(raw: Path, take: Take, outputs: list[TextIO]) -> int:
    """Append the pairs of two files to the outputs, and return their number."""
    counts = [0, 0]
    sides = [sentences(raw, take, place) for place in take.places]
    for pair in itertools.zip_longest(*sides):
        for side, text in enumerate(pair):
            counts[side] += text is not None
        if None not in pair:
            for output, text in zip(outputs, pair, strict=True):
                output.write(text + "\n")
        if max(counts) % PAIRS_PER_REPORT == 0:
            log(f"unpack {take.split}: {max(counts):,} pairs of {take.places[0]}")
    if counts[0] != counts[1]:
        raise CorpusError(
            f"{raw}: {counts[0]:,} sentences in {take.places[0]} but {counts[1]:,} in "
            f"{take.places[1]}; the two sides must have the same number"
        )
    if not counts[0]:
        raise CorpusError(f"{raw}: no sentences in {take.places[0]}")
    return counts[0]


def unpack(args: argparse.Namespace) -> None:
    for split in SPLITS:
        if split not in {take.split for take in args.take}:
            continue
        paths = [args.output / f"{split}.{lang}" for lang in (args.source_lang, args.target_lang)]
        if all(path.is_file() for path in paths):
            log(f"unpack {split}: done already")
            continue
        total = 0
        with ExitStack() as stack:
            outputs = [stack.enter_context(open_atomically(path)) for path in paths]
            for take in args.take:
                if take.split == split:
                    total += write_pairs(args.raw, take, outputs)
        log(f"unpack {split}: {total:,} pairs")


def checked(words: list[str]) -> Take:
    """Return a --take after checking its words.

    Raises:
        CorpusError: the split, the format or a column is invalid.
    """
    split, file_format, *places = words
    if split not in SPLITS:
        raise CorpusError(f"--take {split}: not one of {', '.join(SPLITS)}")
    if file_format not in FORMATS:
        raise CorpusError(f"--take ... {file_format}: not one of {', '.join(FORMATS)}")
    for place in places:
        if file_format in WITH_COLUMNS and not re.search(r"#[1-9][0-9]*$", place):
            raise CorpusError(f"{place}: for {file_format}, #N must give the column, from 1")
    return Take(split, file_format, (places[0], places[1]))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    parser.add_argument("--raw", type=Path, required=True, metavar="DIR", help="with the archives")
    parser.add_argument(
        "--take",
        action="append",
        nargs=4,
        required=True,
        metavar=("SPLIT", "FORMAT", "SOURCE", "TARGET"),
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    add_fetched(parser)
    args = parser.parse_args(argv)
    try:
        args.take = [checked(words) for words in args.take]
    except CorpusError as error:
        parser.error(str(error))
    given = {take.split for take in args.take}
    missing = [split for split in ("train", "test") if split not in given]
    if missing:
        parser.error(f"no --take for {', '.join(missing)}")
    return args


def main(argv: list[str] | None = None) -> int:
    return run("unpack_corpus", unpack, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
