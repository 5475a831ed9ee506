#!/usr/bin/env python3
"""Print one Markdown table of the results of several runs, from their summary.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from command_line import exit_status, one_line, read_json


def table(summaries: list[dict], columns: list[str], baseline: dict | None = None) -> str:
    """The Markdown table, and below it what the figures were measured with."""
    from fairseq_sparse.analysis.reports import markdown_table
    from fairseq_sparse.analysis.results import COLUMNS, cell, conditions

    header = [COLUMNS[name][0] for name in columns]
    rows = [[cell(summary, name, baseline) for name in columns] for summary in summaries]
    lines = [f"\n{label}: {text}" for label, text in conditions(summaries)]
    return "\n".join([markdown_table(header, rows), *lines])


def add_speeds(summaries: list[dict], results: list[dict]) -> None:
    """Give each summary what was measured of its variant."""
    from fairseq_sparse.analysis.results import SPEEDS

    for summary in summaries:
        own = [result for result in results if result["model"] == summary.get("variant")]
        summary["measured"] = {
            name: result
            for name, part in SPEEDS.items()
            for result in own
            if result["part"] == part and "speed" in result
        }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--columns",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="which columns (default: all that fit the runs); an unknown name lists them",
    )
    parser.add_argument(
        "--baseline",
        metavar="VARIANT",
        help="variant among the runs to whose speeds the others' ratios are given",
    )
    parser.add_argument(
        "--speeds",
        nargs="+",
        type=Path,
        default=[],
        metavar="JSON",
        help="of benchmark/training_step.py or benchmark/decoding.py: these speeds instead of "
        "those of the runs' logs; their models are named as the variants",
    )
    args = parser.parse_args(argv)
    from fairseq_sparse.analysis.results import COLUMNS, columns_of

    unknown = [name for name in args.columns or () if name not in COLUMNS]
    if unknown:
        parser.error(f"--columns: no {', '.join(unknown)}; choose from {', '.join(COLUMNS)}")
    summaries = []
    for run in args.runs:
        try:
            summaries.append(read_json(run / "summary.json"))
        except (OSError, ValueError) as error:
            print(f"results_table: left out {run}: {one_line(error)}", file=sys.stderr)
    if not summaries:
        print("results_table: no results; run the stage analyze first", file=sys.stderr)
        return 1
    found = [summary for summary in summaries if summary.get("variant") == args.baseline]
    if args.baseline and len(found) != 1:
        print(f"results_table: --baseline {args.baseline}: {len(found)} runs", file=sys.stderr)
        return 1
    results = []
    for path in args.speeds:
        try:
            results += read_json(path)["results"]
        except (OSError, ValueError, KeyError) as error:
            print(f"results_table: --speeds {path}: {error!r}", file=sys.stderr)
            return 1
    add_speeds(summaries, results)
    columns = args.columns or columns_of(summaries)
    print(table(summaries, columns, found[0] if found else None))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
