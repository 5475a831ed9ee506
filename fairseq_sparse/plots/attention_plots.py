"""Pictures of attention weights, in which an exact zero looks different from a small weight.

As in Fig. 5 of Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models", a weight of 0
is a white cell without an outline. matplotlib is needed; its global state is left alone.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Optional

import numpy as np

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.plots.pictures import MISSING, MISSING_GLYPH, font_families

try:
    from matplotlib.axes import Axes
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise AnalysisError(MISSING) from error

_CELL = 0.19  # inches
_PAGE = 1.5  # about the ratio of width to height that the figure should have
_GAP = 0.15  # inches, beside and below a panel
_MARGIN = 0.26  # inches, for each line of the title above and for the legend below
_FONT_SIZE = 8
_OUTLINE = {"edgecolor": "0.4", "linewidth": 0.5}
_ZERO = {"facecolor": "white", "edgecolor": "0.7", "linewidth": 0.6}
_NULL = {"facecolor": "0.96", "edgecolor": "0.55", "hatch": "//////", "linewidth": 0}
_MASKED = {"facecolor": "0.9", "edgecolor": "none"}


def draw_attention(
    panels: Sequence[np.ndarray],
    queries: Sequence[str],
    keys: Sequence[str],
    titles: Sequence[str],
    *,
    masked: Optional[np.ndarray] = None,
    sums_to_one: bool = False,
    query_label: str = "",
    key_label: str = "",
    title: str = "",
) -> Figure:
    """Draw attention weights, one panel for each head: queries as rows, keys as columns.

    A weight other than 0 is an outlined cell, shaded by its size; one below 0 has another colour.
    The row of a query whose weights are all 0 ("null attention") is hatched.

    Args:
        panels: the weights, each ``[queries, keys]``.
        masked: boolean ``[queries, keys]``, true for keys that a query may not see.
        sums_to_one: the weights of a query sum to 1, so the shades run from 0 to 1 in all panels;
            otherwise from 0 to the largest weight of the panel.

    Raises:
        ValueError: the sizes do not agree, there is nothing to draw, or a weight is not finite.
    """
    shape = (len(queries), len(keys))
    masked = np.zeros(shape, dtype=bool) if masked is None else masked
    _check(panels, titles, shape, masked)
    fonts = font_families("".join([*queries, *keys, *titles, query_label, key_label, title]))
    columns = _columns(len(panels), shape)
    text = {"fontsize": _FONT_SIZE, "fontfamily": fonts, "parse_math": False}
    figure = Figure(figsize=(10, 10))
    for number, weights in enumerate(panels):
        axes = figure.add_axes((0.2, 0.2, *(_CELL * np.array(shape[::-1]) / 10)))
        _draw_panel(axes, weights, masked, sums_to_one)
        axes.set_title(titles[number], **text)
        axes.set_xlabel(key_label, **text)
        axes.set_xticks(np.arange(shape[1]) + 0.5, keys, rotation=90, **text)
        first = number % columns == 0
        axes.set_yticks(np.arange(shape[0]) + 0.5, queries if first else [""] * shape[0], **text)
        axes.set_ylabel(query_label if first else "", **text)
    _arrange(figure, columns, shape, _MARGIN * len(title.splitlines() or [0]))
    figure.suptitle(title, y=1, va="top", **{**text, "fontsize": _FONT_SIZE + 2})
    _add_legend(figure, panels, masked)
    return figure


def _check(panels, titles, shape, masked) -> None:
    if not panels or len(panels) != len(titles) or 0 in shape:
        raise ValueError(f"{len(panels)} panels of size {shape} with {len(titles)} titles")
    for weights in [*panels, masked]:
        if weights.shape != shape:
            raise ValueError(f"{shape} queries and keys, but an array of size {weights.shape}")
        if not np.isfinite(weights).all():
            raise ValueError(
                "attention weights are not finite: the model's parameters are NaN or infinite"
            )


def _columns(panels: int, shape: tuple[int, int]) -> int:
    """Return how many panels side by side make the most compact figure."""

    def badness(columns: int) -> tuple[float, int]:
        rows = math.ceil(panels / columns)
        return max(columns * (shape[1] + 5) / _PAGE, rows * (shape[0] + 8)), rows * columns

    return min(range(1, panels + 1), key=badness)


def _draw_panel(axes: Axes, weights: np.ndarray, masked: np.ndarray, sums_to_one: bool) -> None:
    queries, keys = weights.shape
    for row in np.flatnonzero(_null_queries(weights, masked)):
        axes.add_patch(Rectangle((0, row), keys, 1, **_NULL))
    axes.add_collection(PatchCollection(_cells(masked), **_MASKED))
    nonzero = (weights != 0) & ~masked
    values = weights[nonzero]
    largest = 1.0 if sums_to_one else abs(values).max(initial=0.0) or 1.0
    negative = values.min(initial=0.0) < 0
    norm = Normalize(-largest if negative else 0.0, largest)
    cmap = "RdBu" if negative else "Blues"
    shaded = PatchCollection(_cells(nonzero), cmap=cmap, norm=norm, **_OUTLINE)
    shaded.set_array(values)
    axes.add_collection(shaded)
    axes.set(xlim=(0, keys), ylim=(queries, 0))
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, pad=2)
    bar = axes.inset_axes((1 + 0.6 / keys, 0, 0.5 / keys, 1))
    axes.figure.colorbar(shaded, cax=bar, ticks=MaxNLocator(4))
    bar.tick_params(labelsize=_FONT_SIZE - 1, length=2)
    label = "weight" if sums_to_one else "weight (scale of this panel)"
    bar.set_ylabel(label, fontsize=_FONT_SIZE - 1)


def _null_queries(weights: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """Find the queries that see keys and give none of them weight."""
    return ~masked.all(1) & ~((weights != 0) & ~masked).any(1)


def _cells(mask: np.ndarray) -> list[Rectangle]:
    return [Rectangle((column, row), 1, 1) for row, column in zip(*np.nonzero(mask), strict=True)]


def _add_legend(figure: Figure, panels: Sequence[np.ndarray], masked: np.ndarray) -> None:
    """Add a legend of the kinds of cells, as far as they occur."""
    entries = []
    if any(((weights == 0) & ~masked).any() for weights in panels):
        entries.append(("exactly 0", _ZERO))
    if any(_null_queries(weights, masked).any() for weights in panels):
        entries.append(("null attention: all weights of the query are 0", _NULL))
    if masked.any():
        entries.append(("not visible to the query", _MASKED))
    if not entries:
        return
    figure.legend(
        handles=[Patch(label=label, **style) for label, style in entries],
        loc="lower center",
        borderaxespad=0,
        ncols=len(entries),
        fontsize=_FONT_SIZE,
        frameon=False,
    )


def _room_around(figure: Figure, columns: int) -> np.ndarray:
    """Return the inches that text takes on each side of the panels, ``[rows, columns, 4]``."""
    figure.draw_without_rendering()
    around = np.zeros((math.ceil(len(figure.axes) / columns), columns, 4))
    for number, axes in enumerate(figure.axes):
        inner, outer = axes.get_window_extent(), axes.get_tightbbox()
        outside = np.concatenate([inner.p0 - outer.p0, outer.p1 - inner.p1])
        around[divmod(number, columns)] = outside / figure.dpi
    return around


def _arrange(figure: Figure, columns: int, shape: tuple[int, int], above: float) -> None:
    """Give panels and figure the size that cells of ``_CELL`` and the text around them need."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=MISSING_GLYPH)  # reported on saving
        around = _room_around(figure, columns)
    panels = list(figure.axes)
    left, right = around[..., 0].max(0), around[..., 2].max(0) + _GAP
    bottom, top = around[..., 1].max(1) + _GAP, around[..., 3].max(1)
    height, width = _CELL * np.array(shape)
    size = np.array([(left + width + right).sum(), (bottom + height + top).sum() + above + _MARGIN])
    figure.set_size_inches(size)
    for number, axes in enumerate(panels):
        row, column = divmod(number, columns)
        x = (left + width + right)[:column].sum() + left[column]
        y = size[1] - above - (bottom + height + top)[:row].sum() - top[row] - height
        axes.set_position((*([x, y] / size), *([width, height] / size)))
