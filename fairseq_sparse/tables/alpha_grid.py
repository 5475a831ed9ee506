"""Tables over a grid of alphas, of the output and of the attention, with several seeds.

Table 1 of "Sparse Sequence-to-Sequence Models" (Peters, Niculae, Martins 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import write_json, write_text
from fairseq_sparse.tables.columns import conditions, look_up
from fairseq_sparse.tables.formats import format_table
from fairseq_sparse.tables.rows import Row

# Possible scores of a run: heading, path in summary.json
SCORES = (("word accuracy (%)", "inflection.accuracy"), ("BLEU", "bleu.bleu"))


def write(title: str, rows: Sequence[Row], stem: Path) -> str:
    """Write the tables as STEM.md and their figures as STEM.json, and return the Markdown.

    Raises:
        AnalysisError: the runs have no score.
    """
    parts = [f"# {title}", *(f"{heading}\n\n{table}" for heading, table in tables(rows))]
    summaries = [summary for row in rows for summary in row.summaries.values()]
    parts += [f"{label}: {value}" for label, value in conditions(summaries)]
    text = "\n\n".join(parts) + "\n"
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_text(stem.with_name(f"{stem.name}.md"), text)
    write_json(stem.with_name(f"{stem.name}.json"), as_json(title, rows))
    return text


def score_of(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the entry of ``SCORES`` by which the runs were scored.

    Raises:
        AnalysisError: the runs have no score.
    """
    for heading, path in SCORES:
        if any(row.values_at(path) for row in rows):
            return heading, path
    raise AnalysisError("the runs have no score: run the stages generate and analyze")


def tables(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Make titles and Markdown tables, with the alphas of the output as columns.

    They show the scores of single models (mean ± standard deviation over the seeds) and ensembles;
    then, for single models, the numbers of tokens and of source positions with nonzero weight, on
    the test set, teacher-forced.
    """
    heading, path = score_of(rows)
    result = [(f"{heading}, single models", _table(rows, path))]
    if any(row.ensemble for row in rows):
        result.append((f"{heading}, ensembles of the seeds", _ensembles(rows, path)))
    for title, path in (
        ("Nonzero probabilities at a step", "test.nonzeros"),
        ("Nonzero weights of the attention to the source", "attention.cross.nonzeros"),
    ):
        if any(row.values_at(path) for row in rows):
            result.append((title, _table(rows, path)))
    return result


def _table(rows: Sequence[Row], path: str) -> str:
    return _grid(rows, lambda row: _mean(row.values_at(path)))


def _ensembles(rows: Sequence[Row], path: str) -> str:
    def text(row: Row) -> str:
        value = look_up(row.ensemble or {}, path)
        return "-" if value is None else f"{value:.2f}"

    return _grid(rows, text)


def _grid(rows: Sequence[Row], text: Callable[[Row], str]) -> str:
    outputs = sorted({row.alphas[0] for row in rows})
    by_alphas = {row.alphas: text(row) for row in rows}
    lines = [
        [f"{attention:g}", *(by_alphas.get((output, attention), "-") for output in outputs)]
        for attention in sorted({row.alphas[1] for row in rows})
    ]
    return format_table(["α attention \\ α output", *(f"{alpha:g}" for alpha in outputs)], lines)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread} ({len(values)})"


def as_json(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of :func:`tables`, by seed."""
    heading, path = score_of(rows)
    paths = {
        "score": path,
        "nonzeros": "test.nonzeros",
        "attention_nonzeros": "attention.cross.nonzeros",
    }
    grid = [
        {
            "output_alpha": row.alphas[0],
            "attention_alpha": row.alphas[1],
            "seeds": {
                seed: {name: look_up(summary, place) for name, place in paths.items()}
                for seed, summary in row.summaries.items()
            },
            "ensemble": look_up(row.ensemble or {}, path),
        }
        for row in rows
    ]
    return {"title": title, "score": heading, "grid": grid}
