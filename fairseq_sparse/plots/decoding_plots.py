"""Pictures of decoding time by beam size and of decoding speed by source length.

Figure 4 of "Speeding Up Entmax" and Figure 2 of "Sparse Attention with Linear Units". Matplotlib is
needed, and imported only when a picture is made.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.plots.pictures import (
    DASHES,
    add_legend,
    colours_of,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (5.6, 3.6)  # inches
Results = Sequence[dict[str, Any]]


def decoding_figures(results: Results) -> dict[str, Figure]:
    """Draw the results of ``benchmark/decoding.py`` that have several points, by their names.

    Args:
        results: with ``seconds`` and ``speed``, or neither if the model failed; ``group`` is the
            number of the group of source lengths.
    """
    figures = {"beams": draw_beams(results), "source_lengths": draw_source_lengths(results)}
    return {name: figure for name, figure in figures.items() if figure is not None}


def draw_beams(results: Results) -> Optional[Figure]:
    """Draw the time by beam size, as a multiple of the smallest time of the batch size.

    Returns:
        None if fewer than two beam sizes were measured.
    """
    rows = [row for row in results if row["part"] == "beam" and "seconds" in row]
    if len({row["beam"] for row in rows}) < 2:
        return None
    figure = new_figure(*_SIZE)
    for line in _lines(rows):
        same_batch = [row for row in rows if row["batch"] == line["batch"]]
        smallest = min(_seconds(row) for row in same_batch)
        places = [row["beam"] for row in line["rows"]]
        _draw(figure, line, places, [_seconds(row) / smallest for row in line["rows"]])
    (axes,) = figure.axes
    axes.set_xticks(sorted({row["beam"] for row in rows}))
    axes.set_xlabel("beam size")
    axes.set_ylabel("time / smallest time")
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def draw_source_lengths(results: Results) -> Optional[Figure]:
    """Draw the speed by source length, as a ratio to that of the first model.

    Returns:
        None if fewer than two groups of lengths were measured.
    """
    rows = [row for row in results if row["part"] == "source length" and "speed" in row]
    groups = {row["group"]: row["value"] for row in rows}  # two groups can have the same lengths
    if len(groups) < 2:
        return None
    figure = new_figure(*_SIZE)
    for line in _lines(rows):
        places = [row["group"] for row in line["rows"]]
        _draw(figure, line, places, [row["speed"] for row in line["rows"]])
    (axes,) = figure.axes
    axes.set_xticks(list(groups), list(groups.values()), rotation=30, ha="right")
    axes.set_xlabel("source length (tokens with the end of the sentence), in groups of equal size")
    axes.set_ylabel(f"speed / speed of {plain(rows[0]['model'])}")
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def _lines(rows: Results) -> list[dict[str, Any]]:
    """Return a line for each model and batch size: its colour, dashes, label and rows."""
    colours = colours_of(row["model"] for row in rows)
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    lines = []
    for number, batch in enumerate(batches):
        for name, colour in colours.items():
            label = plain(name) if len(batches) == 1 else f"{plain(name)}, batch {batch}"
            mine = [row for row in rows if row["model"] == name and row["batch"] == batch]
            style = {"color": colour, "linestyle": DASHES[number % len(DASHES)], "label": label}
            if mine:
                lines.append({"batch": batch, "rows": mine, "style": style})
    return lines


def _draw(figure: Figure, line: dict[str, Any], places: list[int], values: list[float]) -> None:
    (axes,) = figure.axes
    axes.plot(places, values, marker="o", markersize=4, linewidth=1.5, **line["style"])


def _seconds(row: dict[str, Any]) -> float:
    return statistics.median(row["seconds"])
