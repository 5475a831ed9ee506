"""Tables over a grid of alphas, of the output and of the attention, with several seeds.

Table 1 of "Sparse Sequence-to-Sequence Models" (Peters, Niculae, Martins 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.tables.columns import COLUMNS, Column, conditions, look_up
from fairseq_sparse.tables.formats import Page, Part
from fairseq_sparse.tables.rows import Row, as_json

# Columns that a grid can show, in order of preference.
SCORES = ("word_accuracy", "bleu")


def score_of(rows: Sequence[Row]) -> Column:
    """Return the column by which the runs were scored.

    Raises:
        AnalysisError: the runs have no score.
    """
    for name in SCORES:
        if any(row.values(name) for row in rows):
            return COLUMNS[name]
    raise AnalysisError("the runs have no score: run the stages generate and analyze")


def make(title: str, rows: Sequence[Row]) -> Page:
    """Make the tables, with the alphas of the output as columns.

    They show the scores of single models (mean ± standard deviation over the seeds) and ensembles;
    then, for single models, the numbers of tokens and of source positions with nonzero weight, on
    the test set, teacher-forced.

    Raises:
        AnalysisError: the runs have no score, or a model is not alpha-entmax.
    """
    score = score_of(rows)

    def mean(path: str) -> Callable[[Row], str]:
        return lambda row: _mean(row.values_at(path))

    def together(row: Row) -> str:
        value = look_up(row.ensemble or {}, score.path)
        return "-" if value is None else f"{value:.2f}"

    tables = {
        f"{score.heading}, single models": mean(score.path),
        f"{score.heading}, ensembles of the seeds": together,
        "Nonzero probabilities at a step": mean("test.nonzeros"),
        "Nonzero weights of the attention to the source": mean("attention.cross.nonzeros"),
    }
    parts = [
        _grid(heading, rows, text)
        for heading, text in tables.items()
        if any(text(row) != "-" for row in rows)
    ]
    summaries = [summary for row in rows for summary in row.summaries.values()]
    notes = [f"{label}: {value}" for label, value in conditions(summaries)]
    parts[-1] = parts[-1]._replace(notes=notes)
    return Page(
        title, parts, {"title": title, "grid": as_json(rows, [*SCORES, "nonzeros", "attended"])}
    )


def _grid(heading: str, rows: Sequence[Row], text: Callable[[Row], str]) -> Part:
    outputs = sorted({row.alphas[0] for row in rows})
    cells = {row.alphas: text(row) for row in rows}
    lines = [
        [f"{attention:g}", *(cells.get((output, attention), "-") for output in outputs)]
        for attention in sorted({row.alphas[1] for row in rows})
    ]
    return Part(heading, ["α attention \\ α output", *(f"{alpha:g}" for alpha in outputs)], lines)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread} ({len(values)})"
