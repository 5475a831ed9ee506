"""sacreBLEU's paired test of the translations in finished runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, read_json
from fairseq_sparse.measure.text.scores import make_metric, score_systems


def paired_test(
    runs: Sequence[Path], references: Sequence[Path], trials: int
) -> tuple[list[float], str]:
    """Compare the first run's translations with those of each other run by :func:`score_systems`.

    Args:
        runs: two or more folders with ``hyp.detok.txt`` and ``bleu.json``; the first is the
            baseline.
        references: the text that they were scored with, one sentence per line; several files are
            several references.
        trials: number of random exchanges.

    Returns:
        The p-value of every run but the first, and sacreBLEU's signature of the test.

    Raises:
        AnalysisError: the runs were scored on other tokens than the baseline, or with another
            reference.
        OSError: a file is missing.
        ValueError: bleu.json is damaged.
    """
    scores = [read_json(run / "bleu.json") for run in runs]
    for run, score in zip(runs, scores, strict=True):
        if not {"bleu", "signature"} <= score.keys():
            raise AnalysisError(f"{run / 'bleu.json'} has no BLEU: run the stage generate again")
    tokens = {tokens_of(score["signature"]) for score in scores}
    if len(tokens) > 1:
        raise AnalysisError(
            f"the runs were scored on different tokens: {', '.join(sorted(tokens))}"
        )
    texts = list(map(lines_of, references))
    systems = [lines_of(run / "hyp.detok.txt") for run in runs]
    for run, translations in zip(runs, systems, strict=True):
        for path, lines in zip(references, texts, strict=True):
            if len(translations) != len(lines):
                raise AnalysisError(
                    f"{run} has {len(translations)} translations, {path} {len(lines)} lines"
                )
    (found,) = score_systems(systems, texts, [make_metric("bleu", tokens.pop())], trials)
    for run, score, now in zip(runs, scores, found.scores, strict=True):
        if abs(now - score["bleu"]) > 1e-6:
            raise AnalysisError(
                f"{run} has BLEU {score['bleu']:.2f} in bleu.json but {now:.2f} with "
                f"{', '.join(map(str, references))}: run its stage generate again"
            )
    return found.p, found.signature


def tokens_of(signature: str) -> str:
    """Return the name of BLEU's tokeniser in a signature of sacreBLEU."""
    match = re.search(r"(?:^|\|)tok:([^|]+)", signature)
    if not match:
        raise AnalysisError(f"no tokeniser in sacreBLEU's signature {signature!r}")
    return match[1]
