#!/usr/bin/env python3
"""Draw a mapping for several alphas.

mappings.py alpha-relu   [(α−1)x]₊^(1/(α−1)), τ = 0, by x        ("Speeding Up Entmax", Fig. 1)
mappings.py entmax       the first entry of α-entmax([t, 0]), by t
                         ("Sparse Sequence-to-Sequence Models", Fig. 3)

An alpha of 1 is softmax, and is only allowed for entmax.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# scripts/ is the import path of the helpers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from command_line import exit_status, output_file, report_errors, script_parser  # noqa: E402
from fairseq_sparse.ops import alpha_relu, entmax  # noqa: E402
from fairseq_sparse.plots.pictures import (  # noqa: E402
    COLOURS,
    DASHES,
    add_legend,
    new_figure,
    require_matplotlib,
    save_figure,
)

POINTS = 601
NAMES = {
    "alpha-relu": {2.0: "2-ReLU = ReLU"},
    "entmax": {1.0: "softmax (α = 1)", 1.5: "1.5-entmax", 2.0: "sparsemax (α = 2)"},
}


def alpha_relu_line(alpha: float) -> tuple[Tensor, Tensor]:
    """Return x and alpha-ReLU of x with tau = 0, for an alpha above 1; 2-ReLU is ReLU."""
    x = torch.linspace(-1, 3, POINTS, dtype=torch.float64)
    return x, alpha_relu(x, tau=0.0, alpha=alpha)


def entmax_line(alpha: float) -> tuple[Tensor, Tensor]:
    """Return t and the first entry of alpha-entmax([t, 0]), which is 0 or 1 for |t| >= 1/(alpha-1).

    Args:
        alpha: at least 1, where 1 is softmax.
    """
    t = torch.linspace(-4.5, 4.5, POINTS, dtype=torch.float64)
    return t, entmax(torch.stack([t, torch.zeros_like(t)], dim=-1), alpha)[:, 0]


def draw(mapping: str, alphas: Sequence[float]):
    """Return a figure with a line for each alpha."""
    figure = new_figure(5.6, 3.6)
    (axes,) = figure.axes
    line = entmax_line if mapping == "entmax" else alpha_relu_line
    for number, alpha in enumerate(alphas):
        axes.plot(
            *(values.tolist() for values in line(alpha)),
            label=NAMES[mapping].get(alpha, f"{alpha:g}-{mapping.replace('alpha-relu', 'ReLU')}"),
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.6,
        )
    if mapping == "entmax":
        axes.set(xlabel="t", ylabel="α-entmax([t, 0]), first entry")
    else:
        axes.set(xlabel="x", ylabel="α-ReLU(x), τ = 0", ylim=(-0.1, 3.1))
    add_legend(figure, columns=3)
    return figure


def alphas(text: str) -> list[float]:
    """Parse numbers of at least 1, separated by commas, for argparse."""
    values = sorted({float(part) for part in text.split(",")})
    if not all(1 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text}: an alpha is a number of at least 1")
    return values


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("mapping", choices=list(NAMES))
    parser.add_argument("--alphas", type=alphas, required=True, metavar="A,B,...")
    parser.add_argument(
        "--output",
        required=True,
        nargs="+",
        type=output_file,
        metavar="FILE",
        help="pictures to write, in the format of their suffix: .png, .svg, .pdf",
    )
    options = parser.parse_args(arguments)
    if options.mapping == "alpha-relu" and 1 in options.alphas:
        parser.error("--alphas: alpha-ReLU needs an alpha above 1")
    return options


def run(options: argparse.Namespace) -> None:
    require_matplotlib()
    figure = draw(options.mapping, options.alphas)
    for path in options.output:
        save_figure(figure, path)
        print(path)


def main(arguments: list[str] | None = None) -> int:
    return report_errors("mappings", run, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["matplotlib"]))
