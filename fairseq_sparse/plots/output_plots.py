"""Pictures of the output's statistics: support, zeros and Σp of a step, τ and ‖z‖ in training.

Rows are results of ``Measurements.output`` and ``Measurements.decoded``, each with ``name``,
``output`` and ``subset``. Matplotlib is needed, and imported only when a picture is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.plots.pictures import (
    DASHES,
    add_legend,
    colours_of,
    is_flat,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
Colours = Mapping[str, str]

_SIZE = (6.4, 3.4)  # inches
# Sums of p this close to 1 differ from it by rounding only.
_ROUNDING = 1e-3
# Positions that a smaller share of the sentences reaches are too noisy to be drawn.
_REACHED = 0.05


def output_figures(rows: Rows, curves: Rows) -> dict[str, Figure]:
    """Draw all figures that the results allow, by their names.

    Args:
        rows: the statistics of steps.
        curves: for each training run ``name``, and lists ``updates``, ``tau`` and ``logit_norm`` of
            the same length, with None where the log has no such number.
    """
    colours = colours_of(part["name"] for part in [*rows, *curves])
    figures = {
        "nonzeros": draw_nonzeros(rows, colours),
        "zeros": draw_zeros(rows, colours),
        "positions": draw_positions(rows, colours),
        "ranks": draw_ranks(rows, colours),
        "prob_sum": draw_sums(rows, colours),
        "training": draw_training(curves, colours),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def draw_nonzeros(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the distribution of the number of tokens with p > 0 per step, in bins that double.

    Returns:
        None if no model is sparse.
    """
    if not any(map(_is_sparse, rows)):
        return None
    figure = new_figure(*_SIZE)
    axes = figure.axes[0]
    largest = max(row["vocabulary"] for row in rows)
    for row, dashes in _dashed(rows):
        nonzeros, colour = row["nonzeros"], colours[row["name"]]
        if not _is_sparse(row):  # the same in every part of the data
            label = f"{plain(row['name'])}: always {row['vocabulary']:,}"
            axes.axvline(row["vocabulary"], color=colour, label=label)
            continue
        # 0 has its own bin, to the left of the bin of 1.
        edges = [0.5, *nonzeros["histogram"]["edges"][1:]]
        label = f"{_label(row, rows)}: mean {nonzeros['mean']:,.1f}"
        _outline(axes, row, nonzeros["histogram"]["counts"], edges, colour, dashes, label)
    powers = [2**power for power in range(0, largest.bit_length(), 2)]
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.5**0.5, *powers], ["0", *(f"{power:,}" for power in powers)])
    axes.set_xticks([], minor=True)
    nothing = any(row["nonzeros"]["min"] == 0 for row in rows)
    axes.set_xlim(0.45 if nothing else 0.9, 1.5 * largest)
    axes.set_xlabel("tokens with p > 0 at a step, in bins 1, 2–3, 4–7, 8–15, …")
    axes.set_ylabel("share of the steps (%)")
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def draw_zeros(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the distribution of the share of zeros at a step; None if no model has any.

    The axis is logarithmic in the share of nonzeros, because nearly all of a large vocabulary is 0.
    """
    sparse = list(filter(_is_sparse, rows))
    if not sparse:
        return None
    figure = new_figure(*_SIZE)
    axes = figure.axes[0]
    most = max(row["vocabulary"] for row in sparse)
    for row, dashes in _dashed(sparse):
        histogram, size = row["nonzeros"]["histogram"], row["vocabulary"]
        # Steps without a nonzero have their own bin, to the right of the bin of one nonzero.
        edges = [0.5, *histogram["edges"][1:-1], size + 1]
        shares = [edge / size for edge in edges]
        label = f"{_label(row, sparse)}: mean {100 * row['zeros']:.2f} % zeros"
        colour = colours[row["name"]]
        _outline(axes, row, histogram["counts"], shares, colour, dashes, label)
    between = (1, 0.5, 0.2) if most < 10_000 else (1,)  # more would not fit
    ticks = [part * 10.0**-power for power in range(len(str(most))) for part in between]
    ticks = [tick for tick in ticks if tick >= 1 / most]
    axes.set_xscale("log")
    axes.set_xlim(1.5, 0.45 / most)
    axes.set_xticks(ticks, [f"{100 * (1 - tick):.10g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("share of the vocabulary with p = 0 at a step (%)")
    axes.set_ylabel("share of the steps (%)")
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def draw_positions(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the mean number of tokens with p > 0 by the position in the sentence.

    Returns:
        None if no model is sparse.
    """
    sparse = list(filter(_is_sparse, rows))
    if not sparse:
        return None
    figure = new_figure(*_SIZE)
    (axes,) = figure.axes
    for row, dashes in _dashed(sparse):
        steps = row["by_position"]["steps"]
        reached = sum(count >= _REACHED * steps[0] for count in steps)
        values = row["by_position"]["nonzeros"][:reached]
        style = {"color": colours[row["name"]], "linestyle": dashes, "linewidth": 1.6}
        axes.plot(range(1, reached + 1), values, label=_label(row, sparse), **style)
    axes.set_xlabel("step of the sentence, as far as one sentence in twenty goes")
    axes.set_ylabel("mean number of tokens with p > 0")
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def draw_ranks(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw how many tokens with p > 0 a step has, on average, in each part of the vocabulary.

    Returns:
        None if no model is sparse.
    """
    sparse = list(filter(_is_sparse, rows))
    if not sparse:
        return None
    figure = new_figure(*_SIZE)
    (axes,) = figure.axes
    width = 0.8 / len(sparse)
    for number, (row, dashes) in enumerate(_dashed(sparse)):
        values = row["by_rank"]["nonzeros"]
        places = [part + width * (number - (len(sparse) - 1) / 2) for part in range(len(values))]
        style = {"edgecolor": "white", "hatch": None if dashes == DASHES[0] else "////"}
        axes.bar(
            places,
            values,
            width,
            color=colours[row["name"]],
            label=_label(row, sparse),
            **style,
        )
    edges = max((row["by_rank"]["edges"] for row in sparse), key=len)
    parts = [f"{low + 1:,}–\n{high:,}" for low, high in zip(edges, edges[1:], strict=False)]
    axes.set_xticks(range(len(parts)), parts)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("rank in the vocabulary, most frequent tokens first")
    axes.set_ylabel("mean number of tokens with p > 0")
    add_legend(figure)
    return figure


def draw_sums(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the distribution of Σp per step; return None if every model sums to 1."""
    free = [row for row in rows if not _sums_to_one(row)]
    if not free:
        return None
    figure = new_figure(*_SIZE)
    axes = figure.axes[0]
    for row, dashes in _dashed(free):
        sums = row["prob_sum"]
        histogram = sums["histogram"]
        label = f"{_label(row, free)}: {sums['mean']:.2f} ± {sums['sd']:.2f}"
        colour = colours[row["name"]]
        _outline(axes, row, histogram["counts"], histogram["edges"], colour, dashes, label)
    axes.axvline(1, color="0.35", linewidth=1, linestyle=":", label="Σp = 1")
    axes.set_xlabel("Σp, the sum over the vocabulary at a step")
    axes.set_ylabel("share of the steps (%)")
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def draw_training(curves: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the threshold τ and the norm of the logits over the updates, one above the other.

    A panel whose lines never change is left out; None if none is left.
    """
    titles = {"tau": "threshold τ", "logit_norm": "mean norm of the logits ‖z‖"}
    figure = new_figure(_SIZE[0], 5.0, len(titles))
    for axes, (key, title) in zip(figure.axes, titles.items(), strict=True):
        for number, curve in enumerate(curves):
            values = [math.nan if value is None else value for value in curve[key]]
            if not all(map(math.isnan, values)):
                style = {"color": colours[curve["name"]], "linestyle": DASHES[number % len(DASHES)]}
                axes.plot(curve["updates"], values, **style, label=plain(curve["name"]))
        axes.set_ylabel(title)
    for axes in filter(is_flat, figure.axes):
        axes.remove()
        figure.set_size_inches(_SIZE)
    if not figure.axes:
        return None
    figure.align_ylabels()
    figure.axes[-1].set_xlabel("updates")
    add_legend(figure)
    return figure


def _outline(axes: Axes, row: Mapping[str, Any], counts, edges, colour, dashes, label: str) -> None:
    """Draw a histogram from its first nonempty bin to its last."""
    full = [number for number, count in enumerate(counts) if count > 0]
    first, last = full[0], full[-1] + 1
    shares = [100 * count / row["steps"] for count in counts[first:last]]
    edges = edges[first : last + 1]
    if dashes == DASHES[0]:
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.1, zorder=1)
    axes.stairs(shares, edges, color=colour, linestyle=dashes, linewidth=1.6, label=label, zorder=3)


def _dashed(rows: Rows) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield each row with the dashes of its part of the data."""
    parts = list(dict.fromkeys(map(_part, rows)))
    for row in rows:
        yield row, DASHES[parts.index(_part(row)) % len(DASHES)]


def _part(row: Mapping[str, Any]) -> str:
    """Return the part of the data, marked if its steps are those of translations."""
    return f"{row['subset']}, {row['of']}" if row.get("of") == "translations" else row["subset"]


def _label(row: Mapping[str, Any], rows: Rows) -> str:
    several = len(set(map(_part, rows))) > 1
    name = plain(row["name"])
    return f"{name}, {_part(row)}" if several else name


def _sums_to_one(row: Mapping[str, Any]) -> bool:
    sums = row["prob_sum"]
    return abs(sums["min"] - 1) < _ROUNDING and abs(sums["max"] - 1) < _ROUNDING


def _is_sparse(row: Mapping[str, Any]) -> bool:
    return row["nonzeros"]["min"] < row["vocabulary"]
