"""Pictures of decoding time by beam size and of decoding speed by source length.

Figure 4 of "Speeding Up Entmax" and Figure 2 of "Sparse Attention with Linear Units". Matplotlib is
needed, and imported only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.plots.pictures import DASHES, add_legend, colours_of, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Sequence[dict[str, Any]]


def decoding_figures(results: Results) -> dict[str, Figure]:
    """Draw the results of ``decoding.py`` that have several points, by their names.

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
    smallest: dict[int, float] = {}
    for row in rows:
        seconds = median(row["seconds"])
        smallest[row["batch"]] = min(seconds, smallest.get(row["batch"], seconds))
    figure = _draw(rows, "beam", lambda row: median(row["seconds"]) / smallest[row["batch"]])
    if figure is not None:
        (axes,) = figure.axes
        axes.set_xticks(sorted({row["beam"] for row in rows}))
        axes.set(xlabel="beam size", ylabel="time / smallest time")
    return figure


def draw_source_lengths(results: Results) -> Optional[Figure]:
    """Draw the speed by source length, as a ratio to that of the first model.

    Returns:
        None if fewer than two groups of lengths were measured.
    """
    rows = [row for row in results if row["part"] == "source length" and "speed" in row]
    figure = _draw(rows, "group", lambda row: row["speed"])
    if figure is not None:
        (axes,) = figure.axes
        groups = {row["group"]: row["value"] for row in rows}  # two can have the same lengths
        axes.set_xticks(list(groups), list(groups.values()), rotation=30, ha="right")
        axes.set_xlabel("source length (tokens with the end of the sentence), in equal groups")
        axes.set_ylabel(f"speed / speed of {plain(rows[0]['model'])}")
    return figure


def _draw(rows: Results, place: str, value: Callable[[Any], float]) -> Optional[Figure]:
    """Draw a line for each model and batch size; None if there is only one place."""
    if len({row[place] for row in rows}) < 2:
        return None
    figure = new_figure(5.6, 3.6)
    (axes,) = figure.axes
    colours = colours_of(row["model"] for row in rows)
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    for number, batch in enumerate(batches):
        for name, colour in colours.items():
            mine = [row for row in rows if row["model"] == name and row["batch"] == batch]
            label = plain(name) if len(batches) == 1 else f"{plain(name)}, batch {batch}"
            style = {"color": colour, "linestyle": DASHES[number % len(DASHES)], "marker": "o"}
            if mine:
                places = [row[place] for row in mine]
                axes.plot(places, list(map(value, mine)), **style, markersize=4, label=label)
    axes.set_ylim(bottom=0)
    add_legend(figure)
    return figure
