"""Pictures of the runs behind a table or a figure of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fairseq_sparse.analysis.pictures import COLOURS, draw_means, new_figure
from fairseq_sparse.analysis.report.published import alphas_of
from fairseq_sparse.analysis.runs.alpha_grid import Cell, draw_grid
from fairseq_sparse.analysis.runs.columns import COLUMNS
from fairseq_sparse.analysis.runs.rows import Row
from fairseq_sparse.analysis.runs.training_curves import draw_training_curves
from fairseq_sparse.analysis.runs.training_log import read_records
from fairseq_sparse.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_picture(rows: Sequence[Row], name: str, score: str, early: float) -> Figure:
    """Draw one of the pictures of ``scripts/reproduce_table.py --draw``.

    Args:
        rows: of one data set.
        name: ``training``, ``alphas``, or the column that the score is drawn against.
        score: the first column of the table.
        early: as in :func:`draw_training_curves`.

    Raises:
        AnalysisError: no finished run has what is needed.
    """
    if name == "training":
        return draw_training(rows, early)
    if name == "alphas":
        return draw_grid(cells_of(rows))
    return draw_curve(rows, name, score)


def draw_training(rows: Sequence[Row], early: float) -> Figure:
    """Draw validation during the training of the finished runs, from their logs.

    Raises:
        AnalysisError: no run is finished, or the logs have no figure that all of them share.
    """
    logs = {
        row.title: [row.runs[seed].folder / "logs" / "2_train.log" for seed in row.summaries]
        for row in rows
    }
    runs = {
        # A process that was killed may have left half a character.
        name: [read_records(path.read_text("utf-8", "replace")) for path in paths if path.is_file()]
        for name, paths in logs.items()
    }
    runs = {name: several for name, several in runs.items() if several}
    if not runs:
        raise AnalysisError("no finished run has a training log")
    return draw_training_curves(runs, early)


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    """The finished runs of rows of the variant entmax, by their alphas."""
    return [Cell(*alphas_of(row.name), row.summaries) for row in rows if row.summaries]


def draw_curve(rows: Sequence[Row], along: str, score: str) -> Figure:
    """Draw the mean score of each row over its mean of another column, with the score's deviation.

    A row whose variable is no number, as ``OUTPUT_TAU=weights``, has its name beside its point.

    Args:
        rows: of one data set; those without either figure are left out.
        along, score: names of :data:`fairseq_sparse.analysis.runs.columns.COLUMNS`.

    Raises:
        AnalysisError: no row has both figures.
    """
    points = [
        (fmean(row.values(along)), row.values(score), row.name)
        for row in rows
        if row.values(along) and row.values(score)
    ]
    if not points:
        raise AnalysisError(f"no finished run has both {along} and {score}")
    points.sort(key=lambda point: point[0])
    figure = new_figure(5.5, 3.6)
    (axes,) = figure.axes
    places, values, names = zip(*points, strict=True)
    draw_means(axes, places, values, color=COLOURS[0])
    for place, several, name in zip(places, values, names, strict=True):
        value = name.rpartition("=")[2]
        if not _is_number(value):
            axes.annotate(
                value,
                (place, fmean(several)),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                parse_math=False,
            )
    axes.margins(y=0.12)
    axes.set_xlabel(COLUMNS[along][0])
    axes.set_ylabel(COLUMNS[score][0])
    return figure


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
