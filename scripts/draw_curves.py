#!/usr/bin/env python3
"""Draw the validation curves of runs that were kept by scripts/publish_run.py.

A PATTERN, such as multi30k_de_en/softmax-*, matches the runs (seeds) of one model in
docs/results/runs. Each run has a line, by updates on the left and by hours on the right.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from command_line import exit_status, report_errors, script_parser

ROOT = Path(__file__).resolve().parents[1]


def read_curve(path: Path, metric: str) -> dict[str, list[float]]:
    """Return the updates, hours and values of a metric from a training.tsv.

    Raises:
        ValueError: it does not have the metric, or no hours.
    """
    with open(path, encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    names = {"updates": "num_updates", "hours": "hours", "values": metric}
    known = [row for row in rows if all(row.get(name) for name in names.values())]
    if not known:
        found = ", ".join(rows[0]) if rows else "nothing"
        raise ValueError(
            f"{path} does not have all of {', '.join(names.values())}, but {found}: choose another "
            "--metric, or publish the run again with scripts/publish_run.py"
        )
    return {key: [float(row[name]) for row in known] for key, name in names.items()}


def parse_arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("patterns", nargs="+", metavar="PATTERN")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE.png")
    parser.add_argument("--metric", default="bleu", help="a column of training.tsv (default: bleu)")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    return parser.parse_args()


def draw(options: argparse.Namespace) -> None:
    from fairseq_sparse.files import read_json
    from fairseq_sparse.plots.curves import METRICS, draw_curves
    from fairseq_sparse.plots.pictures import save_figure

    found: dict[str, list[dict[str, list[float]]]] = {}
    for pattern in options.patterns:
        paths = sorted((options.results / "runs").glob(f"{pattern}/training.tsv"))
        if not paths:
            raise ValueError(f"no run in {options.results / 'runs'} matches {pattern}")
        for path in paths:
            summary = read_json(path.parent / "summary.json")
            name = summary.get("variant_name") or summary["variant"]
            found.setdefault(name, []).append(read_curve(path, options.metric))
    save_figure(draw_curves(found, METRICS.get(options.metric, options.metric)), options.picture)
    print(options.picture)


def main() -> int:
    return report_errors("draw_curves", draw, parse_arguments())


if __name__ == "__main__":
    sys.exit(exit_status(main))
