#!/usr/bin/env python3
"""Print one Markdown table of the results of several runs, from their summary.json."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

# heading, path in summary.json, format; of attention, the encoder's, the decoder's and cross
COLUMNS = (
    ("variant", "variant", "{}"),
    ("BLEU", "bleu.bleu", "{:.2f}"),
    ("nonzeros", "test.nonzeros", "{:.1f}"),
    ("Σp", "test.prob_sum", "{:.3f}"),
    ("gold at p=0 (%)", "test.gold_zero", "{:.1f}"),
    ("accuracy (%)", "test.accuracy", "{:.1f}"),
    ("zeros in attention (%)", "attention.sparsity", "{:.1f}"),
    ("null attention (%)", "attention.null", "{:.1f}"),
    ("empty", "bleu.empty_translations", "{}"),
    ("updates", "training.updates", "{:,}"),
    ("words/s", "training.words_per_second", "{:,.0f}"),
    ("training (min)", "training.seconds", "{:.1f}"),
    ("decoding (sentences/s)", "generation.sentences_per_second", "{:.1f}"),
)


def look_up(summary: dict, path: str) -> object:
    """The value at a dotted path, or None."""
    value: object = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def cell(summary: dict, path: str, form: str) -> str:
    if path.startswith("attention."):
        name = path.removeprefix("attention.")
        places = summary.get("attention", {}).values()
        return " / ".join(form.format(100 * place[name]) for place in places) or "-"
    value = look_up(summary, path)
    if value is None:
        return "-"
    if path == "variant" and summary.get("settings"):
        value = f"{value}, settings of {summary['settings']}"
    return form.format(value / 60 if path == "training.seconds" else value)


def table(summaries: list[dict]) -> str:
    """The Markdown table, and below it what the figures were measured with."""
    rows = [[heading for heading, _, _ in COLUMNS], ["---"] * len(COLUMNS)]
    rows += [[cell(summary, path, form) for _, path, form in COLUMNS] for summary in summaries]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
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
    print(table(summaries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
