"""A table of runs: our figures beside the paper's, their conditions, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import write_json, write_text
from fairseq_sparse.tables.columns import (
    COLUMNS,
    Quantity,
    cell,
    conditions,
    look_up,
    quantity_of,
)
from fairseq_sparse.tables.formats import PACKAGES, format_table
from fairseq_sparse.tables.published import (
    Figure,
    differences,
    find_figure,
    published_text,
    read_published,
    sources,
)
from fairseq_sparse.tables.rows import Row, as_json, compare_with_baseline

if TYPE_CHECKING:
    from fairseq_sparse.recipes.tables import Table

Cells = tuple[list[str], list[list[str]]]
# Draws of the paired bootstrap.
SAMPLES = 1000


def write(
    table: Table,
    datasets: dict[str, list[Row]],
    references: dict[str, Path],
    stem: Path,
    samples: int = SAMPLES,
) -> tuple[str, list[str]]:
    """Write STEM.md, STEM.tex (booktabs), STEM.json and the pictures.

    Args:
        datasets: the rows of each data set.
        references: the text that the test set of each data set is scored with.
        stem: the beginning of the files' names.
        samples: draws of the paired bootstrap.

    Returns:
        the Markdown, and messages about what could not be tested or drawn.

    Raises:
        AnalysisError: no run is finished.
    """
    if not any(row.summaries for rows in datasets.values() for row in rows):
        raise AnalysisError("no run of the table is finished")
    markdown, latex, content, messages = [f"# {table.title}"], [PACKAGES], {}, []
    if len(datasets) > 1:
        header, cells = overview(table, datasets)
        markdown.append(format_table(header, cells))
        latex.append(format_table(header, cells, "latex", table.title))
    for dataset, rows in datasets.items():
        signature, missing = compare_with_baseline(rows, references[dataset], samples)
        messages += [f"{dataset}: {message}" for message in missing]
        header, cells = dataset_table(table, dataset, rows)
        lines = [*notes(table, dataset, rows, signature), *missing]
        markdown += [f"## {dataset}", format_table(header, cells)]
        markdown.append("\n".join(f"- {line}" for line in lines))
        latex.append(format_table(header, cells, "latex", f"{table.title}; {dataset}", lines))
        content[dataset] = {
            "header": header,
            "cells": cells,
            "notes": lines,
            "rows": as_json(rows, table.columns),
        }
    for title, (header, cells), source in paper_elsewhere(table, datasets):
        markdown += [f"## {title}", format_table(header, cells), source]
        latex.append(format_table(header, cells, "latex", title, [source]))
    facts: dict[str, Any] = {name: getattr(table, name) for name in ("paper", "name", "title")}
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_text(_file(stem, ".md"), "\n\n".join(markdown) + "\n")
    write_text(_file(stem, ".tex"), "\n\n".join(latex) + "\n")
    write_json(_file(stem, ".json"), {**facts, "columns": table.columns, "datasets": content})
    for dataset, rows in datasets.items():
        place = _file(stem, f"-{dataset}") if len(datasets) > 1 else stem
        messages += draw(rows, table.pictures, table.columns[0], table.early, place)
    return "\n\n".join(markdown) + "\n", messages


def _file(stem: Path, end: str) -> Path:
    return stem.with_name(stem.name + end)


def draw(
    rows: Sequence[Row], names: Sequence[str], score: str, early: float, stem: Path
) -> list[str]:
    """Draw STEM-NAME.png and .svg for each name; return messages about those without figures."""
    from fairseq_sparse.plots.curves import draw_picture
    from fairseq_sparse.plots.pictures import require_matplotlib, save_png_and_svg

    messages = []
    for name in names:
        try:
            require_matplotlib()
            figure = draw_picture(rows, name, score, early)
        except AnalysisError as error:
            messages.append(f"no picture {stem.name}-{name}: {error}")
        else:
            save_png_and_svg(figure, stem.parent, f"{stem.name}-{name}")
    return messages


def dataset_table(table: Table, dataset: str, rows: Sequence[Row]) -> Cells:
    """Return header and rows of one data set; the first row is the baseline.

    A column without any figure is left out, except for the first. The paper's figures follow ours,
    p follows BLEU, and the ensemble's score follows the first column.
    """
    columns = [("", [row.title for row in rows])]
    if any(len(row.runs) > 1 for row in rows):
        columns.append(("seeds", [str(len(row.summaries)) for row in rows]))
    for name in table.columns:
        heading = COLUMNS[name].heading
        ours = [row.cell(name, rows[0]) for row in rows]
        if name != table.columns[0] and all(text == "-" for text in ours):
            continue
        columns.append((heading, ours))
        if name == table.columns[0] and any(row.ensemble for row in rows):
            together = [cell(row.ensemble, name) if row.ensemble else "-" for row in rows]
            if any(text != "-" for text in together):
                columns.append((f"{heading}, ensemble", together))
            theirs = _ensembles(table, dataset, rows, name)
            if theirs:
                columns.append((f"{heading}, ensemble, paper", theirs))
        theirs = _figures(table, dataset, rows, name)
        if theirs:
            columns.append((f"{heading}, paper", theirs))
        if name == "bleu" and any(row.p for row in rows):
            columns.append(("p", [_p(row) for row in rows]))
    return _as_table(columns)


def _as_table(columns: Sequence[tuple[str, list[str]]]) -> Cells:
    """Return header and rows of columns with their headings."""
    lines = zip(*(cells for _, cells in columns), strict=True)
    return [heading for heading, _ in columns], [list(line) for line in lines]


def _quantity(rows: Sequence[Row], column: str) -> Optional[Quantity]:
    """Return the measure of a column, or None if the runs that have it do not agree."""
    path = COLUMNS[column].path
    found = {
        quantity_of(summary, column)
        for row in rows
        for summary in row.summaries.values()
        if look_up(summary, path) is not None
    }
    return found.pop() if len(found) == 1 else None


def _figures(table: Table, dataset: str, rows: Sequence[Row], column: str) -> list[str]:
    """Return the paper's figures of a column, one per row; empty if none is measured as ours."""
    quantity = _quantity(rows, column)
    if quantity is None:
        return []
    found = [published_text(table.paper, dataset, row.model, quantity) for row in rows]
    return [figure or "-" for figure in found] if any(found) else []


def _ensembles(table: Table, dataset: str, rows: Sequence[Row], column: str) -> list[str]:
    """Return the paper's figures of ensembles, as :func:`_figures`."""
    quantity = _quantity(rows, column)
    if quantity is None:
        return []
    found = [find_figure(table.paper, dataset, row.model, quantity, ["ensemble"]) for row in rows]
    return [figure.text if figure else "-" for figure in found] if any(found) else []


def _p(row: Row) -> str:
    if not row.p:
        return "-"
    return " / ".join(f"{row.p[seed]:.3f}" if seed in row.p else "-" for seed in row.runs)


def overview(table: Table, datasets: dict[str, list[Row]]) -> Cells:
    """Return the first column of all data sets side by side, each with the paper's figures.

    All data sets have the same rows.
    """
    name = table.columns[0]
    first = next(iter(datasets.values()))
    columns = [(COLUMNS[name].heading, [row.title for row in first])]
    for dataset, rows in datasets.items():
        columns.append((dataset, [row.cell(name, rows[0]) for row in rows]))
        theirs = _figures(table, dataset, rows, name)
        if theirs:
            columns.append((f"{dataset}, paper", theirs))
    return _as_table(columns)


def paper_elsewhere(table: Table, datasets: dict[str, list[Row]]) -> list[tuple[str, Cells, str]]:
    """Return title, table and source of the paper's figures that are not shown beside ours.

    They are from the chosen table, or from all tables with the metric of the first column.
    """
    metrics = {
        quantity.metric
        for rows in datasets.values()
        if (quantity := _quantity(rows, table.columns[0]))
    }
    if metrics & {"bleu", "tokenized_bleu"}:
        metrics |= {"bleu", "tokenized_bleu"}
    found = []
    for published in read_published():
        places = [
            place
            for place, column in enumerate(published["columns"])
            if (published["table"] == table.show if table.show else column["metric"] in metrics)
            and not _beside(table, column, datasets.get(column["dataset"], []))
        ]
        if published["recipe"] == table.paper and places:
            header = ["", *(published["columns"][place]["heading"] for place in places)]
            rows = [
                [row["name"], *(row["figures"][place] or "-" for place in places)]
                for row in published["rows"]
                if "metric" not in row
            ]
            title = f"{published['table']} of the paper"
            if not table.show:
                title += ", on other data or measured otherwise"
            found.append((title, (header, rows), f"{published['title']}. {published['paper']}."))
    return found


def _beside(table: Table, column: dict, rows: Sequence[Row]) -> bool:
    """Return whether a column of a paper's table can stand beside ours."""
    theirs = Quantity(column["metric"], column["split"], column.get("languages"))
    return any(_quantity(rows, name) == theirs for name in table.columns)


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
        hours = sorted(part["seconds"] / 3600 for part in training)
        each = _range([f"{hour:.2f}" for hour in hours])
        lines.append(f"training time: {each} hours per run, {sum(hours):.2f} in total")
    lines += [f"{label}: {text}" for label, text in conditions(summaries)]
    if signature and "bleu" in table.columns:
        lines.append(
            f"p: sacreBLEU's paired bootstrap against {rows[0].title} with the same seed, one "
            f"value per seed ({signature})"
        )
    if any(column in table.columns for column in ("sparsity", "null")):
        lines.append("attention: encoder / decoder / cross-attention")
    if any(column in table.columns for column in ("words_per_second", "sentences_per_second")):
        lines.append(
            "speeds: from the logs, means over the seeds; in brackets the ratio to "
            f"{rows[0].title}. Runs that shared a machine with each other or with other work "
            "cannot be compared; scripts/benchmark measures in turns."
        )
    return lines + _about_the_paper(table, dataset, rows) + ([table.note] if table.note else [])


def _about_the_paper(table: Table, dataset: str, rows: Sequence[Row]) -> list[str]:
    """Return the sources of the paper's figures in the table, and why others are not in it; nothing
    if the table is not a paper's."""
    if all(published["recipe"] != table.paper for published in read_published()):
        return []
    lines = [f"paper: {source}" for source in sources(_beside_ours(table, dataset, rows))]
    if lines and {"words_per_second", "sentences_per_second", "hours"} & set(table.columns):
        lines.append("the paper's times and speeds are those of its own hardware")
    if not lines:
        lines.append(f"paper: it has no figure for {dataset} that is measured in the same way")
    quantities = filter(None, (_quantity(rows, name) for name in table.columns))
    return lines + differences(table.paper, dataset, quantities)


def _beside_ours(table: Table, dataset: str, rows: Sequence[Row]) -> list[Figure]:
    """Return all of the paper's figures that stand in the table."""
    found = [
        find_figure(table.paper, dataset, row.model, quantity, ["value", "mean", "ensemble"])
        for name in table.columns
        if (quantity := _quantity(rows, name))
        for row in rows
    ]
    return [figure for figure in found if figure]


def _range(values: Sequence[str]) -> str:
    """Return the range of sorted values as text, or a single value if all are equal."""
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
