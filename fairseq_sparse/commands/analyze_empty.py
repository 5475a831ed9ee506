"""Count how often the empty translation is more probable than all that the beam finds.

Scores are p and, for models whose p need not sum to 1 at a step, p / Σp. A.pt:B.pt is an ensemble.
Measurements of whole parts are kept in RUN/measurements, and read again.
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import (
    add_format,
    add_json,
    check_outputs,
    command_parser,
    print_tables,
)
from fairseq_sparse.commands.models import (
    add_limit,
    add_max_tokens,
    add_model_arguments,
    measurements,
    name_models,
    print_left_out,
)
from fairseq_sparse.commands.values import positive


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze empty", __doc__)
    add_model_arguments(parser, several=True, subsets=True)
    add_limit(parser)
    parser.add_argument(
        "--beam", type=positive, default=5, metavar="N", help="beam size (default: 5)"
    )
    add_max_tokens(parser)
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.tables.output import empty_table

    rows = []
    for found in measurements(options, first=options.sentences):
        rows += found.empty(options.beam)
        print_left_out(rows[-1]["left_out"])
    result = {"data": options.data, "beam": options.beam, "rows": rows}
    print_tables([empty_table(rows)], result, options)
