#!/usr/bin/env python3
"""Print one Markdown table of the results of several runs, from their summary.json."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# name, heading, path in summary.json, format; of attention, the encoder's, the decoder's and cross
COLUMNS = {
    "variant": ("variant", "variant", "{}"),
    "bleu": ("BLEU", "bleu.bleu", "{:.2f}"),
    "nonzeros": ("nonzeros", "test.nonzeros", "{:.1f}"),
    "prob_sum": ("Σp", "test.prob_sum", "{:.3f}"),
    "gold_zero": ("gold at p=0 (%)", "test.gold_zero", "{:.1f}"),
    "accuracy": ("accuracy (%)", "test.accuracy", "{:.1f}"),
    "sparsity": ("zeros in attention (%)", "attention.sparsity", "{:.1f}"),
    "null": ("null attention (%)", "attention.null", "{:.1f}"),
    "empty": ("empty", "bleu.empty_translations", "{}"),
    "updates": ("updates", "training.updates", "{:,}"),
    "words_per_second": ("words/s", "training.words_per_second", "{:,.0f}"),
    "training": ("training (min)", "training.seconds", "{:.1f}"),
    "sentences_per_second": (
        "decoding (sentences/s)",
        "generation.sentences_per_second",
        "{:.1f}",
    ),
}
# what benchmark_models.py measures of each
SPEEDS = {"words_per_second": "training", "sentences_per_second": "beam"}


def look_up(summary: dict, path: str) -> object:
    """The value at a dotted path, or None."""
    value: object = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def cell(summary: dict, name: str, baseline: dict | None = None) -> str:
    """One field of the table; a speed with its ratio to the baseline's."""
    _, path, form = COLUMNS[name]
    if path.startswith("attention."):
        rate = path.removeprefix("attention.")
        places = summary.get("attention", {}).values()
        return " / ".join(form.format(100 * place[rate]) for place in places) or "-"
    measured = summary.get("measured", {}).get(name)
    if measured:  # side by side: the ratio is the median of several rounds
        return f"{measured['rate']:,.0f} ({measured['speed']:.2f})"
    value = look_up(summary, path)
    if value is None:
        return "-"
    if name == "variant" and summary.get("settings"):
        value = f"{value}, settings of {summary['settings']}"
    text = form.format(value / 60 if name == "training" else value)
    if name not in SPEEDS:
        return text
    base = look_up(baseline, path) if baseline else None
    return f"{text} ({value / base:.2f})" if base else text


def table(summaries: list[dict], columns: list[str], baseline: dict | None = None) -> str:
    """The Markdown table, and below it what the figures were measured with."""
    from fairseq_sparse.analysis.reports import markdown_table

    header = [COLUMNS[name][0] for name in columns]
    rows = [[cell(summary, name, baseline) for name in columns] for summary in summaries]
    lines = [markdown_table(header, rows)]
    for label, path in (
        ("data", "dataset"),
        ("sacreBLEU", "bleu.signature"),
        ("CPU", "hardware.cpu"),
        ("CPU threads", "hardware.threads"),
        ("GPUs", "hardware.gpus"),
        ("versions", "versions"),
    ):
        values = {describe(look_up(summary, path)) for summary in summaries} - {""}
        if values:
            lines.append(f"\n{label}: " + "; ".join(sorted(values)))
    return "\n".join(lines)


def describe(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value or "")


def add_speeds(summaries: list[dict], results: list[dict]) -> None:
    """Give each summary what was measured of its variant."""
    for summary in summaries:
        own = [result for result in results if result["model"] == summary.get("variant")]
        summary["measured"] = {
            name: result
            for name, part in SPEEDS.items()
            for result in own
            if result["part"] == part and "speed" in result
        }


def column_names(text: str) -> list[str]:
    """A list of columns, for argparse."""
    names = text.split(",")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no {', '.join(unknown)}; choose from {', '.join(COLUMNS)}"
        )
    return names


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--columns",
        type=column_names,
        default=list(COLUMNS),
        metavar="NAME,...",
        help=f"which columns (default: all): {', '.join(COLUMNS)}",
    )
    parser.add_argument(
        "--baseline",
        metavar="VARIANT",
        help="variant among the runs to whose speeds the others' ratios are given",
    )
    parser.add_argument(
        "--speeds",
        type=Path,
        metavar="JSON",
        help="of benchmark_models.py: these speeds instead of those of the runs' logs; its models "
        "are named as the variants",
    )
    args = parser.parse_args(argv)
    summaries = []
    for run in args.runs:
        try:
            summaries.append(json.loads((run / "summary.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            print(f"results_table: left out {run}: {error}", file=sys.stderr)
    if not summaries:
        print("results_table: no results; run the stage analyze first", file=sys.stderr)
        return 1
    found = [summary for summary in summaries if summary.get("variant") == args.baseline]
    if args.baseline and len(found) != 1:
        print(f"results_table: --baseline {args.baseline}: {len(found)} runs", file=sys.stderr)
        return 1
    if args.speeds:
        try:
            add_speeds(summaries, json.loads(args.speeds.read_text(encoding="utf-8"))["results"])
        except (OSError, ValueError, KeyError) as error:
            print(f"results_table: --speeds {args.speeds}: {error!r}", file=sys.stderr)
            return 1
    print(table(summaries, args.columns, found[0] if found else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
