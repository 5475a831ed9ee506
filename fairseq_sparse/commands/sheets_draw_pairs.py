"""Draw pairs from the top and the bottom of a corpus ranked by null attention, for a judge.

ReLA (section 5.2) judges 100 pairs from the 10,000 with the lowest null rate, and 100 from those
with the highest. TSV is the table of "fairseq-sparse analyze nulls". The command writes to FOLDER

  sheet.csv   in whose column "correct" a judge writes yes or no
  key.json    says which end each pair is from; keep it from the judge, and give it to
              "fairseq-sparse sheets score-pairs"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.commands.sheets_make import add_sheet_options, write_new
from fairseq_sparse.commands.values import positive


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("sheets draw-pairs", __doc__)
    add = parser.add_argument
    add("ranking", type=Path, metavar="TSV", help="written by analyze nulls")
    text = "pairs to draw from each end (default: 100, as in the paper)"
    add("--pairs", type=positive, default=100, metavar="N", help=text)
    text = "pairs at each end of the ranking to draw from (default: 10000, as in the paper)"
    add("--pool", type=positive, default=10_000, metavar="N", help=text)
    add_sheet_options(parser)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.sheets.annotation_sheets import SEPARATORS
    from fairseq_sparse.sheets.ranking_sample import draw_sample, read_ranking, sheet

    ranking = read_ranking(options.ranking)
    sample = draw_sample(ranking, options.pairs, options.pool, options.seed)
    key = {"ranking": str(options.ranking), "seed": options.seed, "sample": sample}
    text = sheet(sample, SEPARATORS[options.separator])
    write_new(options.output_folder, key, {"sheet.csv": text.encode("utf-8-sig")})
    print(f"wrote a sheet with {len(sample)} pairs to {options.output_folder}; keep key.json")
