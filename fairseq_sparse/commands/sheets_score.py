"""Score the sheets of "fairseq-sparse sheets make" that annotators have filled in.

Prints the mean and standard deviation of each system's scores, for each annotator and
for both (a sentence that both judged counts twice), and how much the annotators agree on the
sentences that both judged: Cohen's κ, plain and with quadratic weights. These figures ignore the +
and - of scores; figures that include them are printed beside. Scores may be empty; their number is
printed. A sheet whose rows differ from those that were made is refused.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.common import (
    add_format,
    add_json,
    check_outputs,
    command_parser,
    print_tables,
)
from fairseq_sparse.files import read_json


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("sheets score", __doc__)
    add = parser.add_argument
    add("key", type=Path, metavar="KEY", help="key.json, made with the sheets")
    add("sheets", nargs="+", type=Path, metavar="SHEET", help="both sheets, under any name")
    text = "score one sheet while the other is still missing"
    add("--partial", action="store_true", help=text)
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.sheets import human_evaluation
    from fairseq_sparse.sheets.annotation_sheets import (
        SheetError,
        from_key,
        parse_sheet,
        read_sheet,
    )

    sheets = from_key(read_json(options.key), options.key)
    scores: dict[str, dict[str, Any]] = {}
    for path in options.sheets:
        annotator, found = parse_sheet(path, lambda text: read_sheet(text, sheets))
        if annotator in scores:
            raise SheetError(f"{path}: there is another sheet of {annotator}")
        scores[annotator] = found
    missing = [name for name in sheets if name not in scores]
    if missing and not options.partial:
        raise SheetError(f"the sheet of {missing[0]} is missing; --partial scores the other")
    summary = human_evaluation.summarize(sheets, scores)
    tables, notes = [human_evaluation.scores_table(summary)], human_evaluation.notes(summary)
    print_tables(tables, summary, options, notes)
