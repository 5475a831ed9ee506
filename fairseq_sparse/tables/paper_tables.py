"""A table of runs: our figures beside the paper's, their conditions, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.text import TRIALS
from fairseq_sparse.tables.columns import (
    COLUMNS,
    SPEEDS,
    Quantity,
    cell,
    conditions,
    look_up,
    quantity_of,
)
from fairseq_sparse.tables.formats import Page, Part
from fairseq_sparse.tables.published import (
    BLEU,
    Figure,
    differences,
    find_figure,
    published_text,
    read_published,
)
from fairseq_sparse.tables.rows import Row, as_json, compare_with_baseline
from fairseq_sparse.tables.sentences import number_text

if TYPE_CHECKING:
    from fairseq_sparse.recipes.tables import Table


def make(
    table: Table,
    datasets: dict[str, list[Row]],
    references: dict[str, Sequence[Path]],
    trials: int = TRIALS,
) -> tuple[Page, list[str]]:
    """Make a table, with the paper's figures that are not beside ours below it.

    Args:
        datasets: the rows of each data set.
        references: the texts that the test set of each data set is scored with.

    Returns:
        the page, and messages about what could not be tested.

    Raises:
        AnalysisError: no run is finished.
    """
    if not any(row.summaries for rows in datasets.values() for row in rows):
        raise AnalysisError("no run of the table is finished")
    parts = [overview(table, datasets)] if len(datasets) > 1 else []
    content: dict[str, Any] = {}
    messages = []
    for dataset, rows in datasets.items():
        signature, missing = compare_with_baseline(rows, references[dataset], trials)
        messages += [f"{dataset}: {message}" for message in missing]
        header, cells = dataset_table(table, dataset, rows)
        lines = [*notes(table, dataset, rows, signature), *missing]
        parts.append(Part(dataset, header, cells, lines))
        numbers = as_json(rows, table.columns)
        content[dataset] = {"header": header, "cells": cells, "notes": lines, "rows": numbers}
    facts = {name: getattr(table, name) for name in ("paper", "name", "title", "columns")}
    parts += paper_elsewhere(table, datasets)
    return Page(table.title, parts, {**facts, "datasets": content}), messages


def draw_all(table: Table, datasets: dict[str, list[Row]], stem: Path) -> list[str]:
    """Draw the pictures of a table, see :func:`draw`."""
    messages = []
    for dataset, rows in datasets.items():
        place = stem.with_name(f"{stem.name}-{dataset}") if len(datasets) > 1 else stem
        messages += draw(rows, table.pictures, table.columns[0], table.early, place)
    return messages


def draw(
    rows: Sequence[Row], names: Sequence[str], score: str, early: float, stem: Path
) -> list[str]:
    """Draw STEM-NAME.png and .svg for each name; return messages about those without figures."""
    from fairseq_sparse.plots.curves import draw_picture
    from fairseq_sparse.plots.pictures import require_matplotlib, save_figure

    messages = []
    for name in names:
        try:
            require_matplotlib()
            figure = draw_picture(rows, name, score, early)
        except AnalysisError as error:
            messages.append(f"no picture {stem.name}-{name}: {error}")
        else:
            for suffix in ("png", "svg"):
                save_figure(figure, stem.with_name(f"{stem.name}-{name}.{suffix}"))
    return messages


def dataset_table(
    table: Table, dataset: str, rows: Sequence[Row]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of one data set; the first row is the baseline.

    A column without any figure is left out, except for the first. The paper's figures follow ours,
    p follows BLEU, and the ensemble's score follows the first column.
    """
    columns = {"": [row.title for row in rows]}
    if any(len(row.runs) > 1 for row in rows):
        columns["seeds"] = [str(len(row.summaries)) for row in rows]
    for number, name in enumerate(table.columns):
        heading = COLUMNS[name].heading
        found = {heading: [row.cell(name, rows[0]) for row in rows]}
        if number == 0 and any(row.ensemble for row in rows):
            together = [cell(row.ensemble, name) if row.ensemble else "-" for row in rows]
            found[f"{heading}, ensemble"] = together
            theirs = _beside(table, dataset, rows, name, ["ensemble"])
            found[f"{heading}, ensemble, paper"] = [x.text if x else "-" for x in theirs]
        found[f"{heading}, paper"] = _paper_cells(table, dataset, rows, name)
        if name == "bleu":
            found["p"] = [_p(row) for row in rows]
        columns |= {
            text: cells
            for text, cells in found.items()
            if set(cells) != {"-"} or number == 0 and text == heading
        }
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def _quantity(rows: Sequence[Row], column: str) -> Optional[Quantity]:
    """Return the measure of a column, or None if the runs that have it do not agree."""
    found = {
        quantity_of(summary, column)
        for row in rows
        for summary in row.summaries.values()
        if look_up(summary, COLUMNS[column].path) is not None
    }
    return found.pop() if len(found) == 1 else None


def _beside(
    table: Table, dataset: str, rows: Sequence[Row], column: str, statistics: Sequence[str]
) -> list[Optional[Figure]]:
    """Return the paper's figure of each row that is measured as ours."""
    quantity = _quantity(rows, column)
    return [find_figure(table.paper, dataset, row.model, quantity, statistics) for row in rows]


def _paper_cells(table: Table, dataset: str, rows: Sequence[Row], column: str) -> list[str]:
    """Return the text of the paper's figure of each row, with its deviation."""
    quantity = _quantity(rows, column)
    return [published_text(table.paper, dataset, row.model, quantity) or "-" for row in rows]


def _p(row: Row) -> str:
    if not row.p:
        return "-"
    return " / ".join(number_text(row.p[seed]) if seed in row.p else "-" for seed in row.runs)


def overview(table: Table, datasets: dict[str, list[Row]]) -> Part:
    """Return the first column of all data sets side by side, each with the paper's figures.

    All data sets have the same rows.
    """
    name = table.columns[0]
    columns = {COLUMNS[name].heading: [row.title for row in next(iter(datasets.values()))]}
    for dataset, rows in datasets.items():
        columns[dataset] = [row.cell(name, rows[0]) for row in rows]
        theirs = _paper_cells(table, dataset, rows, name)
        if set(theirs) != {"-"}:
            columns[f"{dataset}, paper"] = theirs
    return Part("", list(columns), list(zip(*columns.values(), strict=True)))


def paper_elsewhere(table: Table, datasets: dict[str, list[Row]]) -> list[Part]:
    """Return the tables of the paper's figures that are not shown beside ours.

    They are from the chosen table, or from all tables with the metric of the first column.
    """
    ours = {_quantity(rows, table.columns[0]) for rows in datasets.values()} - {None}
    metrics = {quantity.metric for quantity in ours}
    metrics |= BLEU if metrics & BLEU else set()

    def is_beside(column: dict[str, Any]) -> bool:
        theirs = Quantity(column["metric"], column["split"], column.get("languages"))
        rows = datasets.get(column["dataset"], [])
        return any(_quantity(rows, name) == theirs for name in table.columns)

    found = []
    for published in read_published():
        places = [
            place
            for place, column in enumerate(published["columns"])
            if (published["table"] == table.show if table.show else column["metric"] in metrics)
            and not is_beside(column)
        ]
        if published["recipe"] == table.paper and places:
            header = ["", *(published["columns"][place]["heading"] for place in places)]
            rows = [
                [row["name"], *(row["figures"][place] or "-" for place in places)]
                for row in published["rows"]
                if "metric" not in row
            ]
            title = f"{published['table']} of the paper"
            title += "" if table.show else ", on other data or measured otherwise"
            source = f"{published['title']}. {published['paper']}."
            found.append(Part(title, header, rows, [source]))
    return found


def notes(table: Table, dataset: str, rows: Sequence[Row], signature: Optional[str]) -> list[str]:
    """Return notes on the figures and on the conditions of their measurement."""
    summaries = [summary for row in rows for summary in row.summaries.values()]
    seeds = list(rows[0].runs)
    lines = [f"seeds: {', '.join(map(str, seeds))}"]
    if len(seeds) > 1:
        lines[0] += "; ± is the standard deviation over them, with n - 1 in the denominator"
    planned = sum(len(row.runs) for row in rows)
    if len(summaries) < planned:
        lines.append(f"{len(summaries)} of {planned} runs are finished")
    if rows[0].settings:
        lines.append(f"settings: {rows[0].settings}")
    training = [summary["training"] for summary in summaries if "training" in summary]
    if training:
        updates = sorted({part["updates"] for part in training})
        lines.append(f"updates: {_range([f'{count:,}' for count in updates])}")
        hours = sorted(part["seconds"] / 3600 for part in training if "seconds" in part)
        if hours:
            each = _range([f"{hour:.2f}" for hour in hours])
            lines.append(f"training time: {each} hours per run, {sum(hours):.2f} in total")
    lines += [f"{label}: {text}" for label, text in conditions(summaries, table.columns)]
    if signature and "bleu" in table.columns:
        tests = sum(len(row.p) for row in rows)
        corrected = f", by Holm's method for {tests} tests" if tests > 1 else ""
        lines.append(
            f"p: sacreBLEU's approximate randomisation against {rows[0].title} with the same seed, "
            f"one value per seed ({signature}){corrected}"
        )
    if {"sparsity", "null"} & set(table.columns):
        lines.append("attention: encoder / decoder / cross-attention")
    if set(SPEEDS) & set(table.columns):
        lines.append(f"speeds: means over the seeds; in brackets the ratio to {rows[0].title}")
    return lines + _about_the_paper(table, dataset, rows) + ([table.note] if table.note else [])


def _about_the_paper(table: Table, dataset: str, rows: Sequence[Row]) -> list[str]:
    """Return the sources of the paper's figures in the table, and why others are not in it; nothing
    if the table is not a paper's."""
    if all(published["recipe"] != table.paper for published in read_published()):
        return []
    sources = dict.fromkeys(
        f"paper: {figure.paper}, {figure.table}"
        for name in table.columns
        for figure in _beside(table, dataset, rows, name, ["value", "mean", "ensemble"])
        if figure
    )
    lines = list(sources)
    if lines and {*SPEEDS, "hours"} & set(table.columns):
        lines.append("the paper's times and speeds are those of its own hardware")
    if not lines:
        lines.append(f"paper: it has no figure for {dataset} that is measured in the same way")
    quantities = filter(None, (_quantity(rows, name) for name in table.columns))
    lines += differences(table.paper, dataset, quantities)
    return lines + ([f"compared with the paper: {table.compared}"] if table.compared else [])


def _range(values: Sequence[str]) -> str:
    """Return the range of sorted values as text, or a single value if all are equal."""
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
