"""The text of a reproduced table: our figures, the paper's beside them, and the conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from fairseq_sparse.analysis.report.published import published_figure, read_published, scores_of
from fairseq_sparse.analysis.reproduction import Row
from fairseq_sparse.analysis.results import COLUMNS, cell, conditions

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Paper:
    """Which table is reproduced.

    Attributes:
        recipe: the paper, as ``examples/reproduce.sh`` calls it.
        title: paper and table.
        columns: of :data:`fairseq_sparse.analysis.results.COLUMNS`; the first is what it is about.
        note: what a reader must know.
    """

    recipe: str
    title: str
    columns: tuple[str, ...]
    note: str = ""


def dataset_table(paper: Paper, dataset: str, rows: Sequence[Row]) -> Table:
    """Header and rows of one data set; the first row is the baseline.

    A column that nobody has a figure for is left out, but for the first; the paper's figures stand
    behind ours, p behind BLEU, the ensemble's score behind the first column.
    """
    columns = [("", [row.title for row in rows])]
    if any(len(row.runs) > 1 for row in rows):
        columns.append(("seeds", [str(len(row.summaries)) for row in rows]))
    for name in paper.columns:
        heading = COLUMNS[name][0]
        ours = [row.cell(name, rows[0]) for row in rows]
        if name != paper.columns[0] and all(text == "-" for text in ours):
            continue
        columns.append((heading, ours))
        if name == paper.columns[0] and any(row.ensemble for row in rows):
            together = [cell(row.ensemble, name) if row.ensemble else "-" for row in rows]
            columns.append((f"{heading}, ensemble", together))
        theirs = _figures(paper, dataset, rows, name)
        if theirs:
            columns.append((f"{heading}, paper", theirs))
        if name == "bleu" and any(row.p for row in rows):
            columns.append(("p", [_p(row) for row in rows]))
    return _as_table(columns)


def _as_table(columns: Sequence[tuple[str, list[str]]]) -> Table:
    """Header and rows of columns with their headings."""
    lines = zip(*(cells for _, cells in columns), strict=True)
    return [heading for heading, _ in columns], [list(line) for line in lines]


def _figures(paper: Paper, dataset: str, rows: Sequence[Row], column: str) -> list[str]:
    """The paper's figures of a column, a row each; empty if it has none."""
    published = read_published()
    found = [published_figure(published, paper.recipe, dataset, row.name, column) for row in rows]
    return [figure or "-" for figure in found] if any(found) else []


def _p(row: Row) -> str:
    if not row.p:
        return "-"
    return " / ".join(f"{row.p[seed]:.3f}" if seed in row.p else "-" for seed in row.runs)


def overview(paper: Paper, datasets: dict[str, list[Row]]) -> Table:
    """The first column of all data sets side by side, each with the paper's figures.

    All data sets have the same rows.
    """
    name = paper.columns[0]
    first = next(iter(datasets.values()))
    columns = [(COLUMNS[name][0], [row.title for row in first])]
    for dataset, rows in datasets.items():
        columns.append((dataset, [row.cell(name, rows[0]) for row in rows]))
        theirs = _figures(paper, dataset, rows, name)
        if theirs:
            columns.append((f"{dataset}, paper", theirs))
    return _as_table(columns)


def paper_on_other_data(paper: Paper, datasets: Sequence[str]) -> list[tuple[str, Table, str]]:
    """Title, table and source of the paper's scores on data sets that are not ours."""
    found = []
    for table in scores_of(read_published(), paper.recipe, paper.columns[0]):
        places = [i for i, name in enumerate(table["datasets"]) if name not in datasets]
        if places:
            names = list(table["datasets"].values())
            header = ["", *(names[place] for place in places)]
            rows = [
                [row["name"], *(row["figures"][place] for place in places)] for row in table["rows"]
            ]
            source = f"{table['paper']}. {table['source']}."
            found.append((f"The paper's {table['score']} on other data", (header, rows), source))
    return found


def notes(paper: Paper, dataset: str, rows: Sequence[Row], signature: Optional[str]) -> list[str]:
    """What the figures are, and what they were measured with."""
    summaries = [summary for row in rows for summary in row.summaries.values()]
    seeds = list(rows[0].runs)
    lines = [f"seeds: {', '.join(map(str, seeds))}"]
    if len(seeds) > 1:
        lines[0] += "; ± is the standard deviation over them, with n - 1 in the denominator"
    planned = sum(len(row.runs) for row in rows)
    if len(summaries) < planned:
        lines.append(f"{len(summaries)} of {planned} runs are finished")
    settings = {run.settings for row in rows for run in row.runs.values()} - {""}
    if settings:
        lines.append(f"settings: {', '.join(sorted(settings))}")
    training = [summary["training"] for summary in summaries if "training" in summary]
    if training:
        updates = sorted({part["updates"] for part in training})
        lines.append(f"updates: {_range([f'{count:,}' for count in updates])}")
        hours = sorted(part["seconds"] / 3600 for part in training)
        each = _range([f"{hour:.2f}" for hour in hours])
        lines.append(f"budget: {each} hours of training a run, {sum(hours):.2f} in all")
    lines += [f"{label}: {text}" for label, text in conditions(summaries)]
    if signature:
        lines.append(
            f"p: sacreBLEU's paired bootstrap against {rows[0].title} with the same seed, one "
            f"value a seed ({signature})"
        )
    if any(column in paper.columns for column in ("sparsity", "null")):
        lines.append("attention: encoder / decoder / cross-attention")
    if any(column in paper.columns for column in ("words_per_second", "sentences_per_second")):
        lines.append(
            "speeds: from the logs, means over the seeds; in brackets the ratio to "
            f"{rows[0].title}. Runs that went on side by side, or on a busy machine, cannot be "
            "compared; scripts/benchmark measures in turns."
        )
    figures = _sources(paper, dataset, rows)
    if figures:
        lines.append(f"paper: {figures}")
    else:
        lines.append(
            f"paper: no figure of it for {dataset} is on record here; what could not be checked "
            "is left out"
        )
    if paper.note:
        lines.append(paper.note)
    return lines


def _sources(paper: Paper, dataset: str, rows: Sequence[Row]) -> str:
    """Where the paper's figures in the table are from."""
    published = read_published()
    tables = [
        table
        for name in paper.columns
        for table in scores_of(published, paper.recipe, name)
        if dataset in table["datasets"]
    ]
    tables += [
        table
        for table in published["tables"]
        if table.get("recipe") == paper.recipe and set(paper.columns) & set(table["columns"])
    ]
    texts = [f"{table['paper']}. {table['source']}" for table in tables]
    if any("datasets" not in table for table in tables):
        texts.append("its sizes and speeds are those of its own data and hardware")
    return "; ".join(dict.fromkeys(texts))


def _range(values: Sequence[str]) -> str:
    """The only value, or the first to the last of several in order."""
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
