"""Formats of the files of corpora, and the sentences in them.

text   one sentence per line
tags   the same, but lines that begin with a tag are skipped: metadata (IWSLT's train)
talks  the same as tags, but titles and descriptions are sentences, too (fairseq's IWSLT'14)
seg    XML or SGML with <seg> elements (IWSLT's and WMT's development and test sets)
tsv    columns separated by tabs; the place ends in #N, where N is the column, from 1
bars   the same, separated by "|||" (WMT's headlines)
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fairseq_sparse.errors import RecipeError

_NO_SENTENCE = re.compile("<url>|<talkid>|<keywords>")
_TITLE = re.compile("</?(?:title|description)>")
_TAG = re.compile(r"\s*</?[A-Za-z]")
_SEGMENT = re.compile(r"<seg\b", re.IGNORECASE)
_CONTENT = re.compile(r"[^>]*>(.*?)</seg\b", re.IGNORECASE | re.DOTALL)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def _unescape(text: str) -> str:
    """Replace XML's predefined entities and character references, once."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def _untagged(lines: Iterable[str], _: str) -> Iterator[str]:
    return (_unescape(line) for line in lines if not _TAG.match(line))


def _talks(lines: Iterable[str], _: str) -> Iterator[str]:
    return (_unescape(_TITLE.sub("", line)) for line in lines if not _NO_SENTENCE.search(line))


def _segments(lines: Iterable[str], place: str) -> Iterator[str]:
    """Yield the content of each <seg>, which may span several lines; the file is read whole."""
    _, *parts = _SEGMENT.split("\n".join(lines))
    if not parts:
        raise RecipeError(f"{place}: has no <seg>")
    for part in parts:
        if not (match := _CONTENT.match(part)):
            raise RecipeError(f"{place}: a <seg> does not end before the next begins")
        yield _unescape(match[1])


def _column(lines: Iterable[str], place: str, separator: str = "\t") -> Iterator[str]:
    number = int(place.rpartition("#")[2])
    for count, line in enumerate(lines, start=1):
        cells = line.split(separator)
        if len(cells) < number:
            raise RecipeError(f"{place}, line {count}: has {len(cells)} columns")
        yield cells[number - 1]


# By name: a function of the lines of a file and of its place, for messages.
FORMATS: dict[str, Callable[[Iterable[str], str], Iterator[str]]] = {
    "text": lambda lines, _: iter(lines),
    "tags": _untagged,
    "talks": _talks,
    "seg": _segments,
    "tsv": _column,
    "bars": partial(_column, separator="|||"),
}
WITH_COLUMNS = ("tsv", "bars")
