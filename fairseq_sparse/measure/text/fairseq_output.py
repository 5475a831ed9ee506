"""Hypotheses in the output of fairseq-generate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of

# D-ID (as text) or H-ID (as tokens) <tab> score <tab> text
HYPOTHESIS = {kind: re.compile(rf"{kind}-(\d+)\t[^\t]*\t(.*)") for kind in "DH"}


def read_hypotheses(path: Path, kind: str = "D") -> list[list[str]]:
    """Read all hypotheses of each sentence, in the order of the test set.

    Args:
        path: the output of one fairseq-generate, or of several, one after the other.
        kind: ``D``, detokenised text, or ``H``, tokens.

    Returns:
        The hypotheses of each sentence, in the order in which they were printed.

    Raises:
        AnalysisError: there are no hypotheses, or a sentence has none.
        OSError: the file cannot be read.
        ValueError: it is not in UTF-8.
    """
    found: dict[int, list[str]] = {}
    for line in lines_of(path):
        if match := HYPOTHESIS[kind].fullmatch(line.rstrip("\r")):
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


def read_samples(paths: Sequence[Path]) -> list[list[str]]:
    """Read the samples of each sentence from several runs over the same sentences.

    Args:
        paths: outputs of ``fairseq-generate --sampling``, with different seeds.

    Raises:
        AnalysisError: two runs have the same samples, or different numbers of sentences; or as
            :func:`read_hypotheses`.
        OSError, ValueError: as :func:`read_hypotheses`.
    """
    runs = [read_hypotheses(path) for path in paths]
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
