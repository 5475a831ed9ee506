#!/usr/bin/env python3
"""Write the tables of README.md and docs/ from docs/results and the catalogue of papers' tables.

A page names a table with the lines `<!-- table NAME -->` and `<!-- end of table -->`; the text
between them is made from docs/results/NAME.csv. Between `<!-- runs PATTERN,... COLUMN,... -->` and
`<!-- end of runs -->` is a table of the runs kept by scripts/publish_run.py in docs/results/runs.
It has a row for each pattern, with means and standard deviations over the matching runs, which are
seeds of one model. The columns are those of `fairseq-sparse table results`. Between
`<!-- items PAPER -->` and `<!-- end of items -->` is what `fairseq-sparse reproduce PAPER` makes.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

from tabulate import tabulate

from command_line import exit_status, write_text

ROOT = Path(__file__).resolve().parents[1]
BEGIN = r"^(?P<begin><!-- (?P<kind>table|runs|items) (?P<words>.+) -->\n)"
# A block ends before the next comment.
BLOCK = re.compile(rf"{BEGIN}(?:(?!<!-- ).*\n)*?(?P<end><!-- end of (?P=kind) -->)", re.MULTILINE)


def markdown(path: Path) -> str:
    """Return a CSV file, whose first line has the headings, as a table in Markdown.

    Raises:
        ValueError: a row has more or fewer fields than the headings.
    """
    with open(path, encoding="utf-8", newline="") as handle:
        head, *rows = csv.reader(handle)
    if any(len(row) != len(head) for row in rows):
        raise ValueError(f"{path}: a row has more or fewer fields than the first line has headings")
    return tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)


def table_of_runs(patterns: list[str], columns: list[str], results: Path) -> str:
    """Return a Markdown table of the kept runs, with a row for each pattern.

    Raises:
        OSError, ValueError: no run matches a pattern, or a summary cannot be read.
        KeyError: there is no such column.
    """
    from fairseq_sparse.tables.columns import COLUMNS
    from fairseq_sparse.tables.rows import Row
    from fairseq_sparse.tables.summaries import read_summary

    rows = []
    for pattern in patterns:
        paths = sorted((results / "runs").glob(f"{pattern}/summary.json"))
        if not paths:
            raise FileNotFoundError(f"no run in {results / 'runs' / pattern}")
        found = (read_summary(path.parent) for path in paths)
        rows.append(Row(pattern, summaries=dict(enumerate(found))))
    cells = [[row.cell(column, Row("")) for column in columns] for row in rows]
    head = [COLUMNS[column].heading for column in columns]
    return tabulate(cells, headers=head, tablefmt="github", disable_numparse=True)


def table_of_items(paper: str) -> str:
    """Return a Markdown table of what ``fairseq-sparse reproduce`` makes of a paper.

    Items that differ only in their names share a row, and a comparison stands only once.

    Raises:
        KeyError: there is no such paper.
    """
    from fairseq_sparse.recipes import catalogue

    rows: dict[tuple[str, str, str], list[str]] = {}
    first: dict[str, tuple[str, str, str]] = {}  # where a comparison stands
    for key, entry in catalogue.entries("tables").items():
        title, run_on, compared = (entry.get(name, "") for name in ("title", "run_on", "compared"))
        its_paper, name = key.split()
        origin, *its_place = first.setdefault(compared, (key, its_paper, title))
        if compared and its_place != [its_paper, title]:
            compared = f"as `{origin}`"
        if its_paper == paper:
            rows.setdefault((title, run_on, compared), []).append(f"`{name}`")
    if not rows:
        raise KeyError(f"there are no tables of {paper}")
    cells = [[", ".join(names), *about] for about, names in rows.items()]
    head = [f"`{paper}`", "what it is", "run on", "compared with the paper"]
    return tabulate(cells, headers=head, tablefmt="github", disable_numparse=True)


def fill(page: str, results: Path) -> str:
    """Return the text of a page with its tables made again from the files in ``results``.

    Raises:
        OSError: a table has no file.
        ValueError: a table has no end, or a row has more or fewer fields than the headings.
        KeyError: there is no such column or paper.
    """
    whole = [block.start() for block in BLOCK.finditer(page)]
    for begin in re.finditer(BEGIN, page, re.MULTILINE):
        if begin.start() not in whole:
            raise ValueError(f"{begin['begin'].strip()} has no <!-- end of {begin['kind']} -->")

    def table(kind: str, words: str) -> str:
        if kind == "table":
            return markdown(results / f"{words}.csv")
        if kind == "items":
            return table_of_items(words)
        patterns, columns = (word.split(",") for word in words.split())
        return table_of_runs(patterns, columns, results)

    return BLOCK.sub(
        lambda block: f"{block['begin']}\n{table(block['kind'], block['words'])}\n\n{block['end']}",
        page,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one differs")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    stale = []
    for path in [options.root / "README.md", *sorted(options.root.glob("docs/*.md"))]:
        page = path.read_text("utf-8")
        try:
            filled = fill(page, options.root / "docs" / "results")
        except (OSError, ValueError, KeyError) as error:
            parser.error(f"{path}: {error}")
        if filled != page:
            stale.append(path)
            if not options.check:
                write_text(path, filled)
    for path in stale:
        print(path.relative_to(options.root), "is out of date" if options.check else "updated")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(exit_status(main))
