#!/usr/bin/env python3
"""Score inflected forms as in CoNLL-SIGMORPHON 2018, task 1: word accuracy and edit distance.

Reads the output of fairseq-generate --post-process sentencepiece (lines T-ID and D-ID) on the data
of scripts/prepare_inflection.py, and their reference/test.tsv. Word accuracy is the percentage of
items whose form is guessed exactly; edit distance is the mean Levenshtein distance between guess
and form, in characters. An item without a guess counts as an empty guess. As in the official
evaluation, the same lemma and tags in a language are one item, even if repeated, and the last form
counts. The figures for all languages are the means over them.

Prints a Markdown table, and writes the figures as JSON and, in a folder, the guesses in the shared
task's own format: LANG-out, with lemma, guess and tags.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from command_line import (
    check_outputs,
    exit_status,
    lines_of,
    output_file,
    report_errors,
    script_parser,
)
from fairseq_sparse.errors import AnalysisError
from prepare_inflection import from_units, write_lines

UNKNOWN = "<<unk>>"  # printed by fairseq-generate for characters that no training form has
TARGET = re.compile(r"T-(\d+)\t(.*)")
GUESS = re.compile(r"D-(\d+)\t[^\t]*\t(.*)")
NAMED = 3
LANGUAGE = re.compile(r"[^\s/\0]+")  # it becomes part of a file's name


class Slot(NamedTuple):
    """One item of the test set, whose form is to be guessed."""

    language: str
    lemma: str
    tags: str

    def __str__(self) -> str:
        return " ".join(self)


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


def read_reference(path: Path) -> list[tuple[Slot, str]]:
    """Read the slots of the test set and their forms, in the order of fairseq's sentence
    numbers."""
    items = []
    for number, line in enumerate(lines_of(path), start=1):
        fields = line.split("\t")
        if len(fields) != 4:
            raise AnalysisError(f"{path}, line {number}: {len(fields)} field(s) in place of 4")
        if not LANGUAGE.fullmatch(fields[0]):
            raise AnalysisError(f"{path}, line {number}: {fields[0]!r} is no name of a language")
        items.append((Slot(*fields[:3]), fields[3]))
    if not items:
        raise AnalysisError(f"{path} is empty")
    return items


def read_generated(path: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Read the target and the best guess of each sentence, by number, both as text."""
    targets: dict[int, str] = {}
    guesses: dict[int, str] = {}
    for line in lines_of(path):
        if match := TARGET.fullmatch(line):
            targets[int(match[1])] = from_units(match[2])
        elif match := GUESS.fullmatch(line):
            # the best of an n-best list comes first
            guesses.setdefault(int(match[1]), from_units(match[2]))
    if not targets:
        raise AnalysisError(
            f"{path}: no line that begins with T-; is it fairseq-generate's output?"
        )
    return targets, guesses


def check_targets(
    path: Path, targets: dict[int, str], reference: Path, items: Sequence[tuple[Slot, str]]
) -> None:
    """Check that the output covers the whole test set, and that its units are joined to text."""
    if set(targets) != set(range(len(items))):
        raise AnalysisError(
            f"{path} has {len(targets)} items but {reference} has {len(items)}: they are not of "
            "the same test set, or fairseq-generate did not finish"
        )
    for number, (slot, form) in enumerate(items):
        if targets[number] != form and UNKNOWN not in targets[number]:
            raise AnalysisError(
                f"{path}: the form of {slot} is {targets[number]!r} but in {reference} {form!r}: "
                "they are not of the same test set, or --post-process sentencepiece is missing"
            )


def score(items: Sequence[tuple[Slot, str]], guesses: dict[int, str]) -> dict[str, object]:
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
    means = {
        name: fmean(figures[name] for figures in languages.values())
        for name in ("accuracy", "edit_distance")
    }
    sums = {
        name: sum(figures[name] for figures in languages.values())
        for name in ("items", "without_guess")
    }
    return {**means, **sums, "languages": languages}


def write_guesses(folder: Path, items: Sequence[tuple[Slot, str]], guesses: dict[int, str]) -> None:
    lines = defaultdict(list)
    for number, (slot, _) in enumerate(items):
        lines[slot.language].append(f"{slot.lemma}\t{guesses.get(number, '')}\t{slot.tags}")
    for language, own in lines.items():
        write_lines(folder / f"{language}-out", own)


def table(result: dict) -> str:
    """Return a table with one row per language, and the means."""
    from fairseq_sparse.analysis.markdown import markdown_table

    rows = [
        [name, f"{row['accuracy']:.2f}", f"{row['edit_distance']:.2f}"]
        + [f"{row['items']:,}", row["without_guess"]]
        for name, row in [*result["languages"].items(), ("all", result)]
    ]
    header = ["language", "word accuracy (%)", "edit distance", "items", "without a guess"]
    return markdown_table(header, rows)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--generated", type=Path, required=True, help="output of fairseq-generate")
    parser.add_argument("--reference", type=Path, required=True, help="reference/test.tsv")
    parser.add_argument("--guesses", type=Path, required=True, help="output: folder of LANG-out")
    parser.add_argument("--json", type=output_file, required=True, help="output: the figures")
    args = parser.parse_args(argv)
    check_outputs(parser, args, "json")
    return args


def score_files(args: argparse.Namespace) -> None:
    from fairseq_sparse.files import write_json

    items = read_reference(args.reference)
    targets, guesses = read_generated(args.generated)
    check_targets(args.generated, targets, args.reference, items)
    result = score(items, guesses)
    write_guesses(args.guesses, items, guesses)
    write_json(args.json, result)  # written last, because it marks the stage as done
    missing = [str(slot) for number, (slot, _) in enumerate(items) if number not in guesses]
    if missing:
        named = "; ".join(missing[:NAMED]) + ("; ..." if len(missing) > NAMED else "")
        print(f"score_inflection: no guess for {len(missing)} items: {named}", file=sys.stderr)
    print(table(result))


def main(argv: list[str] | None = None) -> int:
    return report_errors("score_inflection", score_files, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
