"""Scores of inflected forms as in CoNLL-SIGMORPHON 2018, task 1, see ``score-inflection``.

Word accuracy is the percentage of items whose form is guessed exactly; edit distance is the mean
Levenshtein distance between guess and form, in characters.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import lines_of
from fairseq_sparse.measure.text.fairseq_output import HYPOTHESIS, check_whole
from fairseq_sparse.recipes.corpora.inflection import from_units
from fairseq_sparse.recipes.corpora.reading import decode, log, open_all, read_lines

_UNKNOWN = "<<unk>>"  # printed by fairseq-generate for characters that no training form has
_TARGET = re.compile(r"T-(\d+)\t(.*)")
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


def score_files(
    generated: Path, reference: Path, guesses: Path | None, baseline: Path | None = None
) -> dict[str, Any]:
    """Score inflected forms, as ``score-inflection`` describes, and return the figures."""
    items = _read_reference(reference)
    found = _read_guesses(generated, reference, items)
    result = score(items, found)
    if baseline:
        result["baseline"] = compare(items, found, _read_guesses(baseline, reference, items))
    if guesses:
        _write_guesses(guesses, items, found)
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


def baseline_table(result: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return header and row of the comparison with another system."""
    row = result["baseline"]
    header = ["right here alone", "right in the baseline alone", "p (McNemar, exact)"]
    p = f"{row['p']:.2g}" if row["p"] else f"< {sys.float_info.min:.2g}"  # the quotient underflows
    cells = [row["right_alone"], row["baseline_right_alone"], p]
    return [*header, "languages ahead", "behind"], [
        [*cells, row["languages_ahead"], row["languages_behind"]]
    ]


def score(items: Items, guesses: Guesses) -> dict[str, Any]:
    """Compute the figures of each language and their means."""
    languages = {
        language: {
            "accuracy": 100 * sum(form == guess for form, guess in pairs) / len(pairs),
            "edit_distance": fmean(edit_distance(form, guess or "") for form, guess in pairs),
            "items": len(pairs),
            "without_guess": sum(guess is None for _, guess in pairs),
        }
        for language, pairs in _by_language(items, guesses).items()
    }
    all_of = {name: [row[name] for row in languages.values()] for name in _FIGURES}
    means = {name: fmean(all_of[name]) for name in _FIGURES[:2]}
    sums = {name: sum(all_of[name]) for name in _FIGURES[2:]}
    return {**means, **sums, "languages": languages}


def compare(items: Items, guesses: Guesses, baseline: Guesses) -> dict[str, Any]:
    """Test by McNemar's exact test whether two systems are right equally often.

    Of the items that one system alone has right, each has half of them on average if they are: p is
    the two-sided probability of a split that is at least as uneven.
    """
    ahead, behind, leads = 0, 0, []
    others = _by_language(items, baseline)
    for language, pairs in _by_language(items, guesses).items():
        right = [
            (form == own, form == other)
            for (form, own), (_, other) in zip(pairs, others[language], strict=True)
        ]
        more, fewer = right.count((True, False)), right.count((False, True))
        ahead, behind = ahead + more, behind + fewer
        leads.append(more - fewer)
    uneven = sum(math.comb(ahead + behind, k) for k in range(min(ahead, behind) + 1))
    return {
        "right_alone": ahead,
        "baseline_right_alone": behind,
        "p": min(1.0, 2 * uneven / 2 ** (ahead + behind)),
        "languages_ahead": sum(lead > 0 for lead in leads),
        "languages_behind": sum(lead < 0 for lead in leads),
    }


def _by_language(items: Items, guesses: Guesses) -> dict[str, list[tuple[str, str | None]]]:
    """Return the form and the guess of each slot; of those of a repeated slot the last count."""
    filled = {slot: (form, guesses.get(number)) for number, (slot, form) in enumerate(items)}
    by_language = defaultdict(list)
    for slot, pair in filled.items():
        by_language[slot.language].append(pair)
    return by_language


def _write_guesses(folder: Path, items: Items, guesses: Guesses) -> None:
    """Write the guesses in the shared task's own format."""
    lines = defaultdict(list)
    for number, (slot, _) in enumerate(items):
        lines[slot.language].append(f"{slot.lemma}\t{guesses.get(number, '')}\t{slot.tags}\n")
    for language, own in lines.items():
        with open_all([folder / f"{language}-out"]) as (handle,):
            handle.writelines(own)


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


def _read_guesses(path: Path, reference: Path, items: Items) -> Guesses:
    """Read fairseq-generate's output, or a folder of guesses in the shared task's format."""
    if not path.is_dir():
        return _read_generated(path, reference, items)
    found = {}
    for language in {slot.language for slot, _ in items}:
        name = f"{language}-out"
        for line in decode(read_lines(path, name), path / name):
            fields = line.split("\t")
            if len(fields) != 3:
                raise RecipeError(f"{path / name}: {len(fields)} field(s) in place of 3: {line!r}")
            found[Slot(language, fields[0], fields[2])] = fields[1]
    if missing := [slot for slot, _ in items if slot not in found]:
        raise RecipeError(
            f"{path} has no line for {' '.join(missing[0])} of {reference}: they are not of the "
            "same test set"
        )
    # An empty guess and none are written alike.
    guesses = ((number, found[slot]) for number, (slot, _) in enumerate(items))
    return {number: guess for number, guess in guesses if guess}


def _read_generated(path: Path, reference: Path, items: Items) -> Guesses:
    """Read the best guess of each item, after checking that the targets are those of the items."""
    targets: dict[int, str] = {}
    guesses: Guesses = {}
    for line in lines_of(path):
        if line.startswith(("T", "D")):
            check_whole(path, line)
        if match := _TARGET.fullmatch(line):
            targets[int(match[1])] = from_units(match[2])
        elif match := HYPOTHESIS["D"].fullmatch(line):
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
