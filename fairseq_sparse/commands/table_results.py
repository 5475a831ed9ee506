"""Print one Markdown table of the results of several runs.

A RUN is a folder of fairseq-sparse run, which has all results in its summary.json; a --save-dir
of fairseq-train; or a checkpoint. For the last two, an unknown result is shown as "-", and the
command that provides it is named.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.common import command_parser, finish, one_line, program
from fairseq_sparse.errors import AnalysisError, CheckpointError
from fairseq_sparse.files import read_json
from fairseq_sparse.recipes.summaries import (
    SCORES,
    read_score,
    statistics_of,
    summarize_attention,
    summarize_generation,
    summarize_training,
)
from fairseq_sparse.tables.columns import (
    COLUMNS,
    SPEEDS,
    cell,
    columns_of,
    conditions,
    read_summary_file,
)
from fairseq_sparse.tables.formats import format_table

COMMAND = "table results"
# The benchmarks whose results have speeds of models.
BENCHMARKS = ("training_step", "decoding")


def table(summaries: list[dict], columns: list[str], baseline: dict | None = None) -> str:
    """Return the Markdown table, and below it the conditions of the measurements."""
    header = [COLUMNS[name].heading for name in columns]
    rows = [[cell(summary, name, baseline) for name in columns] for summary in summaries]
    lines = [f"\n{label}: {text}" for label, text in conditions(summaries)]
    return "\n".join([format_table(header, rows), *lines])


def model_name(summary: dict) -> str:
    """Return VARIANT or VARIANT+ATTENTION, as the command run names a model."""
    attention = summary.get("model", {}).get("attention", "softmax")
    return summary.get("variant", "") + ("" if attention == "softmax" else f"+{attention}")


def add_speeds(summaries: list[dict], results: list[dict]) -> None:
    """Add to each summary the measured speeds of its variant.

    Raises:
        AnalysisError: a speed was measured under several conditions.
    """
    for summary in summaries:
        summary["measured"] = {}
        for name, part in SPEEDS.items():
            found = [
                result
                for result in results
                if (result["model"], result["part"]) == (model_name(summary), part)
                and "speed" in result
            ]
            if len(found) > 1:
                raise AnalysisError(
                    f"--speeds has {len(found)} speeds of {summary['variant']} ({part}): give the "
                    "results of one beam, batch size and precision"
                )
            if found:
                summary["measured"][name] = found[0]


# The parts of the summary of a run without recipes, and the source of each.
PLAIN_PARTS = {
    "training": "speed and updates: --log FILE, the output of fairseq-train",
    "other": "results beside those of training: give the folder of its run",
    "score": "BLEU: fairseq-sparse score --json RUN/bleu.json",
    "generation": "decoding speed: fairseq-generate ... > RUN/generate-test.txt 2>&1",
    "test": "nonzeros, accuracy: fairseq-validate --valid-subset test --log-format json ... "
    "> RUN/validate-test.txt 2>&1",
    "attention": "zeros in attention: fairseq-sparse analyze attention --json RUN/attention.json",
}


def summarize_plain(run: Path, name: str, log: Path | None) -> tuple[dict, list[str]]:
    """Summarize a run without recipes; return the summary, and the names of the missing parts.

    Raises:
        AnalysisError: the folder has no checkpoint, or the log no numbers.
        OSError, ValueError: a file cannot be read.
    """
    from fairseq_sparse.measure.run_folders import find_checkpoint, read_log

    find_checkpoint(run)
    summary: dict = {"variant": name}
    if log is not None:
        read_log(log)
        summary["training"] = summarize_training(log)
    if run.is_file():  # the other files in its folder may be those of another checkpoint
        return summary, ["other"] if log else ["training", "other"]
    files = {
        "generation": ("generate-test.txt", lambda path: summarize_generation(run)),
        "test": ("validate-test.txt", lambda path: statistics_of(run, "test")),
        "attention": ("attention.json", summarize_attention),
    }
    for part, (file, summarize) in files.items():
        if (run / file).is_file():
            try:
                summary[part] = summarize(run / file)
            except AnalysisError as error:  # the other parts can still be shown
                print(f"{program(COMMAND)}: {one_line(error)}", file=sys.stderr)
    if any((run / file).is_file() for file in SCORES.values()):
        summary |= read_score(run)
    found = {*summary, "other", *(["score"] if summary.keys() & SCORES.keys() else [])}
    return summary, [part for part in PLAIN_PARTS if part not in found]


def read_summaries(runs: list[Path], logs: list[Path]) -> list[dict]:
    """Read the summaries of all readable runs; report left-out runs and missing parts on stderr."""
    summaries: list[dict] = []
    lacking: dict[str, list[str]] = {}
    for run, log in zip(runs, logs or [None] * len(runs), strict=True):
        name = f"{run.resolve().parent.name}/{run.name}" if run.is_file() else run.resolve().name
        try:
            if (run / "summary.json").is_file():
                summary, missing = read_summary_file(run / "summary.json"), []
            else:
                summary, missing = summarize_plain(run, name, log)
        except (AnalysisError, CheckpointError, OSError, ValueError) as error:
            found = (run / "summary.json").is_file()
            why = one_line(error) if found else f"no {run / 'summary.json'}; {one_line(error)}"
            print(f"{program(COMMAND)}: left out {run}: {why}", file=sys.stderr)
            continue
        summaries.append(summary)
        for part in missing:
            lacking.setdefault(part, []).append(name)
    for part, names in lacking.items():
        print(f"{program(COMMAND)}: no {PLAIN_PARTS[part]} ({', '.join(names)})", file=sys.stderr)
    return summaries


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser(COMMAND, __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--log",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="output of fairseq-train, or its --log-file, for each RUN in order; ignored for runs "
        "of the recipes, which have their own",
    )
    parser.add_argument(
        "--columns",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="columns to show (default: all that fit the runs); an unknown name lists the choices",
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
        "those of the runs' logs; the models must be named like the variants",
    )
    options = parser.parse_args(arguments)
    if options.log and len(options.log) != len(options.runs):
        runs, logs = len(options.runs), len(options.log)
        parser.error(f"--log: {runs} runs, but {logs} logs: give one for each")
    unknown = [name for name in options.columns or () if name not in COLUMNS]
    if unknown:
        parser.error(f"--columns: no {', '.join(unknown)}; choose from {', '.join(COLUMNS)}")
    return options


def read_speeds(paths: list[Path]) -> list[dict]:
    """Read the results of the benchmarks, each with the ``file`` that it is from."""
    results: list[dict] = []
    for path in paths:
        content = read_json(path)
        if content.get("benchmark") not in BENCHMARKS:
            raise AnalysisError(f"--speeds {path}: not made by training_step.py or decoding.py")
        found = content.get("results")
        if not isinstance(found, list) or not all(map(_is_result, found)):
            raise AnalysisError(f"--speeds {path}: results without speeds: measure again")
        results += [{**result, "file": str(path)} for result in found]
    return results


def _is_result(result: Any) -> bool:
    """Return whether a result of a benchmark has a model, and its speeds are positive numbers."""
    if not isinstance(result, dict) or not {"model", "part"} <= result.keys():
        return False
    speeds = (result.get(name, 1) for name in ("rate", "speed"))
    return all(isinstance(speed, (int, float)) and speed > 0 for speed in speeds)


def run(options: argparse.Namespace) -> None:
    summaries = read_summaries(options.runs, options.log)
    if not summaries:
        raise AnalysisError("no results; run the stage analyze first")
    found = [summary for summary in summaries if model_name(summary) == options.baseline]
    if options.baseline and len(found) != 1:
        raise AnalysisError(f"--baseline {options.baseline}: {len(found)} runs")
    add_speeds(summaries, read_speeds(options.speeds))
    columns = options.columns or columns_of(summaries)
    print(table(summaries, columns, found[0] if found else None))


def main(arguments: list[str] | None = None) -> int:
    return finish(COMMAND, run, parse_arguments(arguments))
