"""Compare trained models in one HTML page.

fairseq-sparse report RUN... --output report.html

A RUN is a folder of fairseq-sparse run (runs/DATASET/VARIANT-cpu), a --save-dir of fairseq-train
(its checkpoint_best.pt, else checkpoint_last.pt), or a checkpoint. The page has the results beside
the papers' figures, training curves, statistics of the output and of the attention, and, sentence
by sentence, every attention weight and the alternatives at every step. It needs no server and no
network, and says in each section which data of a run are missing. Whatever must be computed for it
is kept in RUN/measurements (RUN/measurements-checkpoint_best and so on), so that the next page is
quick and an interrupted run can continue.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import (
    add_subwords,
    check_outputs,
    command_parser,
    finish,
    output_file,
    positive,
    with_progress,
)
from fairseq_sparse.files import write_text


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("report", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--output", required=True, type=output_file, metavar="FILE", help="the page to write"
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="folder that fairseq-preprocess made (default: the training data of the first run)",
    )
    parser.add_argument(
        "--log",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="output of fairseq-train, or its --log-file, for each RUN in order (default: "
        "RUN/logs/train.log, where the recipes put it)",
    )
    parser.add_argument("--subset", default="test", help="part of the data (default: test)")
    parser.add_argument(
        "--sentences",
        type=positive,
        default=20,
        metavar="N",
        help="show the first N sentences one by one (default: 20)",
    )
    add_subwords(parser, default=None)
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "output")
    return options


def report(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.cache import Measurements
    from fairseq_sparse.measure.run_folders import find_data, find_subwords, read_runs
    from fairseq_sparse.report.page import make_page

    runs = read_runs(options.runs, options.log)
    data = find_data(runs, options.data)
    subwords = options.subwords or find_subwords(runs)
    measurements = [
        Measurements(run, data, options.subset, subwords, options.cpu, with_progress)
        for run in runs
    ]
    write_text(options.output, make_page(measurements, options.sentences))


def run(options: argparse.Namespace) -> None:
    report(options)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}, {size:.1f} MB")


def main(arguments: list[str] | None = None) -> int:
    return finish("report", run, parse_arguments(arguments))
