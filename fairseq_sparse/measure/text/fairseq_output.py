"""Translations and samples in the output of fairseq-generate, or in plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of

# D-ID (as text) or H-ID (as tokens) <tab> score <tab> text
HYPOTHESIS = {kind: re.compile(rf"{kind}-(\d+)\t[^\t]*\t(.*)") for kind in "DH"}
# A message of fairseq's log, in the format of fairseq or, if that was set up too late, of Python.
_MESSAGE = re.compile(r"(?:[A-Z]+:| \| [A-Z]+ \| )fairseq[\w.]*(?::| \| )")
STDIN = Path("/dev/stdin")


def sort_hypotheses(path: Path, lines: Sequence[str], kind: str = "D") -> list[list[str]]:
    """Return all hypotheses of each sentence, in the order of the test set.

    Args:
        path: the file, for messages.
        lines: the output of one fairseq-generate, or of several, one after the other.
        kind: ``D``, detokenised text, or ``H``, tokens.

    Returns:
        The hypotheses of each sentence, in the order in which they were printed.

    Raises:
        AnalysisError: there are no hypotheses, or a sentence has none; or as :func:`check_whole`.
    """
    found: dict[int, list[str]] = {}
    for line in lines:
        if match := HYPOTHESIS[kind].fullmatch(line):
            check_whole(path, line)
            found.setdefault(int(match[1]), []).append(match[2])
    if not found:
        raise AnalysisError(
            f"{path}: no line that begins with {kind}-; is it fairseq-generate's output?"
        )
    missing = sorted(set(range(max(found) + 1)) - set(found))
    if missing:
        raise AnalysisError(
            f"{path}: no translation of {len(missing)} sentences, first {missing[0]}"
        )
    return [found[number] for number in range(len(found))]


def check_whole(path: Path, line: str) -> None:
    """Refuse a line that a message of the log has cut in two.

    With ``> FILE 2>&1``, a program writes what it prints in blocks, which end anywhere, but logs at
    once.

    Raises:
        AnalysisError: it has been.
    """
    if _MESSAGE.search(line):
        raise AnalysisError(
            f"{path}: a message of the log has cut a line in two: {line[:100]!r}; run "
            "fairseq-generate again with PYTHONUNBUFFERED=1 in its environment, or without 2>&1"
        )


def best_translations(path: Path, lines: Sequence[str]) -> list[str]:
    """Return the translation of each sentence, which fairseq-generate prints first.

    Lines without any ``D-ID`` or ``H-ID`` are plain text, with one translation per line.

    Raises:
        AnalysisError: as :func:`sort_hypotheses`, or there are no lines.
    """
    if not lines:
        raise AnalysisError(f"{path} is empty")
    if any(kind.fullmatch(line) for line in lines for kind in HYPOTHESIS.values()):
        return [hypotheses[0] for hypotheses in sort_hypotheses(path, lines)]
    return list(lines)


def read_translations(path: Path) -> list[str]:
    """Read the translations of a system as :func:`best_translations` does.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not in UTF-8.
        AnalysisError: as :func:`best_translations`.
    """
    return best_translations(path, lines_of(path))


def read_parallel(path: Path, count: int, translations: Path) -> list[str]:
    """Read the text that goes with translations, or other translations of the same sentences.

    Args:
        path: the file.
        count: number of translations.
        translations: their file, for the message.

    Raises:
        AnalysisError: there is another number of lines, or as :func:`read_translations`.
        OSError, ValueError: as :func:`read_translations`.
    """
    lines = read_translations(path)
    if len(lines) != count:
        raise AnalysisError(
            f"{translations} has {count} translations but {path} has {len(lines)} lines: they are "
            "not of the same test set"
        )
    return lines


def read_samples(paths: Sequence[Path]) -> list[list[str]]:
    """Read the samples of each sentence from several runs over the same sentences.

    Args:
        paths: outputs of ``fairseq-generate --sampling``, with different seeds.

    Raises:
        AnalysisError: two runs have the same samples, or different numbers of sentences; or as
            :func:`sort_hypotheses`.
        OSError, ValueError: as :func:`read_translations`.
    """
    runs = [sort_hypotheses(path, lines_of(path)) for path in paths]
    for number, run in enumerate(runs):
        if len(run) != len(runs[0]):
            raise AnalysisError(
                f"{paths[0]} has {len(runs[0])} sentences but {paths[number]} has {len(run)}"
            )
        # A model that gives a single translation probability 1 draws it with every seed.
        if run in runs[:number] and any(len(set(texts)) > 1 for texts in run):
            raise AnalysisError(
                f"{paths[number]} has the same samples as {paths[runs.index(run)]}: "
                "sample with another --seed"
            )
    return [[text for texts in sentence for text in texts] for sentence in zip(*runs, strict=True)]


def check_subwords(path: Path, texts: Sequence[str], references: Sequence[str]) -> None:
    """Refuse a text with marks of subwords, unless the references have them too.

    Raises:
        AnalysisError: only the text has them.
    """
    marks = re.compile("@@( |$)|(^| )\u2581")
    if any(map(marks.search, texts)) and not any(map(marks.search, references)):
        raise AnalysisError(
            f"{path} has subwords, not words (@@ or \u2581): join them, in translations by "
            "generating with --post-process subword_nmt or sentencepiece"
        )
