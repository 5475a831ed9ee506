#!/usr/bin/env python3
"""Collect the results of a recipe's run in JSON.

summarize_run.py train RUN_DIR      logs/2_train.log         -> train.json
summarize_run.py all RUN_DIR        train.json, bleu.json or
                                    accuracy.json,
                                    generate-test.txt,
                                    validate-test.txt,
                                    attention.json, and if there
                                    bleu-long.json,
                                    alignment.json,
                                    validate-valid.txt,
                                    attention-valid.json,
                                    search-valid.jsonl;
                                    of a language model,
                                    train.json,
                                    measures.json            -> summary.json
summarize_run.py ensemble RUN_DIR   bleu.json or accuracy.json,
                                    generate-test.txt        -> summary.json
summarize_run.py text RUN_DIR       of a language model,
                                    evaluate-valid.txt,
                                    evaluate-test.txt,
                                    samples-raw.txt          -> measures.json,
                                                                samples.txt
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from command_line import exit_status, report_errors, script_parser
from fairseq_sparse.analysis.runs.run_summary import (
    summarize_all,
    summarize_ensemble,
    summarize_text,
    summarize_training,
)
from fairseq_sparse.files import write_json


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("part", choices=("train", "all", "ensemble", "text"))
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--best", action="store_true", help="train: the best checkpoint is used, not the last ones"
    )
    return parser.parse_args(argv)


def summarize(args: argparse.Namespace) -> None:
    variables = ("DATASET", "DATASET_NOTE", "VARIANT", "VARIANT_NAME", "SETTINGS", "CONFIG")
    names = {name.lower(): os.environ.get(name, "") for name in variables}
    if args.part == "train":
        name, summary = "train.json", summarize_training(args.run, best=args.best)
    elif args.part == "all":
        name, summary = "summary.json", summarize_all(args.run, names)
    elif args.part == "text":
        name, summary = "measures.json", summarize_text(args.run)
    else:
        members = os.environ.get("MEMBERS", "").split(":")
        name, summary = "summary.json", summarize_ensemble(args.run, names, members)
    write_json(args.run / name, summary)


def main(argv: list[str] | None = None) -> int:
    return report_errors("summarize_run", summarize, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
