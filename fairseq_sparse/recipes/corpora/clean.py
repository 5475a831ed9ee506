"""Cleaning and splitting of tokenised text; a run of white space in it becomes one space."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.reading import (
    decode,
    in_step,
    keep_inputs,
    log,
    open_all,
    read_lines,
)

# A line break within a text of a language model; it is no part of a word.
LINE_BREAK = "<nl>"


def clean_pairs(
    source: Path,
    output: Path,
    languages: Sequence[str],
    max_tokens: int = 0,
    max_ratio: float = 0.0,
    hold_out: int = 0,
    long_text: Optional[Path] = None,
) -> None:
    """Clean and split parallel text, as ``corpus clean`` describes (``long_text``: --long-test)."""
    keep_inputs(output, source, *([long_text] if long_text else []))
    for split in ("test",) if hold_out else ("test", "valid"):
        with open_all(_files(output, split, languages)) as handles:
            for pair in _read(_files(source, split, languages)):
                _write(handles, pair)
    inputs = _files(source, "train", languages)
    long_files: list[Path] = []
    if long_text:
        inputs += _files(long_text, "train", languages)
        long_files = _files(output, "long", languages) + _files(long_text, "long", languages)
    too_long = f"with more than {max_tokens} tokens on a side"
    left_out: Counter[str] = Counter()
    kept = held_out = 0
    with (
        open_all(_files(output, "train", languages)) as train,
        open_all(_files(output, "valid", languages) if hold_out else []) as valid,
        open_all(long_files) as long,
    ):
        for row in _read(inputs):
            pair = row[: len(languages)]
            shorter, longer = sorted(len(side.split()) for side in pair)
            if not shorter:
                left_out["with an empty side"] += 1
            elif max_tokens and longer > max_tokens:
                left_out[too_long] += 1
                if long_text:
                    _write(long, row)
            elif max_ratio and longer > max_ratio * shorter:
                left_out[f"with more than {max_ratio:g} times as many tokens on one side"] += 1
            else:
                kept += 1
                hold = hold_out > 0 and kept % hold_out == 0
                held_out += hold
                _write(valid if hold else train, pair)
        if kept == held_out or (hold_out and not held_out):
            raise RecipeError(f"{inputs[0]}: only {kept} pairs are left")
        if long_text and not left_out[too_long]:
            raise RecipeError(f"{inputs[0]}: no pair {too_long}, and so no long test set")
    for reason, count in left_out.items():
        log(f"train: left out {count:,} pairs {reason}")
    log(f"train: {kept - held_out:,} pairs")
    if hold_out:
        log(f"valid: {held_out:,} pairs")


def split_text(
    source: Path, output: Path, language: str, hold_out: int = 0, paragraphs: bool = False
) -> None:
    """Split a text without translation, as ``corpus clean`` describes; empty lines are kept."""
    keep_inputs(output, source)

    def texts(split: str) -> Iterator[str]:
        lines = (row[0] for row in _read(_files(source, split, [language])))
        return _paragraphs(lines) if paragraphs else lines

    if hold_out:
        total, rest = sum(1 for _ in texts("train")), texts("train")
        part = total // hold_out
        if not 0 < 2 * part < total:
            raise RecipeError(f"{source}: {total} texts cannot be split into parts of 1/{hold_out}")
        counts = {"train": total - 2 * part, "valid": part, "test": part}
        splits = {split: itertools.islice(rest, count) for split, count in counts.items()}
    else:
        splits = {split: texts(split) for split in ("train", "valid", "test")}
    for split, part_of_text in splits.items():
        paths = _files(output, split, [language])
        with open_all(paths) as handles:
            if not sum(_write(handles, [text]) for text in part_of_text):
                raise RecipeError(f"{paths[0]}: no text")


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines between empty lines, joined."""
    for has_text, group in itertools.groupby(lines, key=bool):
        if has_text:
            yield f" {LINE_BREAK} ".join(group)


def _files(folder: Path, split: str, languages: Iterable[str]) -> list[Path]:
    return [folder / f"{split}.{language}" for language in languages]


def _read(paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of parallel files together, with single spaces."""
    sides = [decode(read_lines(path.parent, path.name), path) for path in paths]
    for row in in_step(sides, paths):
        yield tuple(" ".join(line.split()) for line in row)


def _write(handles: Sequence[IO[str]], row: Sequence[str]) -> bool:
    """Write a line to each file; return whether any of them has text."""
    for handle, line in zip(handles, row, strict=True):
        handle.write(line + "\n")
    return any(row)
