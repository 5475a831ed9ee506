"""The picture of a reproduced table: the score against a figure that the rows differ in.

Fig. 8 of "Speeding Up Entmax" (Tezekbayev et al. 2022) is BLEU against the threshold of 1.5-ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fairseq_sparse.analysis.pictures import COLOURS, draw_means, new_figure
from fairseq_sparse.analysis.reproduction import Row
from fairseq_sparse.analysis.results import COLUMNS
from fairseq_sparse.analysis.trained_models import AnalysisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curve(rows: Sequence[Row], along: str, score: str) -> Figure:
    """The mean score of each row over its mean of another column, with the score's deviation.

    A row whose variable is no number, as ``OUTPUT_TAU=weights``, has its name beside its point.

    Args:
        rows: of one data set; those without either figure are left out.
        along, score: names of :data:`fairseq_sparse.analysis.results.COLUMNS`.

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
