"""Sentences of a data set, from its files and archives: one per line, all languages parallel."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.formats import FORMATS, WITH_COLUMNS
from fairseq_sparse.recipes.corpora.reading import (
    decode,
    in_step,
    log,
    open_all,
    raw_file,
    read_lines,
)

# The small ones first, so that missing files are found sooner.
SPLITS = ("test", "valid", "train")
_ROWS_PER_REPORT = 1_000_000

# s and t have a comma below or, in older text, a cedilla; precomposed or combining.
_DIACRITICS = str.maketrans("ĂăÂâÎîȘșŞşȚțŢţ", "AaAaIiSsSsTtTt")
_COMBINING = re.compile("(?<=[Aa])[\u0302\u0306]|(?<=[Ii])\u0302|(?<=[SsTt])[\u0326\u0327]")


def without_diacritics(text: str) -> str:
    """Replace Romanian letters with diacritics: ă â î ș ț become a a i s t. Others are kept."""
    return _COMBINING.sub("", text.translate(_DIACRITICS))


def extract(
    raw: Path,
    output: Path,
    languages: Sequence[str],
    take: Sequence[Sequence[str]],
    remove_diacritics: Container[str] = (),
) -> None:
    """Extract the sentences of a corpus, as ``corpus extract`` describes."""
    for words in take:
        _check(words, languages)
    read = {
        raw_file(raw, _file(kind, place)).resolve() for _, kind, *places in take for place in places
    }
    for path in (output / f"{words[0]}.{language}" for words in take for language in languages):
        if path.resolve() in read:
            raise RecipeError(f"{path} is read, and would be overwritten: name another folder")
    for split in (split for split in SPLITS if any(words[0] == split for words in take)):
        count = 0
        with open_all([output / f"{split}.{language}" for language in languages]) as handles:
            for kind, *places in (words[1:] for words in take if words[0] == split):
                sides = [
                    _sentences(raw, kind, place, language in remove_diacritics)
                    for place, language in zip(places, languages, strict=True)
                ]
                for row in in_step(sides, [raw / place for place in places]):
                    for handle, text in zip(handles, row, strict=True):
                        handle.write(text + "\n")
                    count += 1
                    if count % _ROWS_PER_REPORT == 0:
                        log(f"{split}: {count:,} ...")
        log(f"{split}: {count:,} {'lines' if len(languages) == 1 else 'pairs'}")


def _check(words: Sequence[str], languages: Sequence[str]) -> None:
    if len(words) != 2 + len(languages):
        raise RecipeError(f"--take {' '.join(words)}: give split, format, a place per language")
    for word, known in ((words[0], SPLITS), (words[1], FORMATS)):
        if word not in known:
            raise RecipeError(f"--take ... {word}: not one of {', '.join(known)}")
    for place in words[2:]:
        if words[1] in WITH_COLUMNS and not re.search(r"#[1-9][0-9]*$", place):
            raise RecipeError(f"{place}: for {words[1]}, #N must give the column, from 1")


def _file(kind: str, place: str) -> str:
    return place.rpartition("#")[0] if kind in WITH_COLUMNS else place


def _sentences(raw: Path, kind: str, place: str, strip: bool) -> Iterator[str]:
    """Yield the sentences of one place, each on one line."""
    file = _file(kind, place)
    for text in FORMATS[kind](decode(read_lines(raw, file), file, strict=False), place):
        # Also the line ends of Unicode go, so that every program sees the same lines.
        text = " ".join(text.split())
        yield without_diacritics(text) if strip else text
