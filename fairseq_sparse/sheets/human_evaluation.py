"""Scores of systems and agreement of annotators, from the sheets that they filled in."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Optional

from fairseq_sparse.sheets.annotation_sheets import (
    ANNOTATORS,
    REFERENCE,
    SCALE,
    Judgement,
    Sheets,
)

Scores = Mapping[str, Mapping[str, Optional[Judgement]]]  # annotator -> id of a row -> score
# The value of a plus or minus behind a grade, where marks count.
MARK = 1 / 3


def cohen_kappa(
    first: Sequence[Any],
    second: Sequence[Any],
    categories: Sequence[Any],
    quadratic: bool = False,
) -> Optional[float]:
    """Return the agreement of two annotators beyond that expected by chance.

    Cohen (1960), "A Coefficient of Agreement for Nominal Scales", and (1968), "Weighted Kappa":

        kappa = 1 - sum_ij w_ij o_ij / sum_ij w_ij e_ij

    with o_ij the number of items that are i for the first annotator and j for the second, e_ij the
    number expected if they judged independently, each with their own frequencies, and w_ij 1 for
    i != j, else 0.

    Args:
        first, second: their scores of the same items.
        categories: all possible scores.
        quadratic: w_ij = (i - j)^2 instead, for scores that are numbers.

    Returns:
        Kappa, at most 1; None if undefined: without items, or if all scores are the same.
    """
    observed = Counter(zip(first, second, strict=True))
    rows, columns = Counter(first), Counter(second)
    apart = by_chance = 0.0
    for i in categories:
        for j in categories:
            weight = (i - j) ** 2 if quadratic else float(i != j)
            apart += weight * observed[i, j]
            by_chance += weight * rows[i] * columns[j] / max(len(first), 1)
    return 1 - apart / by_chance if by_chance else None


def summarize(sheets: Sheets, scores: Scores) -> dict[str, Any]:
    """Summarize the scores of the systems and the agreement of the annotators.

    "Speeding Up Entmax" does not say how + and - enter its figures. Here, ``mean``, ``deviation``
    and kappa use the grades alone; ``marked_mean`` and ``marked_deviation`` count a mark as a third
    of a grade, and for ``marked_kappa`` each grade with each mark is a category.

    A translation given by several systems counts for each of them, but once for the agreement. For
    both annotators together, all judgements are pooled, so that a shared sentence counts twice.

    Returns:
        ``systems``: for each system, the best first and the reference at the end, and for each
        annotator and ``both``, ``mean``, ``deviation`` (of the sample; None for fewer than two
        scores), ``marked_mean``, ``marked_deviation`` and ``judgements``, their number.
        ``missing``: the number of rows without a score, by annotator. ``agreement``, on the
        translations that both judged: their number ``translations``, ``same`` (the share of them
        with the same grade), ``kappa``, ``quadratic_kappa`` and ``marked_kappa``; the last four are
        None where not defined.
    """
    scores = {annotator: scores.get(annotator, {}) for annotator in ANNOTATORS}
    judged: dict[str, dict[str, list[Judgement]]] = {}
    for annotator in ANNOTATORS:
        for row in sheets[annotator]:
            for system in row.systems:
                lists = judged.setdefault(system, {name: [] for name in (*ANNOTATORS, "both")})
                if (score := scores[annotator].get(row.id)) is not None:
                    lists[annotator].append(score)
                    lists["both"].append(score)
    systems = {
        system: {who: _statistics(values) for who, values in lists.items()}
        for system, lists in judged.items()
    }
    ranked = sorted(
        systems, key=lambda name: (name == REFERENCE, -(systems[name]["both"]["mean"] or 0), name)
    )
    return {
        "systems": {system: systems[system] for system in ranked},
        "missing": {
            annotator: sum(given.get(row.id) is None for row in sheets[annotator])
            for annotator, given in scores.items()
        },
        "agreement": _agreement(sheets, scores),
    }


def scores_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return header and rows of the systems' scores."""
    rows = []
    for system, figures in summary["systems"].items():
        cells = [figures[who] for who in (*ANNOTATORS, "both")]
        rows.append([system, *map(_mean_and_deviation, cells), figures["both"]["judgements"]])
    return ["system", "annotator 1", "annotator 2", "both", "judgements"], rows


def notes(summary: Mapping[str, Any]) -> list[str]:
    """Return paragraphs on the scores, on the agreement of the annotators and on empty rows."""
    agreement = summary["agreement"]
    lines = [
        f"Mean score ± standard deviation, from {min(SCALE)} (worst) to {max(SCALE)}, without + "
        "and -; in brackets the mean if these count a third.",
        _agreement_text(agreement) if agreement["translations"] else "Nothing was judged by both.",
    ]
    missing = [f"{count} of {name}" for name, count in summary["missing"].items() if count]
    return [*lines, f"Rows without a score: {', '.join(missing)}."] if missing else lines


def _statistics(scores: Sequence[Judgement]) -> dict[str, Any]:
    grades = [score.grade for score in scores]
    marked = [score.grade + MARK * score.mark for score in scores]
    return {
        "mean": fmean(grades) if scores else None,
        "deviation": stdev(grades) if len(scores) > 1 else None,
        "marked_mean": fmean(marked) if scores else None,
        "marked_deviation": stdev(marked) if len(scores) > 1 else None,
        "judgements": len(scores),
    }


def _agreement(sheets: Sheets, scores: Scores) -> dict[str, Any]:
    by_text = [
        {
            (row.sentence, row.translation): score
            for row in sheets[annotator]
            if (score := scores[annotator].get(row.id)) is not None
        }
        for annotator in ANNOTATORS
    ]
    both = sorted(by_text[0].keys() & by_text[1].keys())
    marked = [[judged[text] for text in both] for judged in by_text]
    first, second = ([score.grade for score in scores] for scores in marked)
    same = [a == b for a, b in zip(first, second, strict=True)]
    categories = [Judgement(grade, mark) for grade in SCALE for mark in (-1, 0, 1)]
    return {
        "translations": len(both),
        "same": fmean(same) if same else None,
        "kappa": cohen_kappa(first, second, list(SCALE)),
        "quadratic_kappa": cohen_kappa(first, second, list(SCALE), quadratic=True),
        "marked_kappa": cohen_kappa(*marked, categories),
    }


def _mean_and_deviation(figures: Mapping[str, Any]) -> str:
    if figures["mean"] is None:
        return "-"
    deviation = "" if figures["deviation"] is None else f" ± {figures['deviation']:.2f}"
    return f"{figures['mean']:.2f}{deviation} ({figures['marked_mean']:.2f})"


def _agreement_text(agreement: Mapping[str, Any]) -> str:
    text = (
        f"{agreement['translations']} translations were judged by both: the same grade for "
        f"{100 * agreement['same']:.1f}%"
    )
    marked = agreement["marked_kappa"]
    of_marks = "" if marked is None else f", of the scores with + and - {marked:.3f}"
    if agreement["kappa"] is None:
        return f"{text}. Cohen's κ is not defined, because every grade is the same{of_marks}."
    return (
        f"{text}, Cohen's κ {agreement['kappa']:.3f}, with quadratic weights "
        f"{agreement['quadratic_kappa']:.3f}{of_marks}."
    )
