"""Validation BLEU or accuracy over the updates and over the hours of training.

Figures 2, 3 and 8 of "Speeding Up Entmax" (1, 2, 3, 5 and 6 of its first version) and Figure 6 of
"Sparse Sequence-to-Sequence Models". Matplotlib is imported only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_sparse.analysis.pictures import COLOURS, DASHES, add_legend, new_figure, plain
from fairseq_sparse.analysis.runs.training_log import Records, curves, validation_curve
from fairseq_sparse.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What validation logs: fairseq's name and the label of the axis.
METRICS = {
    "bleu": "validation BLEU",
    "accuracy": "validation accuracy (% of the tokens)",
    "sentence_accuracy": "validation accuracy (% of the sentences)",
}


def choose_metric(runs: Mapping[str, Sequence[Records]]) -> str:
    """Return the metric that chose the checkpoint of all models, or else the first that all have.

    Args:
        runs: for each model, the records of the logs of its seeds.

    Raises:
        AnalysisError: there is none.
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


def draw_training_curves(
    runs: Mapping[str, Sequence[Records]], early: float = 1.0, metric: str = ""
) -> Figure:
    """Draw the validation of each model, by updates on the left and by hours on the right.

    Args:
        runs: for each model, by the name of its row, the records of the logs of its seeds. Each of
            these has a line. A model that is named after another (``entmax15_k100``) has its
            colour, dashed. More models than there are colours are taken for a scale.
        early: the share of the longest training that is shown, from its beginning; at least the
            first three validations of each model are.
        metric: of ``METRICS``; default: as :func:`choose_metric`.

    Raises:
        AnalysisError: as :func:`choose_metric`.
    """
    metric = metric or choose_metric(runs)
    found = {
        name: [validation_curve(records, metric) for records in several]
        for name, several in runs.items()
    }
    figure = new_figure(9.5, 3.8, columns=2)
    styles = _styles(list(found))
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
                    **styles[name],
                )
        axes.set_xlim(0, 1.02 * last or None)
        axes.locator_params(axis="x", nbins=5)  # small numbers of hours are long
    figure.axes[0].set_xlabel("updates")
    figure.axes[1].set_xlabel("hours of training, without validation")
    figure.axes[0].set_ylabel(METRICS.get(metric, metric))
    add_legend(figure, columns=5)
    return figure


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and dashes of each model."""
    if len(names) > len(COLOURS):
        from matplotlib import colormaps

        scale = colormaps["viridis"]
        return {
            name: {
                "color": scale(0.95 * number / (len(names) - 1)),
                "linestyle": DASHES[number % len(DASHES)],
            }
            for number, name in enumerate(names)
        }
    styles: dict[str, dict[str, Any]] = {}
    for name in names:
        kin = [other for other in names if other != name and name.startswith(f"{other}_")]
        if not kin:
            colour = COLOURS[len(styles) % len(COLOURS)]
            styles[name] = {"color": colour, "linestyle": "solid"}
    for name in names:
        if name not in styles:
            kin = max((other for other in styles if name.startswith(f"{other}_")), key=len)
            styles[name] = {**styles[kin], "linestyle": DASHES[1]}
    return styles
