"""The text of a reproduced table: our figures beside the paper's, and their conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from fairseq_sparse.analysis.runs.columns import (
    COLUMNS,
    Measure,
    cell,
    conditions,
    look_up,
    measure_of,
)
from fairseq_sparse.analysis.runs.published import (
    Figure,
    differences,
    find_figure,
    published_text,
    read_published,
    sources,
)
from fairseq_sparse.analysis.runs.rows import Row

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Paper:
    """The table to reproduce.

    Attributes:
        recipe: the paper's name in ``examples/reproduce.sh``.
        title: paper and table.
        columns: names in ``columns.py``; the first is the table's main figure.
        note: a note for the reader.
        table: the paper's table to show as a whole, by its name in ``published.json``; empty: all
            its tables with the metric of the first column.
    """

    recipe: str
    title: str
    columns: tuple[str, ...]
    note: str = ""
    table: str = ""


def dataset_table(paper: Paper, dataset: str, rows: Sequence[Row]) -> Table:
    """Return header and rows of one data set; the first row is the baseline.

    A column without any figure is left out, except for the first. The paper's figures follow ours,
    p follows BLEU, and the ensemble's score follows the first column.
    """
    columns = [("", [row.title for row in rows])]
    if any(len(row.runs) > 1 for row in rows):
        columns.append(("seeds", [str(len(row.summaries)) for row in rows]))
    for name in paper.columns:
        heading = COLUMNS[name].heading
        ours = [row.cell(name, rows[0]) for row in rows]
        if name != paper.columns[0] and all(text == "-" for text in ours):
            continue
        columns.append((heading, ours))
        if name == paper.columns[0] and any(row.ensemble for row in rows):
            together = [cell(row.ensemble, name) if row.ensemble else "-" for row in rows]
            if any(text != "-" for text in together):
                columns.append((f"{heading}, ensemble", together))
            theirs = _ensembles(paper, dataset, rows, name)
            if theirs:
                columns.append((f"{heading}, ensemble, paper", theirs))
        theirs = _figures(paper, dataset, rows, name)
        if theirs:
            columns.append((f"{heading}, paper", theirs))
        if name == "bleu" and any(row.p for row in rows):
            columns.append(("p", [_p(row) for row in rows]))
    return _as_table(columns)


def _as_table(columns: Sequence[tuple[str, list[str]]]) -> Table:
    """Return header and rows of columns with their headings."""
    lines = zip(*(cells for _, cells in columns), strict=True)
    return [heading for heading, _ in columns], [list(line) for line in lines]


def _measure(rows: Sequence[Row], column: str) -> Optional[Measure]:
    """Return the measure of a column, or None if the runs that have it do not agree."""
    path = COLUMNS[column].path
    found = {
        measure_of(summary, column)
        for row in rows
        for summary in row.summaries.values()
        if look_up(summary, path) is not None
    }
    return found.pop() if len(found) == 1 else None


def _figures(paper: Paper, dataset: str, rows: Sequence[Row], column: str) -> list[str]:
    """Return the paper's figures of a column, one per row; empty if none is measured as ours."""
    measure = _measure(rows, column)
    if measure is None:
        return []
    found = [published_text(paper.recipe, dataset, row.name, measure) for row in rows]
    return [figure or "-" for figure in found] if any(found) else []


def _ensembles(paper: Paper, dataset: str, rows: Sequence[Row], column: str) -> list[str]:
    """Return the paper's figures of ensembles, as :func:`_figures`."""
    measure = _measure(rows, column)
    if measure is None:
        return []
    found = [find_figure(paper.recipe, dataset, row.name, measure, ["ensemble"]) for row in rows]
    return [figure.text if figure else "-" for figure in found] if any(found) else []


def _p(row: Row) -> str:
    if not row.p:
        return "-"
    return " / ".join(f"{row.p[seed]:.3f}" if seed in row.p else "-" for seed in row.runs)


def overview(paper: Paper, datasets: dict[str, list[Row]]) -> Table:
    """Return the first column of all data sets side by side, each with the paper's figures.

    All data sets have the same rows.
    """
    name = paper.columns[0]
    first = next(iter(datasets.values()))
    columns = [(COLUMNS[name].heading, [row.title for row in first])]
    for dataset, rows in datasets.items():
        columns.append((dataset, [row.cell(name, rows[0]) for row in rows]))
        theirs = _figures(paper, dataset, rows, name)
        if theirs:
            columns.append((f"{dataset}, paper", theirs))
    return _as_table(columns)


def paper_elsewhere(paper: Paper, datasets: dict[str, list[Row]]) -> list[tuple[str, Table, str]]:
    """Return title, table and source of the paper's figures that are not shown beside ours.

    They are from the chosen table, or from all tables with the metric of the first column.
    """
    metrics = {
        measure.metric
        for rows in datasets.values()
        if (measure := _measure(rows, paper.columns[0]))
    }
    if metrics & {"bleu", "tokenized_bleu"}:
        metrics |= {"bleu", "tokenized_bleu"}
    found = []
    for table in read_published():
        places = [
            place
            for place, column in enumerate(table["columns"])
            if (table["table"] == paper.table if paper.table else column["metric"] in metrics)
            and not _beside(paper, column, datasets.get(column["dataset"], []))
        ]
        if table["recipe"] == paper.recipe and places:
            header = ["", *(table["columns"][place]["heading"] for place in places)]
            rows = [
                [row["name"], *(row["figures"][place] or "-" for place in places)]
                for row in table["rows"]
                if "metric" not in row
            ]
            title = f"{table['table']} of the paper"
            if not paper.table:
                title += ", on other data or measured otherwise"
            found.append((title, (header, rows), f"{table['title']}. {table['paper']}."))
    return found


def _beside(paper: Paper, column: dict, rows: Sequence[Row]) -> bool:
    """Return whether a column of a paper's table can stand beside ours."""
    theirs = Measure(column["metric"], column["split"], column.get("languages"))
    return any(_measure(rows, name) == theirs for name in paper.columns)


def notes(paper: Paper, dataset: str, rows: Sequence[Row], signature: Optional[str]) -> list[str]:
    """Return notes on the figures and on the conditions of their measurement."""
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
        lines.append(f"training time: {each} hours per run, {sum(hours):.2f} in total")
    lines += [f"{label}: {text}" for label, text in conditions(summaries)]
    if signature and "bleu" in paper.columns:
        lines.append(
            f"p: sacreBLEU's paired bootstrap against {rows[0].title} with the same seed, one "
            f"value per seed ({signature})"
        )
    if any(column in paper.columns for column in ("sparsity", "null")):
        lines.append("attention: encoder / decoder / cross-attention")
    if any(column in paper.columns for column in ("words_per_second", "sentences_per_second")):
        lines.append(
            "speeds: from the logs, means over the seeds; in brackets the ratio to "
            f"{rows[0].title}. Runs that shared a machine with each other or with other work "
            "cannot be compared; scripts/benchmark measures in turns."
        )
    return lines + _about_the_paper(paper, dataset, rows) + ([paper.note] if paper.note else [])


def _about_the_paper(paper: Paper, dataset: str, rows: Sequence[Row]) -> list[str]:
    """Return the sources of the paper's figures in the table, and why others are not in it; nothing
    if the table is not a paper's."""
    if all(table["recipe"] != paper.recipe for table in read_published()):
        return []
    lines = [f"paper: {source}" for source in sources(_beside_ours(paper, dataset, rows))]
    if lines and {"words_per_second", "sentences_per_second", "hours"} & set(paper.columns):
        lines.append("the paper's times and speeds are those of its own hardware")
    if not lines:
        lines.append(f"paper: it has no figure for {dataset} that is measured in the same way")
    measures = filter(None, (_measure(rows, name) for name in paper.columns))
    return lines + differences(paper.recipe, dataset, measures)


def _beside_ours(paper: Paper, dataset: str, rows: Sequence[Row]) -> list[Figure]:
    """Return all of the paper's figures that stand in the table."""
    found = [
        find_figure(paper.recipe, dataset, row.name, measure, ["value", "mean", "ensemble"])
        for name in paper.columns
        if (measure := _measure(rows, name))
        for row in rows
    ]
    return [figure for figure in found if figure]


def _range(values: Sequence[str]) -> str:
    """Return the range of sorted values as text, or a single value if all are equal."""
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
