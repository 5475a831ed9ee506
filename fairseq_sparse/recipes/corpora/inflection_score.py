"""Scores of inflected forms as in CoNLL-SIGMORPHON 2018, task 1, see ``score-inflection``.

Word accuracy is the percentage of items whose form is guessed exactly; edit distance is the mean
Levenshtein distance between guess and form, in characters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import lines_of
from fairseq_sparse.measure.text.fairseq_output import check_whole
from fairseq_sparse.recipes.corpora.inflection import from_units
from fairseq_sparse.recipes.corpora.reading import log, open_all

_UNKNOWN = "<<unk>>"  # printed by fairseq-generate for characters that no training form has
_TARGET = re.compile(r"T-(\d+)\t(.*)")
_GUESS = re.compile(r"D-(\d+)\t[^\t]*\t(.*)")
_LANGUAGE = re.compile(r"[^\s/\0]+")  # it becomes part of a file's name
_FIGURES = ("accuracy", "edit_distance", "items", "without_guess")


class Slot(NamedTuple):
    """One item of the test set, whose form is to be guessed."""

    language: str
    lemma: str
    tags: str


Items = Sequence[tuple[Slot, str]]  # slots with their forms, in the order of fairseq's numbers
Guesses = dict[int, str]


def edit_distance(first: str, second: str) -> int:
    """Compute Levenshtein's distance: insertions, deletions and replacements of a character."""
    row = list(range(len(second) + 1))
    for deletions, character in enumerate(first, start=1):
        diagonal, row[0] = row[0], deletions
        for column, other in enumerate(second, start=1):
            replaced = diagonal + (character != other)
            diagonal = row[column]
            row[column] = min(row[column] + 1, row[column - 1] + 1, replaced)
    return row[-1]


def score_files(generated: Path, reference: Path, guesses: Path) -> dict[str, Any]:
    """Score inflected forms, as ``score-inflection`` describes, and return the figures."""
    items = _read_reference(reference)
    found = _read_generated(generated, reference, items)
    result = score(items, found)
    lines = defaultdict(list)
    for number, (slot, _) in enumerate(items):
        lines[slot.language].append(f"{slot.lemma}\t{found.get(number, '')}\t{slot.tags}\n")
    for language, own in lines.items():
        with open_all([guesses / f"{language}-out"]) as (handle,):
            handle.writelines(own)
    missing = [" ".join(slot) for number, (slot, _) in enumerate(items) if number not in found]
    if missing:
        log(f"no guess for {len(missing)} items, such as {missing[0]}")
    return result


def figures_table(result: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return header and rows of the figures of each language, and of all."""
    rows = [
        [name, f"{row['accuracy']:.2f}", f"{row['edit_distance']:.2f}"]
        + [f"{row['items']:,}", row["without_guess"]]
        for name, row in [*result["languages"].items(), ("all", result)]
    ]
    header = ["language", "word accuracy (%)", "edit distance", "items", "without a guess"]
    return header, rows


def score(items: Items, guesses: Guesses) -> dict[str, Any]:
    """Compute the figures of each language and their means."""
    # If a slot occurs several times, its last form and last guess count.
    filled = {slot: (form, guesses.get(number)) for number, (slot, form) in enumerate(items)}
    by_language = defaultdict(list)
    for slot, pair in filled.items():
        by_language[slot.language].append(pair)
    languages = {
        language: {
            "accuracy": 100 * sum(form == guess for form, guess in pairs) / len(pairs),
            "edit_distance": fmean(edit_distance(form, guess or "") for form, guess in pairs),
            "items": len(pairs),
            "without_guess": sum(guess is None for _, guess in pairs),
        }
        for language, pairs in by_language.items()
    }
    all_of = {name: [row[name] for row in languages.values()] for name in _FIGURES}
    means = {name: fmean(all_of[name]) for name in _FIGURES[:2]}
    sums = {name: sum(all_of[name]) for name in _FIGURES[2:]}
    return {**means, **sums, "languages": languages}


def _read_reference(path: Path) -> Items:
    items = []
    for number, line in enumerate(lines_of(path), start=1):
        fields = line.split("\t")
        if len(fields) != 4:
            raise RecipeError(f"{path}, line {number}: {len(fields)} field(s) in place of 4")
        if not _LANGUAGE.fullmatch(fields[0]):
            raise RecipeError(f"{path}, line {number}: {fields[0]!r} is no name of a language")
        items.append((Slot(*fields[:3]), fields[3]))
    if not items:
        raise RecipeError(f"{path} is empty")
    return items


def _read_generated(path: Path, reference: Path, items: Items) -> Guesses:
    """Read the best guess of each item, after checking that the targets are those of the items."""
    targets: dict[int, str] = {}
    guesses: Guesses = {}
    for line in lines_of(path):
        if line.startswith(("T", "D")):
            check_whole(path, line)
        if match := _TARGET.fullmatch(line):
            targets[int(match[1])] = from_units(match[2])
        elif match := _GUESS.fullmatch(line):
            # the best of an n-best list comes first
            guesses.setdefault(int(match[1]), from_units(match[2]))
    if set(targets) != set(range(len(items))):
        raise RecipeError(
            f"{path} has {len(targets)} items but {reference} has {len(items)}: they are not of "
            "the same test set, or fairseq-generate did not finish"
        )
    for number, (slot, form) in enumerate(items):
        if targets[number] != form and _UNKNOWN not in targets[number]:
            raise RecipeError(
                f"{path}: the form of {slot.lemma} is {targets[number]!r}, in {reference} {form!r}:"
                " they are not of the same test set, or --post-process sentencepiece is missing"
            )
    return guesses
