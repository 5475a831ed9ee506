"""Pictures of the tree of all translations of nonzero probability (S2S, Fig. 1).

Matplotlib is needed, and imported only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairseq_sparse.plots.pictures import font_families
from fairseq_sparse.tables.sentences import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches of a drawing; a step is as wide as its longest token needs, up to a limit.
_STEP, _LETTER, _WIDEST_STEP, _LEAF = 0.65, 0.1, 1.15, 0.3

Node = dict[str, Any]


def draw_tree(tree: dict[str, Any], min_prob: float = 0.0, source: str = "") -> Figure:
    """Draw a tree of ``measure.output.support_tree.grow`` from left to right, with branches as wide
    as their total probability.

    Nodes with a total probability below ``min_prob`` are left out; the source stands above the
    tree.
    """
    from matplotlib.figure import Figure

    root = tree["root"]
    places = _places(root, min_prob)
    depth = max(x for x, _ in places.values())
    height = max(y for _, y in places.values()) + 1
    inner = [node for node in _walk(root) if node["children"] and id(node) in places]
    longest = max((len(node["token"]) for node in inner), default=0)
    step = min(_STEP + _LETTER * longest, _WIDEST_STEP)
    figure = Figure(figsize=(step * (depth + 1.2), max(_LEAF * height + 0.4, 1.0)))
    words = [node["token"] for node in _walk(root)]
    style = {"fontsize": 9, "fontfamily": font_families("".join([source, *words]))}
    style["parse_math"] = False
    figure.text(0, 1, source, va="bottom", **style)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-0.3, depth + 0.9)
    axes.set_ylim(height - 0.3, -0.7)
    for node in _walk(root):
        if id(node) not in places:
            continue
        place = places[id(node)]
        shown = [child for child in node["children"] if id(child) in places]
        for child in shown:
            _draw_branch(axes, child, place, places[id(child)])
        hidden = len(shown) < len(node["children"]) or not node["expanded"]
        text = node["token"] + (" …" if hidden else "")
        _draw_node(axes, place, text or "•", node["token"] == tree["eos"], style)
    return figure


def _walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, depth first."""
    yield node
    for child in node["children"]:
        yield from _walk(child)


def _draw_branch(
    axes: Axes, child: Node, start: tuple[float, float], end: tuple[float, float]
) -> None:
    """Draw the branch to a node, labelled with the node's probability."""
    (x, y), (cx, cy) = start, end
    width = 0.6 + 5 * min(child["total"], 1.0)
    axes.plot([x, cx], [y, cy], color="#9db8d2", linewidth=width, zorder=1)
    axes.text(
        x + 0.42 * (cx - x),
        y + 0.42 * (cy - y),
        number_text(child["probability"]),
        fontsize=7,
        ha="center",
        color="#444444",
        va="bottom",
        zorder=3,
    )


def _draw_node(
    axes: Axes, place: tuple[float, float], text: str, ends: bool, style: dict[str, Any]
) -> None:
    """Draw a node's token in a box, which has another colour where a translation ends."""
    box = {"boxstyle": "round,pad=0.22", "edgecolor": "#888888", "linewidth": 0.6}
    box["facecolor"] = "#f4e3c8" if ends else "white"
    axes.text(*place, text, **style, ha="center", va="center", zorder=2, bbox=box)


def _places(root: Node, min_prob: float) -> dict[int, tuple[float, float]]:
    """Return the depth and row of each shown node; a parent's row is centred on its children."""
    places: dict[int, tuple[float, float]] = {}
    rows = 0

    def place(node: Node, depth: int) -> float:
        nonlocal rows
        shown = [child for child in node["children"] if child["total"] >= min_prob]
        below = [place(child, depth + 1) for child in shown]
        if below:
            row = (below[0] + below[-1]) / 2
        else:
            row, rows = rows, rows + 1
        places[id(node)] = (depth, row)
        return row

    place(root, 0)
    return places
