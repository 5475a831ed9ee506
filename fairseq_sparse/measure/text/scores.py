"""Corpus scores of translations by sacreBLEU, with its paired test of the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.text import TRIALS


@dataclass(frozen=True)
class Scores:
    """The scores of several systems by one metric.

    Attributes:
        metric: sacreBLEU's name of the metric, such as ``chrF2``.
        signature: sacreBLEU's signature, with the settings of the paired test if there was one.
        scores: one for each system.
        p: the p-value of each system but the first, tested against the first.
    """

    metric: str
    signature: str
    scores: list[float]
    p: list[float]


def make_metric(name: str, tokenize: str = BLEU.TOKENIZER_DEFAULT) -> Metric:
    """Return a metric with sacreBLEU's defaults.

    Args:
        name: ``bleu``, ``chrf`` or ``ter``.
        tokenize: BLEU's tokenizer; ``none`` takes the text as it is.

    Raises:
        AnalysisError: sacreBLEU has no such tokenizer, or not what it needs.
    """
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise AnalysisError(f"--tokenize {tokenize}: sacreBLEU has {known}")
    if name == "bleu":
        try:  # force: no warning that these are tokens
            return BLEU(tokenize=tokenize, force=tokenize == "none")
        except (RuntimeError, ImportError) as error:
            raise AnalysisError(f"--tokenize {tokenize}: {error}") from error
    return CHRF() if name == "chrf" else TER()


def score_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    metrics: Sequence[Metric],
    trials: int = TRIALS,
) -> list[Scores]:
    """Score systems by each metric, and test each of them against the first.

    The test is that of ``sacrebleu --paired-ar``, approximate randomisation: in each trial the two
    systems exchange the translations of a random half of the sentences; p is (n + 1) / (trials + 1)
    with the n trials whose difference in score, in either direction, is larger than the one found
    (Riezler and Maxwell 2005). sacreBLEU's paired bootstrap is not used: its p counts one
    direction, the one observed, and is about half of this one. The random numbers start at
    ``SACREBLEU_SEED``, 12345 by default.

    sacreBLEU does not count a trial whose difference is as large. But of the 2^k ways to exchange
    k translations that differ, all and none have the difference found, so p is at least 2^(1 - k)
    here, and 1 for equal scores.

    Args:
        systems: the translations of each system.
        references: one or several references, each with a text for each translation.
        metrics: sacreBLEU's metrics.
        trials: number of random exchanges.
    """
    if len(systems) == 1:
        scores = [metric.corpus_score(systems[0], references) for metric in metrics]
        return [
            Scores(score.name, str(metric.get_signature()), [score.score], [])
            for metric, score in zip(metrics, scores, strict=True)
        ]
    named = [(str(number), list(texts)) for number, texts in enumerate(systems)]
    keyed = {str(number): metric for number, metric in enumerate(metrics)}
    signatures, found = PairedTest(named, keyed, references, "ar", trials)()
    differing = [sum(map(str.__ne__, systems[0], texts)) for texts in systems[1:]]
    return [
        Scores(
            name,
            str(signature),
            [result.score for result in found[name]],
            [
                1.0
                if result.score == found[name][0].score
                else max(result.p_value, 2.0 ** (1 - count))
                for result, count in zip(found[name][1:], differing, strict=True)
            ],
        )
        for name, signature in signatures.items()
    ]


def as_json(names: Sequence[str], found: Sequence[Scores]) -> dict[str, Any]:
    """Return scores and p-values by system and metric, and signatures by metric."""
    return {
        "scores": {
            name: {each.metric: each.scores[place] for each in found}
            for place, name in enumerate(names)
        },
        "p": {
            name: {each.metric: each.p[place] for each in found}
            for place, name in enumerate(names[1:])
        },
        "signatures": {each.metric: each.signature for each in found},
    }


def score_table(names: Sequence[str], found: Sequence[Scores]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the scores, with p beside each."""
    header, rows = ["system"], [[name] for name in names]
    for each in found:
        header += [each.metric, "p"] if each.p else [each.metric]
        for row, score, p in zip(rows, each.scores, [None, *each.p, None], strict=False):
            row.append(f"{score:.2f}")
            if each.p:
                row.append("" if p is None else f"{p:.2g}")
    return header, rows


def signatures(found: Sequence[Scores]) -> str:
    """Return sacreBLEU's signatures, one per line."""
    return "\n".join(f"{each.metric}: {each.signature}" for each in found)
