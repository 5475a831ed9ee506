"""Curves over several runs: validation by updates and hours, scores by alpha or by another column.

Figures 2, 3 and 8 of "Speeding Up Entmax" (1, 2, 3, 5 and 6 of its first version), Figures 4 and 6
of "Sparse Sequence-to-Sequence Models". Matplotlib is imported only when a picture is made.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.training_log import (
    Records,
    curves,
    log_text,
    read_records,
    validation_curve,
)
from fairseq_sparse.plots.pictures import COLOURS, DASHES, add_legend, colours_of, new_figure, plain
from fairseq_sparse.tables.alpha_grid import score_of
from fairseq_sparse.tables.columns import COLUMNS
from fairseq_sparse.tables.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metrics logged in validation: fairseq's name and the label of the axis.
METRICS = {
    "bleu": "validation BLEU",
    "accuracy": "validation accuracy (% of the tokens)",
    "sentence_accuracy": "validation accuracy (% of the sentences)",
}
# The accuracy on the validation set, by the score of the runs: label, path in summary.json
_VALIDATION = {
    "inflection.accuracy": (
        "validation accuracy (% of the words)",
        "training.valid.sentence_accuracy",
    ),
    "bleu.bleu": ("validation accuracy (% of the tokens)", "training.valid.accuracy"),
}
# The value of the alpha that does not vary in Fig. 4 of S2S.
HELD = 1.5
# Names of the alphas, in the order of ``Row.alphas``.
_ALPHAS = ("output", "attention")


def draw_picture(rows: Sequence[Row], name: str, score: str, early: float) -> Figure:
    """Draw one of the pictures of a table.

    Args:
        name: ``training``, ``alphas``, or the column that the score is drawn against.
        score: the first column of the table.
        early: as in :func:`draw_curves`.

    Raises:
        AnalysisError: no finished run has what is needed.
    """
    if name == "training":
        return draw_validation(rows, early)
    if name == "alphas":
        return draw_alphas([row for row in rows if row.summaries])
    return draw_curve(rows, name, score)


def draw_validation(rows: Sequence[Row], early: float) -> Figure:
    """Draw validation during the training of the finished runs, from their logs.

    Raises:
        AnalysisError: no run is finished, or no metric is in all logs.
    """
    runs: dict[str, list[Records]] = {}
    for row in rows:
        for path in (row.runs[seed] / "logs" / "train.log" for seed in row.summaries):
            if path.is_file():
                runs.setdefault(row.title, []).append(read_records(log_text(path)))
    if not runs:
        raise AnalysisError("no finished run has a training log")
    return draw_training_curves(runs, early)


def choose_metric(runs: Mapping[str, Sequence[Records]]) -> str:
    """Return the metric that selected the best checkpoint of all models, or else the first in all
    logs.

    Raises:
        AnalysisError: no metric is in all logs.
    """
    logged = [
        {name for records in several for name in curves(records, "valid")}
        for several in runs.values()
    ]
    for prefix in ("best_", ""):
        for metric in METRICS:
            if logged and all(metric in names and prefix + metric in names for names in logged):
                return metric
    raise AnalysisError(
        "the training logs have no figure of validation that all models share: train with "
        "--eval-bleu, or with --criterion entmax_loss or alpha_relu_loss, which log the accuracy"
    )


def draw_training_curves(runs: Mapping[str, Sequence[Records]], early: float = 1.0) -> Figure:
    """Draw the validation of each model from the logs of its seeds, as :func:`draw_curves` does.

    Raises:
        AnalysisError: as :func:`choose_metric`.
    """
    metric = choose_metric(runs)
    found = {
        name: [validation_curve(records, metric) for records in several]
        for name, several in runs.items()
    }
    return draw_curves(found, METRICS[metric], early)


def draw_curves(
    found: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], label: str, early: float = 1.0
) -> Figure:
    """Draw a line for each seed of each model, by updates on the left and by hours on the right.

    If there are more models than colours, they get a colour scale and dashes.

    Args:
        found: for each model, the results of :func:`validation_curve` for its seeds.
        early: the share of the longest training to show, from its beginning; the first three
            validations of each model are always shown.
    """
    figure = new_figure(9.5, 3.8, columns=2)
    colours = colours_of(found)
    dashes = dict(zip(found, itertools.cycle(DASHES), strict=False))
    for axes, along in zip(figure.axes, ("updates", "hours"), strict=True):
        all_places = [curve[along] for several in found.values() for curve in several]
        last = early * max(max(places, default=0) for places in all_places)
        last = max(last, *(max(places[:3], default=0) for places in all_places))
        for name, several in found.items():
            for number, curve in enumerate(several):
                shown = sum(place <= last for place in curve[along])
                axes.plot(
                    curve[along][:shown],
                    curve["values"][:shown],
                    label=None if number else plain(name),
                    marker="o" if len(curve["values"]) <= 40 else None,
                    markersize=3,
                    linewidth=1.4,
                    color=colours[name],
                    linestyle=dashes[name] if len(found) > len(COLOURS) else "solid",
                )
        axes.set_xlim(0, 1.02 * last or None)
        axes.locator_params(axis="x", nbins=5)  # labels of small numbers of hours are long
    figure.axes[0].set(xlabel="updates", ylabel=label)
    figure.axes[1].set_xlabel("hours of training, without validation")
    add_legend(figure, columns=5)
    return figure


def draw_alphas(rows: Sequence[Row]) -> Figure:
    """Draw the validation accuracy by the alpha of the attention and of the output (S2S, Fig. 4).

    The other alpha is ``HELD``; a panel with fewer than two points is left out. Points are means
    over the seeds, bars their standard deviations.

    Raises:
        AnalysisError: there is no panel, or the runs have no score.
    """
    label, path = _VALIDATION[score_of(rows).path]
    panels = {}
    for varied, held in ((1, 0), (0, 1)):
        found = {row.alphas[varied]: row for row in rows if row.alphas[held] == HELD}
        found = {alpha: row.values_at(path) for alpha, row in sorted(found.items())}
        found = {alpha: values for alpha, values in found.items() if values}
        if len(found) > 1:
            panels[varied] = found
    if not panels:
        raise AnalysisError(
            f"no two finished runs have a validation accuracy, and α = {HELD:g} on one side"
        )
    figure = new_figure(0.6 + 4.2 * len(panels), 3.6, columns=len(panels))
    for axes, (varied, found) in zip(figure.axes, panels.items(), strict=True):
        _draw_means(axes, list(found), list(found.values()))
        axes.set_xlabel(f"α of the {_ALPHAS[varied]} (α of the {_ALPHAS[1 - varied]}: {HELD:g})")
        axes.set_xticks(list(found), [f"{alpha:g}" for alpha in found])
        axes.tick_params(axis="x", labelsize=8)
    figure.axes[0].set_ylabel(label)
    return figure


def draw_curve(rows: Sequence[Row], along: str, score: str) -> Figure:
    """Draw the mean score of each row over its mean of another column, with the score's deviation.

    Unless the row's threshold (``output_tau``) is a number, its title is beside the point.

    Args:
        rows: the rows of one data set; a row without one of the figures is left out.
        along, score: names of :data:`fairseq_sparse.tables.columns.COLUMNS`.

    Raises:
        AnalysisError: no row has both figures.
    """
    points = [
        (fmean(row.values(along)), row.values(score), row)
        for row in rows
        if row.values(along) and row.values(score)
    ]
    if not points:
        raise AnalysisError(f"no finished run has both {along} and {score}")
    points.sort(key=lambda point: point[0])
    figure = new_figure(5.5, 3.6)
    (axes,) = figure.axes
    places, values, drawn = zip(*points, strict=True)
    _draw_means(axes, places, values)
    for place, several, row in zip(places, values, drawn, strict=True):
        if not re.fullmatch(r"[-.\d]+", row.model.get("output_tau") or ""):
            axes.annotate(
                row.title,
                (place, fmean(several)),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                parse_math=False,
            )
    axes.margins(y=0.12)
    axes.set(xlabel=COLUMNS[along].heading, ylabel=COLUMNS[score].heading)
    return figure


def _draw_means(axes: Axes, places: Sequence[float], values: Sequence[Sequence[float]]) -> None:
    """Draw a line through the means of several values at each place, with their standard
    deviations as samples."""
    axes.errorbar(
        places,
        [fmean(several) for several in values],
        yerr=[stdev(several) if len(several) > 1 else 0.0 for several in values],
        color=COLOURS[0],
        marker="o",
        markersize=4,
        capsize=3,
    )
