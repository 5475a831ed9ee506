"""Draw a mapping for several alphas.

draw mappings alpha-relu   [(α−1)x]₊^(1/(α−1)), τ = 0, by x        ("Speeding Up Entmax", Fig. 1)
draw mappings entmax       the first entry of α-entmax([t, 0]), by t
                           ("Sparse Sequence-to-Sequence Models", Fig. 3)

An alpha of 1 is softmax, and is only allowed for entmax.
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import command_parser, finish, output_file


def alphas(text: str) -> list[float]:
    """Parse numbers of at least 1, separated by commas, for argparse."""
    values = sorted({float(part) for part in text.split(",")})
    if not all(1 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text}: an alpha is a number of at least 1")
    return values


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("draw mappings", __doc__)
    parser.add_argument("mapping", choices=("alpha-relu", "entmax"))
    parser.add_argument(
        "--alphas", type=alphas, metavar="A,B,...", help="default: 1.25,1.5,1.75,2; entmax: also 1"
    )
    parser.add_argument(
        "--output",
        required=True,
        nargs="+",
        type=output_file,
        metavar="FILE",
        help="pictures to write, in the format of their suffix: .png, .svg, .pdf",
    )
    options = parser.parse_args(arguments)
    options.alphas = options.alphas or [1.0] * (options.mapping == "entmax") + [1.25, 1.5, 1.75, 2]
    if options.mapping == "alpha-relu" and 1 in options.alphas:
        parser.error("--alphas: alpha-ReLU needs an alpha above 1")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.plots.mapping_plots import draw_alpha_relu, draw_entmax
    from fairseq_sparse.plots.pictures import require_matplotlib, save_figure

    draw = {"alpha-relu": draw_alpha_relu, "entmax": draw_entmax}[options.mapping]
    require_matplotlib()
    for path in options.output:
        save_figure(draw(options.alphas), path)
        print(path)


def main(arguments: list[str] | None = None) -> int:
    return finish("draw mappings", run, parse_arguments(arguments))
