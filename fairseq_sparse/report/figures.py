"""The report's figures, as SVG that can stand in a page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Optional

from fairseq_sparse.measure.training_log import Records, curves
from fairseq_sparse.plots.pictures import DASHES, add_legend, draw_updates, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (5.6, 3.2)  # inches
# Statistics of the log: the title, and whether the axis is logarithmic.
CURVES = {
    "loss": ("loss", False),
    "ppl": ("perplexity", True),
    "accuracy": ("accuracy (%)", False),
    "nonzeros": ("tokens with p > 0 at a step", True),
    "gold_zero": ("gold at p=0 (%)", False),
    "prob_sum": ("Σp of a step", False),
}


def draw_curve(
    runs: dict[str, Records], statistic: str, colours: Mapping[str, str]
) -> Optional[Figure]:
    """Draw one statistic over the training; return None if no log has it.

    A line with points is for the validation set, a thin line for the training data.
    """
    title, logarithmic = CURVES[statistic]
    figure = new_figure(*_SIZE)
    (axes,) = figure.axes
    for number, (name, records) in enumerate(runs.items()):
        style = {"color": colours[name], "linestyle": DASHES[number % len(DASHES)]}
        style["label"] = plain(name)
        draw_updates(axes, curves(records, "valid"), statistic, **style, marker="o", markersize=4)
        inner = curves(records, "train_inner")
        draw_updates(axes, inner, statistic, **style, linewidth=0.8, alpha=0.7)
    if not axes.lines:
        return None
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
    axes.set_xlabel("updates")
    axes.set_ylabel(title)
    add_legend(figure)
    return figure


def inline_svg(figure: Figure, prefix: str, label: str) -> str:
    """Return a figure as an ``<svg>`` element, with its text as text.

    Args:
        prefix: put before its ids, so that they are unique in the page; letters and hyphens.
        label: a description for screen readers.
    """
    import matplotlib

    written = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(written, format="svg", bbox_inches="tight", metadata=nothing)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # HTML knows the namespaces. Its own style would apply to the whole page.
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()
