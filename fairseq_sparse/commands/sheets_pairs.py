"""Judge samples of the top and the bottom of a corpus ranked by null attention (ReLA, section 5.2).

sheets pairs draw pairs.tsv --output DIR   draw 100 pairs from the 10,000 with the lowest null rate,
                                           and 100 from those with the highest
sheets pairs score DIR/key.json SHEET      count how many of them are correct translations

pairs.tsv is the table of "fairseq-sparse analyze nulls". The first command writes to DIR sheet.csv,
in whose column "correct" a judge writes yes or no, and key.json, which says which end each pair is
from; keep it from the judge.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import (
    check_outputs,
    command_parser,
    finish,
    output_file,
    positive,
    seed,
)
from fairseq_sparse.commands.sheets_make import add_separator, write_new
from fairseq_sparse.files import read_json, write_json

# The sizes of the paper.
PAIRS, ENDS = 100, 10_000


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("sheets pairs", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    part = commands.add_parser("draw", help="draw the pairs, and write the sheet")
    part.add_argument("ranking", type=Path, metavar="TSV", help="written by analyze nulls")
    part.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder to fill")
    part.add_argument(
        "--pairs",
        type=positive,
        default=PAIRS,
        metavar="N",
        help="pairs to draw from each end (default: 100)",
    )
    part.add_argument(
        "--ends",
        type=positive,
        default=ENDS,
        metavar="N",
        help="pairs at each end of the ranking to draw from (default: 10000)",
    )
    part.add_argument("--seed", type=seed, default=1, help="of the random choices (default: 1)")
    add_separator(part)
    part.set_defaults(run=draw)
    part = commands.add_parser("score", help="score the completed sheet")
    part.add_argument("key", type=Path, metavar="KEY", help="key.json, made with the sheet")
    part.add_argument("sheet", type=Path, metavar="SHEET")
    part.add_argument("--json", type=output_file, metavar="FILE", help="file for the figures")
    part.set_defaults(run=score)
    options = parser.parse_args(arguments)
    if options.command == "score":
        check_outputs(parser, options, "json")
    return options


def draw(options: argparse.Namespace) -> str:
    """Write the sheet and the key, and return a message for the user."""
    from fairseq_sparse.sheets.annotation_sheets import SEPARATORS
    from fairseq_sparse.sheets.ranking_sample import (
        draw_sample,
        read_ranking,
        sheet,
    )

    ranking = read_ranking(options.ranking)
    sample = draw_sample(ranking, options.pairs, options.ends, options.seed)
    key = {"ranking": str(options.ranking), "seed": options.seed, "sample": sample}
    text = sheet(sample, SEPARATORS[options.separator])
    write_new(options.output, key, {"sheet.csv": text.encode("utf-8-sig")})
    return f"wrote a sheet with {len(sample)} pairs to {options.output}; keep key.json to yourself"


def score(options: argparse.Namespace) -> str:
    """Return the results of the completed sheet as a table, and write the figures."""
    from fairseq_sparse.sheets.annotation_sheets import SheetError, parse_sheet
    from fairseq_sparse.sheets.ranking_sample import (
        answers_table,
        read_answers,
        summarize_answers,
    )

    sample = read_json(options.key).get("sample")
    if not isinstance(sample, list) or not all(
        isinstance(row, dict) and {"id", "end"} <= row.keys() for row in sample
    ):
        raise SheetError(f"{options.key} is not a key that was written with a sheet")
    answers = parse_sheet(options.sheet, lambda text: read_answers(text, sample))
    summary = summarize_answers(sample, answers)
    if options.json:
        write_json(options.json, summary)
    return answers_table(summary)


def run(options: argparse.Namespace) -> None:
    print(options.run(options))


def main(arguments: list[str] | None = None) -> int:
    return finish("sheets pairs", run, parse_arguments(arguments))
