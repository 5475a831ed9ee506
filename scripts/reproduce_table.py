#!/usr/bin/env python3
"""Make a paper's table from the finished runs of examples/reproduce.sh.

Writes STEM.md, STEM.tex (booktabs) and STEM.json, and prints the Markdown; with --draw also
pictures, STEM-training.png and .svg, or with several data sets STEM-DATASET-training.png and .svg.
The pictures are "training", the validation BLEU or accuracy over the updates and hours, from the
runs' logs; "alphas", the validation accuracy by the alpha of the output and of the attention, the
other fixed at 1.5; or a column with numbers, against which the first column is drawn. The plan is a
file with one line per run: seed, data set, variant, settings, variables of the variant, folder of
the data, folder of the run, separated by tabs, with "-" for an empty field. The first row of a data
set is the baseline of the others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import exit_status, positive, report_errors, script_parser, write_text

if TYPE_CHECKING:
    from fairseq_sparse.analysis.runs.rows import Row


# Values of --draw that are not columns.
PICTURES = ("training", "alphas")


def share(text: str) -> float:
    """Parse a number above 0 and up to 1, for argparse."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {value}")
    return value


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("plan", type=Path, metavar="PLAN")
    parser.add_argument("--paper", required=True, help="its name in examples/reproduce.sh")
    parser.add_argument("--title", required=True, help="of the paper and the table")
    parser.add_argument(
        "--columns", required=True, type=lambda text: text.split(","), metavar="NAME,..."
    )
    parser.add_argument(
        "--show",
        default="",
        metavar="TABLE",
        help='the paper\'s table to show, as "Table 6", or none',
    )
    parser.add_argument(
        "--draw", default="", metavar="NAME,...", help="training, alphas, or a column with numbers"
    )
    parser.add_argument(
        "--early",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="how much of the training to draw, from its beginning (default: 1)",
    )
    parser.add_argument("--note", default="", help="a note for the reader")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM", help="without suffix")
    parser.add_argument(
        "--samples", type=positive, default=1000, metavar="N", help="of the bootstrap (1000)"
    )
    options = parser.parse_args(arguments)
    from fairseq_sparse.analysis.runs.columns import COLUMNS

    options.draw = [name for name in options.draw.split(",") if name]
    asked = [*options.columns, *(name for name in options.draw if name not in PICTURES)]
    unknown = [name for name in asked if name not in COLUMNS]
    if unknown:
        parser.error(f"there is no column {', '.join(unknown)}; choose from {', '.join(COLUMNS)}")
    return options


def read_rows(plan: Path) -> dict[str, list[Row]]:
    """Read the rows of each data set; at least one run must be finished."""
    from fairseq_sparse.analysis.runs.rows import gather, read_plan
    from fairseq_sparse.errors import AnalysisError

    datasets = gather(read_plan(plan))
    if not any(row.summaries for rows in datasets.values() for row in rows):
        raise AnalysisError(f"no run of {plan} is finished")
    return datasets


def make(options: argparse.Namespace, datasets: dict[str, list[Row]]) -> tuple[str, str, dict]:
    """Return the Markdown, the LaTeX, and the content of the JSON file."""
    from fairseq_sparse.analysis.latex import PACKAGES, latex_table
    from fairseq_sparse.analysis.markdown import markdown_table
    from fairseq_sparse.analysis.runs import paper_tables as table
    from fairseq_sparse.analysis.runs.rows import as_json, compare_with_baseline

    paper = table.Paper(
        options.paper, options.title, tuple(options.columns), options.note, options.show
    )
    markdown, latex, content = [f"# {paper.title}"], [PACKAGES], {}
    if len(datasets) > 1:
        header, rows = table.overview(paper, datasets)
        markdown.append(markdown_table(header, rows))
        latex.append(latex_table(header, rows, paper.title))
    for dataset, rows in datasets.items():
        signature, missing = compare_with_baseline(rows, rows[0], options.samples)
        for message in missing:
            print(f"reproduce_table: {dataset}: {message}", file=sys.stderr)
        header, cells = table.dataset_table(paper, dataset, rows)
        notes = [*table.notes(paper, dataset, rows, signature), *missing]
        markdown += [f"## {dataset}", markdown_table(header, cells)]
        markdown.append("\n".join(f"- {note}" for note in notes))
        latex.append(latex_table(header, cells, f"{paper.title}; {dataset}", notes))
        content[dataset] = {
            "header": header,
            "cells": cells,
            "notes": notes,
            "rows": as_json(rows, paper.columns),
        }
    for title, (header, cells), source in table.paper_elsewhere(paper, datasets):
        markdown += [f"## {title}", markdown_table(header, cells), source]
        latex.append(latex_table(header, cells, title, [source]))
    facts = {"paper": paper.recipe, "title": paper.title, "columns": list(paper.columns)}
    return "\n\n".join(markdown) + "\n", "\n\n".join(latex) + "\n", {**facts, "datasets": content}


def draw(options: argparse.Namespace, datasets: dict[str, list[Row]]) -> None:
    """Draw the requested pictures; if one cannot be drawn, print a message and continue."""
    from fairseq_sparse.analysis.pictures import require_matplotlib, save_png_and_svg
    from fairseq_sparse.analysis.runs.curves import draw_picture
    from fairseq_sparse.errors import AnalysisError

    for dataset, rows in datasets.items():
        stem = f"{options.output.name}-{dataset}" if len(datasets) > 1 else options.output.name
        for name in options.draw:
            try:
                require_matplotlib()
                figure = draw_picture(rows, name, options.columns[0], options.early)
            except AnalysisError as error:
                print(f"reproduce_table: no picture of {dataset}: {error}", file=sys.stderr)
            else:
                save_png_and_svg(figure, options.output.parent, f"{stem}-{name}")


def write(options: argparse.Namespace) -> None:
    """Write the table and its pictures, and print it."""
    from fairseq_sparse.files import write_json

    datasets = read_rows(options.plan)
    markdown, latex, content = make(options, datasets)
    stem = options.output
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_text(stem.with_name(f"{stem.name}.md"), markdown)
    write_text(stem.with_name(f"{stem.name}.tex"), latex)
    write_json(stem.with_name(f"{stem.name}.json"), content)
    draw(options, datasets)
    print(markdown, end="")


def main(arguments: list[str] | None = None) -> int:
    return report_errors("reproduce_table", write, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["sacrebleu", "matplotlib"]))
