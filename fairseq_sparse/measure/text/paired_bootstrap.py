"""sacreBLEU's paired test of whether translations differ in score by more than chance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, read_json


def paired_bootstrap(
    runs: Sequence[Path], reference: Path, samples: int
) -> tuple[list[float], str]:
    """Compare the first run's translations with those of each other run by :func:`paired_test`.

    Args:
        runs: two or more folders with ``hyp.detok.txt`` and ``bleu.json``; the first is the
            baseline.
        reference: the text that they were scored with, one sentence per line.
        samples: number of draws.

    Returns:
        The p-value of every run but the first, and sacreBLEU's signature of the test.

    Raises:
        AnalysisError: the runs were scored on other tokens than the baseline, or with another
            reference.
        OSError: a file is missing.
        ValueError: bleu.json is damaged.
    """
    scores = [read_json(run / "bleu.json") for run in runs]
    tokens = {_tokens(score["signature"]) for score in scores}
    if len(tokens) > 1:
        raise AnalysisError(
            f"the runs were scored on different tokens: {', '.join(sorted(tokens))}"
        )
    references = lines_of(reference)
    systems = [lines_of(run / "hyp.detok.txt") for run in runs]
    for run, translations in zip(runs, systems, strict=True):
        if len(translations) != len(references):
            raise AnalysisError(
                f"{run} has {len(translations)} translations, {reference} {len(references)} lines"
            )
    metric = BLEU(tokenize=tokens.pop(), force=True)  # force: no warning that these are tokens
    found, signatures = paired_test(systems, references, [metric], samples)
    results = found["BLEU"]
    for run, score, result in zip(runs, scores, results, strict=True):
        if abs(result.score - score["bleu"]) > 1e-6:
            raise AnalysisError(
                f"{run} has BLEU {score['bleu']:.2f} in bleu.json but {result.score:.2f} with "
                f"{reference}: run its stage generate again"
            )
    return [result.p_value for result in results[1:]], signatures["BLEU"]


def paired_test(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    metrics: Sequence[Metric],
    samples: int,
) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """Compare the first system's translations with those of each other system.

    The test is that of ``sacrebleu --paired-bs``: the sentences of the test set are resampled with
    replacement, the same for both systems; p is the share of draws whose difference in score
    exceeds the mean of all by more than the difference on the test set itself (Koehn 2004). The
    random numbers start at ``SACREBLEU_SEED``, 12345 by default.

    Args:
        systems: the translations of two or more systems; the first is the baseline.
        references: one for each translation.
        metrics: sacreBLEU's metrics.
        samples: number of draws.

    Returns:
        sacreBLEU's results by the metric's name (``BLEU``, ``chrF2``), one per system, with
        ``score`` and ``p_value``; and the signatures of the tests.
    """
    named = [(str(number), list(translations)) for number, translations in enumerate(systems)]
    by_number = {str(number): metric for number, metric in enumerate(metrics)}
    signatures, found = PairedTest(named, by_number, [references], "bs", samples)()
    return (
        {name: found[name] for name in signatures},
        {name: str(signature) for name, signature in signatures.items()},
    )


def _tokens(signature: str) -> str:
    match = re.search(r"(?:^|\|)tok:([^|]+)", signature)
    if not match:
        raise AnalysisError(f"no tokeniser in sacreBLEU's signature {signature!r}")
    return match[1]
