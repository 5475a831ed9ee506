"""Print one table of the results of several runs.

A RUN is a folder of fairseq-sparse run, which has all results in its summary.json; a --save-dir
of fairseq-train; or a checkpoint. For the last two, the command that provides a missing result is
named. Speeds are shown only if asked for, or if --speeds has them: those of the logs are of a
machine that may have had other work to do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.common import (
    add_format,
    add_logs,
    check_logs,
    command_parser,
    one_line,
    print_tables,
    program,
)
from fairseq_sparse.commands.models import refuse_twice
from fairseq_sparse.commands.values import words
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json
from fairseq_sparse.measure.run_folders import short_names
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.tables.columns import (
    COLUMNS,
    SPEEDS,
    Summary,
    cell,
    columns_of,
    conditions,
    values_of,
)
from fairseq_sparse.tables.models import PLACES
from fairseq_sparse.tables.summaries import missing_parts, read_run

COMMAND = "table results"
# The benchmarks whose results have speeds of models.
BENCHMARKS = ("training_step", "decoding")
# Flags of the model that a name has where the variant does not imply them.
_CHOSEN = ("output-alpha", "output-tau", "output-algorithm", "attention-alpha")


def model_name(summary: Summary) -> str:
    """Return VARIANT or VARIANT+ATTENTION, as the command run names a model; of several kinds of
    attention, all three. Chosen options follow, as training_step.py takes them:
    ``entmax output_alpha=1.3``."""
    model = summary.get("model", {})
    attention = model.get("attention", "softmax")
    kinds = [model.get(f"attention_{place}") or attention for place in PLACES]
    attention = "/".join(kinds if len(set(kinds)) > 1 else kinds[:1])
    name = summary.get("variant", summary["run"])
    implied = catalogue.entries("variants").get(name, {}).get("flags", {})
    flags = model.get("flags", {})
    chosen = [x for x in _CHOSEN if x in flags and flags[x] != implied.get(x)]
    options = "".join(f" {x.replace('-', '_')}={flags[x]}" for x in chosen)
    return (name if attention == "softmax" else f"{name}+{attention}") + options


def add_speeds(summaries: list[Summary], files: list[Path]) -> None:
    """Add to each summary the speeds of its variant that the benchmarks have measured, as
    ``measured``.

    Raises:
        AnalysisError: a file is not one of a benchmark, or a speed was measured under several
            conditions.
    """
    results = [result for path in files for result in read_speeds(path)]
    for summary in summaries:
        name = model_name(summary)
        summary["measured"] = {}
        for column, part in SPEEDS.items():
            found = [x for x in results if (x["model"], x["part"]) == (name, part) and "speed" in x]
            if len(found) > 1:
                raise AnalysisError(
                    f"--speeds has {len(found)} speeds of {name} ({part}): give the results of one "
                    "beam, batch size and precision"
                )
            if found:
                summary["measured"][column] = found[0]


def read_speeds(path: Path) -> list[dict[str, Any]]:
    """Read the results of a benchmark, each with the ``file`` that it is from."""
    content = read_json(path)
    if content.get("benchmark") not in BENCHMARKS:
        raise AnalysisError(f"--speeds {path}: not made by training_step.py or decoding.py")
    found = content.get("results")
    if not isinstance(found, list) or not all(map(_is_result, found)):
        raise AnalysisError(f"--speeds {path}: results without speeds: measure again")
    return [{**result, "file": str(path)} for result in found]


def _is_result(result: Any) -> bool:
    """Return whether a result of a benchmark has a model, and its speeds are positive numbers."""
    if not isinstance(result, dict) or not {"model", "part"} <= result.keys():
        return False
    speeds = (result.get(name, 1) for name in ("rate", "speed"))
    return all(isinstance(speed, (int, float)) and speed > 0 for speed in speeds)


def read_summaries(runs: list[Path], logs: list[Path]) -> list[Summary]:
    """Read the summaries of all readable runs; report left-out runs and missing parts on stderr."""
    summaries: list[Summary] = []
    names = short_names([run.resolve() for run in runs])
    for run, name, log in zip(runs, names, logs or [None] * len(runs), strict=True):
        try:
            summary, _ = read_run(run, log)
            # The recipes' runs have all results, or are not finished.
            by_recipe = (run / "run.json").exists()
            if summary.keys() == {"run"} or ("dataset" not in summary and by_recipe):
                raise AnalysisError("no summary.json, which the stage analyze writes")
            summaries.append({**summary, "run": name})
        except (AnalysisError, OSError, ValueError) as error:
            print(f"{program(COMMAND)}: left out {run}: {one_line(error)}", file=sys.stderr)
    for message in missing_parts(summaries):
        print(f"{program(COMMAND)}: {message}", file=sys.stderr)
    return summaries


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser(COMMAND, __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    add_logs(parser)
    parser.add_argument(
        "--columns",
        type=words,
        metavar="NAME,...",
        help="columns to show (default: all that the runs have); an unknown name lists the choices",
    )
    parser.add_argument(
        "--baseline",
        metavar="VARIANT",
        help="variant among the runs; speeds are shown as ratios to its speeds (those of --speeds "
        "only where both are in one file)",
    )
    parser.add_argument(
        "--speeds",
        nargs="+",
        type=Path,
        default=[],
        metavar="JSON",
        help="results of scripts/benchmark/training_step.py or decoding.py: their speeds replace "
        "those of the runs' logs; the models must be named like the variants, with options as "
        "training_step.py takes them",
    )
    add_format(parser)
    options = parser.parse_args(arguments)
    check_logs(parser, options)
    refuse_twice(parser, options.runs)
    unknown = [name for name in options.columns or () if name not in COLUMNS]
    if unknown:
        parser.error(f"--columns: no {', '.join(unknown)}; choose from {', '.join(COLUMNS)}")
    return options


def run(options: argparse.Namespace) -> None:
    summaries = read_summaries(options.runs, options.log)
    if not summaries:
        raise AnalysisError("no results; run the stage analyze first")
    found = [summary for summary in summaries if model_name(summary) == options.baseline]
    if options.baseline and len(found) != 1:
        raise AnalysisError(f"--baseline {options.baseline}: {len(found)} runs")
    add_speeds(summaries, options.speeds)
    columns = options.columns or columns_of(summaries)
    variants = {cell(summary, "variant") for summary in summaries}
    if not options.columns and len(variants) < len(summaries):
        columns = ["run", *columns]
    baseline = found[0] if found else None
    header = [COLUMNS[name].heading for name in columns]
    rows = [[cell(summary, name, baseline) for name in columns] for summary in summaries]
    numbers = {
        "runs": [{"run": part["run"], **values_of(part, columns)} for part in summaries],
        "conditions": dict(conditions(summaries, columns)),
    }
    print_tables([(header, rows)], numbers, options)
    if options.format != "json":
        for label, text in numbers["conditions"].items():
            # Below another form of table, it would have to be removed by hand.
            file = sys.stdout if options.format == "md" else sys.stderr
            print(f"\n{label}: {text}", file=file)
    if len(summaries) < len(options.runs):
        left_out = len(options.runs) - len(summaries)
        raise AnalysisError(f"{left_out} of {len(options.runs)} runs left out, see above")
