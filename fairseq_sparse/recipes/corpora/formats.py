"""Formats of the files of corpora, and the sentences in them.

text   one sentence per line
tags   the same, but lines that begin with a tag are skipped: metadata (IWSLT's train)
talks  the same as tags, but titles and descriptions are sentences, too (fairseq's IWSLT'14)
seg    XML or SGML with <seg> elements (IWSLT's and WMT's development and test sets)
tsv    columns separated by tabs; the place ends in #N, where N is the column, from 1
bars   the same, separated by "|||" (WMT's headlines)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fairseq_sparse.errors import RecipeError

_NO_SENTENCE = re.compile("<url>|<talkid>|<keywords>")
_TITLE = re.compile("</?(?:title|description)>")
_TAG = re.compile(r"\s*</?[A-Za-z]")
# The end is missing if the tag continues on the next line.
_SEGMENT_TAG = re.compile(r"<(?P<closing>/?)seg\b[^>]*(?P<end>>?)", re.IGNORECASE)
_LONGEST_TAG = 10_000
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def _unescape(text: str) -> str:
    """Replace XML's predefined entities and character references, once; keep invalid ones."""

    def character(match: re.Match[str]) -> str:
        name, decimal, hexadecimal = match.groups()
        if name:
            return _NAMED[name]
        code = int(decimal) if decimal else int(hexadecimal, 16)
        is_character = 0 < code < 0x110000 and not 0xD800 <= code < 0xE000
        return chr(code) if is_character else match[0]

    return _ENTITY.sub(character, text)


def _untagged(lines: Iterable[str], _: str) -> Iterator[str]:
    return (_unescape(line) for line in lines if not _TAG.match(line))


def _talks(lines: Iterable[str], _: str) -> Iterator[str]:
    return (_unescape(_TITLE.sub("", line)) for line in lines if not _NO_SENTENCE.search(line))


def _segments(lines: Iterable[str], place: str) -> Iterator[str]:
    """Yield the content of each <seg>, which may span several lines, in a single pass."""
    found, content, rest = False, None, ""
    for line in lines:
        text, rest, end = f"{rest}{line}\n", "", 0
        for tag in _SEGMENT_TAG.finditer(text):
            if not tag["end"]:
                text, rest = text[: tag.start()], text[tag.start() :]
                break
            if content is not None:
                content.append(text[end : tag.start()])
            end = tag.end()
            if not tag["closing"]:
                if content is not None:
                    raise RecipeError(f"{place}: a <seg> does not end before the next begins")
                content = []
            elif content is not None:
                found = True
                yield _unescape("".join(content))
                content = None
        if content is not None:
            content.append(text[end:])
        if len(rest) > _LONGEST_TAG:
            raise RecipeError(f"{place}: the tag of a <seg> does not end")
    if content is not None or rest:
        raise RecipeError(f"{place}: the last <seg> does not end")
    if not found:
        raise RecipeError(f"{place}: has no <seg>")


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
