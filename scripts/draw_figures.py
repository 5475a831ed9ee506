#!/usr/bin/env python3
"""Draw pictures from the results that are published in docs/results.

draw_figures.py                           the pictures of docs/: all, or those named
draw_figures.py --runs PATTERN... --picture FILE.{png,svg,pdf}
                                          the validation curves of other runs; a PATTERN, such as
                                          multi30k_de_en/softmax-*, matches the seeds of one model
"""

from __future__ import annotations

import argparse
import csv
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from command_line import exit_status, report_errors, script_parser

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
MULTI30K = [f"multi30k_de_en/{name}-*" for name in ("softmax", "entmax15", "alpha_relu")]
INFLECTION = "softmax", "softmax_80_epochs", "entmax15", "sparsemax"
INFLECTION_RUNS = [f"sigmorphon2018_medium_part/{name}-[0-9]" for name in INFLECTION]
# The names of models in pictures.
NAMES = {
    "entmax15": "1.5-entmax",
    "alpha_relu": "1.5-ReLU",
    "entmax: output 1, attention 1": "softmax",
    "entmax: output 1.5, attention 1": "1.5-entmax",
    "entmax: output 2, attention 1": "sparsemax",
}
# The columns of rare_words.csv with F1 by the word's frequency.
FREQUENCIES = ("F1: once", "2 to 9", "10 to 99", "100 to 999", "1,000 and more")
# Offset and alignment of a name of a kind of attention that has no room to the right of its point.
LEFT, ABOVE = ((-7, 0), "right", "center"), ((0, 6), "center", "bottom")
PLACES = dict.fromkeys(("rela_i", "rela_g_layernorm", "relu_rmsnorm", "relu"), LEFT)
PLACES["rela_g_dec"] = ABOVE


def read_rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter=delimiter))


def read_curve(path: Path, metric: str) -> dict[str, list[float]]:
    """Return the updates, hours and values of a metric from a training.tsv.

    Raises:
        ValueError: it does not have the metric, or no hours.
    """
    rows = read_rows(path, "\t")
    names = {"updates": "num_updates", "hours": "hours", "values": metric}
    known = [row for row in rows if all(row.get(name) for name in names.values())]
    if not known:
        found = ", ".join(rows[0]) if rows else "nothing"
        raise ValueError(
            f"{path} does not have all of {', '.join(names.values())}, but {found}: choose another "
            "--metric, or publish the run again with scripts/publish_run.py"
        )
    return {key: [float(row[name]) for row in known] for key, name in names.items()}


def draw_runs(
    results: Path, patterns: Sequence[str], metric: str, lowest: float | None = None
) -> Figure:
    """Draw a line for each run, by updates on the left and by hours on the right.

    Args:
        lowest: the value at which the vertical axis begins.
    """
    from fairseq_sparse.files import read_json
    from fairseq_sparse.plots.curves import METRICS, draw_curves

    found: dict[str, list[dict[str, list[float]]]] = {}
    for pattern in patterns:
        paths = sorted((results / "runs").glob(f"{pattern}/training.tsv"))
        if not paths:
            raise ValueError(f"no run in {results / 'runs'} matches {pattern}")
        for path in paths:
            summary = read_json(path.parent / "summary.json")
            name = summary.get("variant_name") or summary["variant"]
            found.setdefault(NAMES.get(name, name), []).append(read_curve(path, metric))
    figure = draw_curves(found, METRICS.get(metric, metric))
    figure.axes[0].set_ylim(bottom=lowest)
    return figure


def draw_word_frequency(rows: Sequence[dict[str, str]]) -> Figure:
    """Draw the F1 of words by their frequency in the training text, a bar for each model."""
    from fairseq_sparse.plots.pictures import add_legend, colours_of, draw_bars, new_figure

    models = {row["model"]: row for row in rows if row["corpus"] == "Multi30k"}
    colours = colours_of([name for name in models if "," not in name])
    figure = new_figure(6.4, 3.2)
    (axes,) = figure.axes
    draw_bars(
        axes,
        [textwrap.fill(column.removeprefix("F1: "), 10) for column in FREQUENCIES],
        [
            ([float(models[name][x]) for x in FREQUENCIES], {"label": name, "color": colour})
            for name, colour in colours.items()
        ],
    )
    axes.set_xlabel("how often the word occurs in the training text")
    axes.set_ylabel("F1 of the test set's words")
    add_legend(figure, columns=3)
    return figure


def draw_attention_zeros(rows: Sequence[dict[str, str]]) -> Figure:
    """Draw BLEU by the share of zeros, the mean of the three places of attention.

    Attention that is sparse in one place only has an open circle. Rows whose output is not softmax
    are left out.
    """
    from fairseq_sparse.plots.pictures import colours_of, new_figure

    figure = new_figure(6.4, 4.0)
    (axes,) = figure.axes
    for row in rows:
        name = row["attention"].strip("`").removeprefix("attention_")
        if "output" in name:
            continue
        zeros = fmean(float(share) for share in row["zeros (%)"].split("(")[0].split("/"))
        point, colour = (zeros, float(row["BLEU"])), colours_of([name])[name]
        alone = name.endswith(("_enc", "_dec", "_cross"))
        axes.plot(*point, "o", color=colour, markerfacecolor="white" if alone else colour)
        offset, *aligned = PLACES.get(name, ((7, 0), "left", "center"))
        style = {"ha": aligned[0], "va": aligned[1], "fontsize": 8}
        axes.annotate(name, point, offset, textcoords="offset points", **style)
    axes.set_xlim(-4, 104)
    axes.set_xlabel("weights that are exactly 0 (%), mean of encoder, decoder and cross-attention")
    axes.set_ylabel("BLEU")
    return figure


def draw_bleu(results: Path, patterns: Sequence[str]) -> Figure:
    """Draw the BLEU of each run by its hours of training, a point for each seed."""
    from fairseq_sparse.files import read_json
    from fairseq_sparse.plots.pictures import add_legend, colours_of, new_figure

    found: dict[str, list[tuple[float, float]]] = {}
    for pattern in patterns:
        for path in sorted((results / "runs").glob(f"{pattern}/summary.json")):
            summary = read_json(path)
            point = summary["training"]["seconds"] / 3600, summary["bleu"]["bleu"]
            found.setdefault(NAMES.get(summary["variant"], summary["variant"]), []).append(point)
    figure = new_figure(6.4, 3.2)
    (axes,) = figure.axes
    for name, colour in colours_of(list(found)).items():
        axes.plot(*zip(*found[name], strict=True), "o", color=colour, label=name)
    axes.set_xlim(left=0)
    axes.set_xlabel("hours of training")
    axes.set_ylabel("BLEU")
    add_legend(figure, columns=3)
    return figure


def parse_arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--runs", nargs="+", metavar="PATTERN")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--metric", default="bleu", help="a column of training.tsv (default: bleu)")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    if bool(options.runs) != bool(options.picture):
        parser.error("--runs and --picture: give both")
    if unknown := set(options.names) - set(PICTURES):
        parser.error(f"{min(unknown)}: the pictures are {', '.join(PICTURES)}")
    return options


PICTURES = {
    "multi30k_curves": lambda results: draw_runs(results, MULTI30K, "accuracy", lowest=45),
    "multi30k_bleu": lambda results: draw_bleu(results, MULTI30K),
    "inflection_curves": lambda results: draw_runs(results, INFLECTION_RUNS, "sentence_accuracy"),
    "word_frequency": lambda results: draw_word_frequency(read_rows(results / "rare_words.csv")),
    "attention_zeros": lambda results: draw_attention_zeros(
        read_rows(results / "multi30k_attention.csv")
    ),
}


def draw(options: argparse.Namespace) -> None:
    from fairseq_sparse.plots.pictures import require_matplotlib, save_figure

    require_matplotlib()
    if options.runs:
        figures = {options.picture: draw_runs(options.results, options.runs, options.metric)}
    else:
        figures = {
            options.results.parent / f"{name}.png": PICTURES[name](options.results)
            for name in options.names or PICTURES
        }
    for path, figure in figures.items():
        save_figure(figure, path)
        print(path)


def main() -> int:
    return report_errors("draw_figures", draw, parse_arguments())


if __name__ == "__main__":
    sys.exit(exit_status(main))
