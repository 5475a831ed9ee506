"""Score the sheet of "fairseq-sparse sheets draw-pairs" that a judge has filled in.

Prints what share of the pairs from each end of the ranking are correct translations, beside the
figures of ReLA (section 5.2).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import (
    add_format,
    add_json,
    check_outputs,
    command_parser,
    print_tables,
)
from fairseq_sparse.files import read_json


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("sheets score-pairs", __doc__)
    parser.add_argument("key", type=Path, metavar="KEY", help="key.json, made with the sheet")
    parser.add_argument("sheet", type=Path, metavar="SHEET")
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.sheets.annotation_sheets import parse_sheet
    from fairseq_sparse.sheets.ranking_sample import (
        answers_table,
        read_answers,
        sample_of,
        summarize_answers,
    )

    sample = sample_of(read_json(options.key), options.key)
    answers = parse_sheet(options.sheet, lambda text: read_answers(text, sample))
    summary = summarize_answers(sample, answers)
    print_tables([answers_table(summary)], summary, options)
