"""Compare minimum Bayes risk decoding of finished runs with beam search.

With each run, translations of the test set are sampled in three ways: from the model's own
distribution, by epsilon-sampling (tokens with a probability of at least .02) and from the nucleus
(.9). fairseq-sparse mbr chooses among the samples. All results, and beam search with every run, are
compared with beam search of the first run by sacreBLEU's paired bootstrap: FOLDER/table.txt. When
started again, it does what is not done yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional

from fairseq_sparse.commands.common import (
    add_output_folder,
    command_parser,
    not_negative,
    positive,
)
from fairseq_sparse.commands.ensemble import add_run_options, read_recipes
from fairseq_sparse.recipes import engine, mbr


def parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = command_parser("compare-mbr", __doc__)
    add_run_options(parser)
    add = parser.add_argument
    add_output_folder(parser)
    add("--samples", type=positive, default=32, metavar="N", help="per sentence (default: 32)")
    add("--utility", choices=("chrf", "bleu"), default="chrf", help="(default: %(default)s)")
    add("--seed", type=not_negative, default=1, metavar="N", help="of the samples (default: 1)")
    return parser.parse_args(arguments)


def run(given: argparse.Namespace) -> None:
    out = given.output_folder.absolute()
    engine.run(mbr.plan(read_recipes(given), out, given.samples, given.utility, given.seed))
    print((out / "table.txt").read_text(encoding="utf-8"), end="")
