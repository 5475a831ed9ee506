"""One multilingual corpus of characters from CoNLL-SIGMORPHON 2018, task 1.

The source is the token of the language, those of the tags and the characters of the lemma, as in
Peters, Niculae, Martins: Sparse Sequence-to-Sequence Models (2019). A character is a code point,
and none is normalised, because the shared task compares exact forms.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.reading import decode, log, naming_damage, open_all

SETTINGS = ("low", "medium", "high")
_FOLDERS = ("task1/all", "task1/surprise", "all", "surprise", ".")
_ARCHIVE = "conll2018.tar.gz"  # of the shared task's repository
_SPACE = "\u2581"

Item = tuple[str, str, str]  # lemma, form, tags
Tables = dict[str, dict[str, tuple[str, bytes]]]  # language -> dev, test, ... -> name, content


def to_units(text: str) -> list[str]:
    """Turn the characters of a lemma, a form or a tag into units that fairseq neither splits nor
    joins.

    A space is written ▁, so that ``fairseq-generate --post-process sentencepiece`` restores words.
    Other white space (at which fairseq would split), spaces at the ends, and a real ▁ are written
    as their code points, such as U+00A0.
    """
    units = []
    for position, character in enumerate(text):
        if character == " " and 0 < position < len(text) - 1:
            units.append(_SPACE)
        elif character.isspace() or character == _SPACE:
            units.append(f"U+{ord(character):04X}")
        else:
            units.append(character)
    return units


def from_units(text: str) -> str:
    """Undo ``to_units`` in a form after ``--post-process sentencepiece``."""

    def restore(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character.isspace() or character == _SPACE else match[0]

    return re.sub(r"U\+([0-9A-F]{4})", restore, text)


def find_tables(raw: Path, setting: str, languages: Sequence[str] = ()) -> Tables:
    """Read the training data of the setting, ``dev`` and ``test`` of the languages.

    By default they are all that have training data of the setting: not all have ``high``.
    """
    parts = (f"train-{setting}", "dev", "test")
    wanted = re.compile(rf"(?P<language>\S+?)-(?P<part>{'|'.join(parts)})")
    found: Tables = {}
    for match, name, content in [*_files(raw, wanted)] or _archived(raw / _ARCHIVE, wanted):
        tables = found.setdefault(match["language"], {})
        if match["part"] in tables:
            first = tables[match["part"]][0]
            raise RecipeError(f"both {first} and {name} are there: remove one of them")
        tables[match["part"]] = (name, content)
    names = sorted(set(languages) or {name for name in found if parts[0] in found[name]})
    if not names:
        raise RecipeError(f"{raw} has no file LANG-{parts[0]}, nor task1/all, nor {_ARCHIVE}")
    for name in names:
        missing = [part for part in parts if part not in found.get(name, {})]
        if missing:
            there = " ".join(sorted(found)) or "no languages"
            raise RecipeError(f"{raw}: {name}-{missing[0]} is missing; there are: {there}")
    return {name: found[name] for name in names}


_Found = Iterator[tuple[re.Match[str], str, bytes]]  # match, name for messages, content


def _files(raw: Path, wanted: re.Pattern[str]) -> _Found:
    for path in (path for folder in _FOLDERS for path in sorted((raw / folder).glob("*-*"))):
        match = wanted.fullmatch(path.name)
        if match and path.is_file():
            yield match, str(path), path.read_bytes()


def _archived(archive: Path, wanted: re.Pattern[str]) -> _Found:
    if archive.is_file():
        with naming_damage(archive), tarfile.open(archive) as members:
            for member in members:
                folder, _, name = member.name.rpartition("/")
                match = wanted.fullmatch(name)
                if match and folder.endswith(("/task1/all", "/task1/surprise")) and member.isreg():
                    content = members.extractfile(member).read()
                    yield match, f"{archive}!{member.name}", content


def read_items(name: str, content: bytes) -> Iterator[Item]:
    """Yield the items of a table. A byte order mark and CR LF line ends are dropped."""
    if not content:
        raise RecipeError(f"{name} is empty")
    lines = decode(content.removesuffix(b"\n").split(b"\n"), name)
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if len(fields) != 3 or not all(map(str.strip, fields)):
            raise RecipeError(f"{name}, line {number}: is not lemma, form and tags, between tabs")
        yield tuple(fields)


def prepare(
    raw: Path, output: Path, setting: str, languages: Sequence[str] = (), language_count: int = 0
) -> None:
    """Make a corpus of characters, as ``corpus inflection`` describes."""
    tables = find_tables(raw, setting, languages)
    if len(tables) < language_count:
        raise RecipeError(f"{raw} has {len(tables)} languages, but {language_count} are needed")
    parts = {"train": f"train-{setting}", "valid": "dev", "test": "test"}
    items_of = {  # read and check all files before writing any
        split: [(name, *item) for name in tables for item in read_items(*tables[name][part])]
        for split, part in parts.items()
    }
    for split, items in items_of.items():
        paths = [output / "characters" / f"{split}.{side}" for side in ("lemma", "form")]
        with open_all(paths) as (lemmas, forms):
            for language, lemma, form, tags in items:
                units = ["tag=" + "".join(to_units(tag)) for tag in tags.split(";")]
                lemmas.write(" ".join([f"lang={language}", *units, *to_units(lemma)]) + "\n")
                forms.write(" ".join(to_units(form)) + "\n")
        log(f"{split}: {len(items):,} items of {len(tables)} language(s)")
    with open_all([output / "text" / "test.tsv"]) as (reference,):
        for language, lemma, form, tags in items_of["test"]:
            reference.write("\t".join((language, lemma, tags, form)) + "\n")
