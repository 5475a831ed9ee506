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
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_sparse.commands.common import (
    add_logs,
    check_logs,
    check_outputs,
    command_parser,
    with_progress,
)
from fairseq_sparse.commands.models import (
    add_subwords,
)
from fairseq_sparse.commands.values import output_file, positive
from fairseq_sparse.files import write_text

if TYPE_CHECKING:
    from fairseq_sparse.measure.run_folders import Run

OUTPUT = " --output report.html"


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
    add_logs(parser)
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
    check_logs(parser, options)
    check_outputs(parser, options, "output")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.cache import Measurements
    from fairseq_sparse.measure.run_folders import find_data, find_runs, find_subwords
    from fairseq_sparse.plots.pictures import require_matplotlib
    from fairseq_sparse.report.page import make_page
    from fairseq_sparse.tables.results import read_alignment
    from fairseq_sparse.tables.summaries import read_run

    require_matplotlib()
    runs = find_runs(options.runs)
    logs = options.log or [None] * len(runs)
    for run, log in zip(runs, logs, strict=True):
        # So that a bad file is refused before anything is measured.
        read_run(run.place, log)
        read_alignment(run.place)
    data = find_data(runs, options.data)
    subwords = options.subwords or find_subwords(runs)
    models = []
    for run, log in zip(runs, logs, strict=True):
        found = Measurements(run, data, options.subset, subwords, options.cpu, with_progress)
        model = {
            "name": run.name,
            "output": found.output(),
            "decoded": found.decoded(),
            "empty": found.empty(),
            "attention": found.attention(),
            "sentences": found.sentences(options.sentences),
            "alignment": run.alignment,
            "missing": hints(run, data, options.subset, subwords),
        }
        # The summary of a plain run has what is now measured.
        summary, records = read_run(run.place, log)
        models.append({**model, "summary": summary, "records": records})
    names = (model["summary"].get("dataset") for model in models)
    write_text(options.output, make_page(models, next(filter(None, names), data), options.subset))
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}, {size:.1f} MB")


def hints(run: Run, data: str, subset: str, subwords: str) -> dict[str, list[str]]:
    """Return for each part of a run the commands that make it; only the names of files that cannot
    be known are left to be filled in, in capital letters. A checkpoint alone has no place for error
    rates of its alignments."""
    records = [shell("report", run.place, "--log", "TRAIN.log") + OUTPUT]
    if run.place.is_file():
        return {"records": records, "alignment": []}
    links, result = f"{run.place}/alignments", f"{run.place}/alignment.json"
    where = ("--subset", subset, "--subwords", subwords, "--output-folder", links)
    words = ("--words", "WORDS.SOURCE", "WORDS.TARGET", "--json", result)
    align = shell("align", data, "--path", run.checkpoint, *where)
    return {
        "records": records,
        "alignment": [align, shell("analyze", "alignment", "GOLD.talp", links, *words)],
    }


def shell(*words: object) -> str:
    """Return a command of fairseq-sparse as one types it."""
    return shlex.join(["fairseq-sparse", *map(str, words)])
