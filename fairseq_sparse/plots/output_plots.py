"""Pictures of the output's statistics: support, zeros and Σp of a step, τ and ‖z‖ in training.

Rows are results of ``Measurements.output`` and ``Measurements.decoded``, each with ``name``,
``output`` and ``subset``. A function returns None if the rows have nothing to show. Matplotlib is
needed, and imported only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.plots.pictures import (
    DASHES,
    add_legend,
    colours_of,
    draw_bars,
    draw_updates,
    is_flat,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Rows = Sequence[Row]
Colours = Mapping[str, str]

_SIZE = (6.4, 3.4)  # inches
_SHARE = "share of the steps (%)"
_MEAN = "mean number of tokens with p > 0"
# One for each of DASHES.
_HATCHES = (None, "////", "....", "xxxx")
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
    """Draw the distribution of the number of tokens with p > 0 per step, in bins that double."""
    if not any(map(_is_sparse, rows)):
        return None
    figure = new_figure(*_SIZE)
    axes = figure.axes[0]
    for row, label, style in _styled(rows, colours):
        nonzeros, histogram = row["nonzeros"], row["nonzeros"]["histogram"]
        if _is_sparse(row):
            # 0 has its own bin, to the left of the bin of 1.
            edges = [0.5, *histogram["edges"][1:]]
            label = f"{label}: mean {nonzeros['mean']:,.1f}"
            _outline(axes, row, histogram["counts"], edges, label, style)
        else:  # the same in every part of the data
            label = f"{plain(row['name'])}: always {row['vocabulary']:,}"
            axes.axvline(row["vocabulary"], color=style["color"], label=label)
    largest = max(row["vocabulary"] for row in rows)
    powers = [2**power for power in range(0, largest.bit_length(), 2)]
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.5**0.5, *powers], ["0", *(f"{power:,}" for power in powers)])
    axes.set_xticks([], minor=True)
    nothing = any(row["nonzeros"]["min"] == 0 for row in rows)
    axes.set_xlim(0.45 if nothing else 0.9, 1.5 * largest)
    return _finish(figure, "tokens with p > 0 at a step, in bins 1, 2–3, 4–7, 8–15, …", _SHARE)


def draw_zeros(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the distribution of the share of zeros at a step.

    The axis is logarithmic in the share of nonzeros, because nearly all of a large vocabulary is 0.
    """
    sparse = list(filter(_is_sparse, rows))
    if not sparse:
        return None
    figure = new_figure(*_SIZE)
    axes = figure.axes[0]
    for row, label, style in _styled(sparse, colours):
        histogram, size = row["nonzeros"]["histogram"], row["vocabulary"]
        # Steps without a nonzero have their own bin, to the right of the bin of one nonzero.
        edges = [0.5, *histogram["edges"][1:-1], size + 1]
        label = f"{label}: mean {100 * row['zeros']:.2f} % zeros"
        _outline(axes, row, histogram["counts"], [edge / size for edge in edges], label, style)
    most = max(row["vocabulary"] for row in sparse)
    between = (1, 0.5, 0.2) if most < 10_000 else (1,)  # more would not fit
    ticks = [part * 10.0**-power for power in range(len(str(most))) for part in between]
    ticks = [tick for tick in ticks if tick >= 1 / most]
    axes.set_xscale("log")
    axes.set_xlim(1.5, 0.45 / most)
    axes.set_xticks(ticks, [f"{100 * (1 - tick):.10g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    return _finish(figure, "share of the vocabulary with p = 0 at a step (%)", _SHARE)


def draw_positions(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the mean number of tokens with p > 0 by the position in the sentence."""
    from fairseq_sparse.measure.output.output_statistics import POSITIONS

    sparse = list(filter(_is_sparse, rows))
    if not sparse:
        return None
    figure = new_figure(*_SIZE)
    for row, label, style in _styled(sparse, colours):
        steps = row["by_position"]["steps"]
        reached = sum(count >= _REACHED * steps[0] for count in steps)
        values = row["by_position"]["nonzeros"][:reached]
        figure.axes[0].plot(range(1, reached + 1), values, label=label, linewidth=1.6, **style)
    where = f"step of the sentence, as far as one sentence in twenty goes, up to {POSITIONS}"
    return _finish(figure, where, _MEAN)


def draw_ranks(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw how many tokens with p > 0 a step has, on average, in each part of the vocabulary."""
    sparse = list(filter(_is_sparse, rows))
    if not sparse:
        return None
    figure = new_figure(*_SIZE)
    edges = max((row["by_rank"]["edges"] for row in sparse), key=len)
    parts = [f"{low + 1:,}–\n{high:,}" for low, high in zip(edges, edges[1:], strict=False)]
    bars = []
    for row, label, style in _styled(sparse, colours):
        hatch = _HATCHES[DASHES.index(style["linestyle"])]
        look = {"label": label, "color": style["color"], "hatch": hatch}
        bars.append((row["by_rank"]["nonzeros"], look))
    draw_bars(figure.axes[0], parts, bars)
    return _finish(figure, "rank in the vocabulary, most frequent tokens first", _MEAN)


def draw_sums(rows: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the distribution of Σp per step for the models that do not always sum to 1."""
    free = [row for row in rows if not _sums_to_one(row)]
    if not free:
        return None
    figure = new_figure(*_SIZE)
    axes = figure.axes[0]
    for row, label, style in _styled(free, colours):
        sums, histogram = row["prob_sum"], row["prob_sum"]["histogram"]
        label = f"{label}: {sums['mean']:.2f} ± {sums['sd']:.2f}"
        _outline(axes, row, histogram["counts"], histogram["edges"], label, style)
    axes.axvline(1, color="0.35", linewidth=1, linestyle=":", label="Σp = 1")
    return _finish(figure, "Σp, the sum over the vocabulary at a step", _SHARE)


def draw_training(curves: Rows, colours: Colours) -> Optional[Figure]:
    """Draw the threshold τ and the norm of the logits over the updates, one above the other.

    A panel whose lines never change is left out.
    """
    titles = {"tau": "threshold τ", "logit_norm": "mean norm of the logits ‖z‖"}
    figure = new_figure(_SIZE[0], 5.0, len(titles))
    for axes, (key, title) in zip(figure.axes, titles.items(), strict=True):
        for number, curve in enumerate(curves):
            style = {"color": colours[curve["name"]], "linestyle": DASHES[number % len(DASHES)]}
            draw_updates(axes, curve, key, **style, label=plain(curve["name"]))
        axes.set_ylabel(title)
    for axes in filter(is_flat, figure.axes):
        axes.remove()
        figure.set_size_inches(_SIZE)
    if not figure.axes:
        return None
    figure.align_ylabels()
    figure.axes[-1].set_xlabel("updates")
    figure.axes[-1].tick_params(labelbottom=True)  # its axis may be one of a panel left out
    add_legend(figure)
    return figure


def _outline(axes: Axes, row: Row, counts, edges, label: str, style: Mapping[str, Any]) -> None:
    """Draw a histogram from its first nonempty bin to its last."""
    full = [number for number, count in enumerate(counts) if count > 0]
    first, last = full[0], full[-1] + 1
    shares = [100 * count / row["steps"] for count in counts[first:last]]
    edges = edges[first : last + 1]
    if style["linestyle"] == DASHES[0]:
        axes.stairs(shares, edges, fill=True, color=style["color"], alpha=0.1, zorder=1)
    axes.stairs(shares, edges, **style, linewidth=1.6, label=label, zorder=3)


def _finish(figure: Figure, along: str, up: str) -> Figure:
    (axes,) = figure.axes
    axes.set(xlabel=along, ylabel=up)
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def _styled(rows: Rows, colours: Colours) -> Iterator[tuple[Row, str, dict[str, Any]]]:
    """Yield each row with its label, the colour of its model, and the dashes of its part of the
    data. Labels name the part if there are several."""
    parts = list(dict.fromkeys(map(_part, rows)))
    for row in rows:
        name, part = plain(row["name"]), _part(row)
        dashes = DASHES[parts.index(part) % len(DASHES)]
        label = f"{name}, {part}" if len(parts) > 1 else name
        yield row, label, {"color": colours[row["name"]], "linestyle": dashes}


def _part(row: Row) -> str:
    """Return the part of the data, marked if its steps are those of translations."""
    return f"{row['subset']}, {row['of']}" if row.get("of") == "translations" else row["subset"]


def _sums_to_one(row: Row) -> bool:
    sums = row["prob_sum"]
    return abs(sums["min"] - 1) < _ROUNDING and abs(sums["max"] - 1) < _ROUNDING


def _is_sparse(row: Row) -> bool:
    return row["nonzeros"]["min"] < row["vocabulary"]
