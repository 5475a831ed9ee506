"""Curves of attention measures over the layers, with a line for each model.

They are those of ReLA (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units"): sparsity
rate (Fig. 3), alignment error rate (Fig. 4), diversity (Fig. 5) and null rate (Fig. 6). Each
function takes the JSON results of several models by name, and the models' colours unless they are
those of :func:`colours_of`. Means over seeds have error bars of one standard deviation to either
side. Matplotlib is needed, and imported only when a picture is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.plots.pictures import add_legend, colours_of, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Mapping[str, Any]]
Colours = Optional[Mapping[str, str]]
Layers = Sequence[Mapping[str, Any]]

_DASHED = (0, (4, 1.5))
_PLACES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


def attention_figures(results: Results) -> dict[str, Figure]:
    """Draw all results of ``fairseq-sparse analyze attention``, by the names of the pictures."""
    figures = {"sparsity": draw_sparsity(results), "null_rates": draw_null_rates(results)}
    diverse = with_diversity(results)
    return {**figures, "diversity": draw_diversity(diverse)} if diverse else figures


def with_diversity(results: Results) -> Results:
    """Return the results of the models that have layers with several heads."""
    return {
        name: result
        for name, result in results.items()
        if any("diversity" in part for part in result["attention"].values())
    }


def draw_sparsity(results: Results, colours: Colours = None) -> Figure:
    """Draw the sparsity rate by layer, a panel for each place of attention (Fig. 3).

    Args:
        results: for each model the output of ``fairseq-sparse analyze attention --json``.
            Models with the same curve share one line.
    """
    figure, panels = _new_panels("sparsity rate (%)", _places(results))
    for result, style in _styled(results, colours, "sparsity"):
        for place, axes in panels.items():
            _draw_line(axes, _layers(result, place), "sparsity", 100, style)
    return _finish(figure, percent=True)


def draw_null_rates(results: Results, colours: Colours = None) -> Figure:
    """Draw the null rate by layer, a panel for each place of attention (Fig. 6).

    A band reaches one standard deviation over the heads to either side. Dashed lines are for
    shuffled references, if they were measured.

    Args:
        results: as for :func:`draw_sparsity`.
    """
    figure, panels = _new_panels("null rate (%)", _places(results))
    for result, style in _styled(results, colours, "null"):
        for place, axes in panels.items():
            layers = _layers(result, place)
            _draw_line(axes, layers, "null", 100, style)
            rates = [(layer["null"], math.sqrt(layer.get("null_variance", 0))) for layer in layers]
            axes.fill_between(
                range(1, len(rates) + 1),
                [100 * max(0.0, rate - deviation) for rate, deviation in rates],
                [100 * min(1.0, rate + deviation) for rate, deviation in rates],
                color=style["color"],
                alpha=0.12,
                linewidth=0,
                zorder=1,
            )
            if place != "encoder":  # the encoder sees no reference
                shuffled = _layers(result, place, "shuffled")
                _draw_line(axes, shuffled, "null", 100, style, dashed=True)
    if any("shuffled" in result for result in results.values()):
        _explain(figure, "with the reference", "with another sentence's reference")
    return _finish(figure, percent=True)


def draw_diversity(results: Results, colours: Colours = None) -> Figure:
    """Draw the diversity of the heads by layer, a panel for each place of attention (Fig. 5).

    For weights that do not sum to 1, it is measured with the first of several exponents.

    Args:
        results: as for :func:`draw_sparsity`, of models that have layers with several heads.
    """
    figure, panels = _new_panels("diversity of the heads (nats)", _places(results))
    for result, style in _styled(results, colours):
        parts = result["attention"].values()
        exponents = [x for part in parts for x in part.get("diversity_by_exponent", ())]
        if exponents:
            style["label"] += f" (exponent {exponents[0]})"
        for place, axes in panels.items():
            _draw_line(axes, _layers(result, place), "diversity", 1, style)
    return _finish(figure)


def draw_alignment_error(results: Results, colours: Colours = None) -> Figure:
    """Draw the alignment error rate by layer (Fig. 4): best head (solid), mean of heads (dashed).

    Normal and shifted attention have a panel each, if they are in the results.

    Args:
        results: for each model its entry under "folders" in the output of ``fairseq-sparse analyze
            alignment --json``, or under "models" in that of ``gold_alignment_table.py``.
    """
    titles = {"normal": "attention", "shifted": "attention, shifted"}
    titles = {kind: titles[kind] for kind in titles if any(kind in x for x in results.values())}
    figure, panels = _new_panels("alignment error rate (%)", titles)
    for result, style in _styled(results, colours):
        for kind, axes in panels.items():
            layers = result[kind]["layers"] if kind in result else []
            _draw_line(axes, layers, "best", 100, style)
            _draw_line(axes, layers, "average", 100, style, dashed=True)
    _explain(figure, "best head of the layer", "mean of the heads")
    return _finish(figure)


def _draw_line(
    axes: Axes,
    layers: Layers,
    name: str,
    factor: float,
    style: Mapping[str, str],
    dashed: bool = False,
) -> None:
    """Draw a measure over the layers, with bars for its deviation over seeds if there is one.

    A layer's number is under "layer", or else its place in the list.
    """
    numbers = [layer.get("layer", place) for place, layer in enumerate(layers, start=1)]
    values = [_times(layer.get(name), factor) for layer in layers]
    deviations = [_times(layer.get("deviation", {}).get(name), factor) for layer in layers]
    colour = style["color"]
    if not all(map(math.isnan, deviations)):
        axes.errorbar(
            numbers, values, deviations, fmt="none", ecolor=colour, elinewidth=1, zorder=2
        )
    look: dict[str, Any] = {**style, "markersize": 6, "zorder": 3}
    if dashed:  # smaller markers, so that both show where they coincide
        look |= {"label": None, "linestyle": _DASHED, "markersize": 3.5, "zorder": 4}
        look["markerfacecolor"] = "white"
    axes.plot(numbers, values, linewidth=1.5, **look)


def _styled(
    results: Results, colours: Colours, same: Optional[str] = None
) -> Iterator[tuple[Mapping[str, Any], dict[str, str]]]:
    """Yield the results of each model with the label, colour and marker of its line; models that
    agree in the measure ``same`` in all layers share one."""
    groups: dict[object, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(_values(result, same) if same else name, []).append(name)
    colours = colours or colours_of(results)
    markers = dict(zip(results, itertools.cycle("osD^vPX"), strict=False))
    for names in groups.values():
        label, first = ", ".join(map(plain, names)), names[0]
        yield results[first], {"label": label, "color": colours[first], "marker": markers[first]}


def _values(result: Mapping[str, Any], measure: str) -> tuple:
    return tuple(
        (part, place, *(layer[measure] for layer in _layers(result, place, part)))
        for part in ("attention", "shuffled")
        for place in _PLACES
    )


def _layers(result: Mapping[str, Any], place: str, part: str = "attention") -> Layers:
    return result.get(part, {}).get(place, {}).get("layers", [])


def _places(results: Results) -> dict[str, str]:
    """Return the places of attention that occur in the results, with titles."""
    found = [place for result in results.values() for place in result["attention"]]
    return {place: _PLACES[place] for place in _PLACES if place in found}


def _times(value: Optional[float], factor: float) -> float:
    return math.nan if value is None else factor * value


def _new_panels(label: str, titles: Mapping[str, str]) -> tuple[Figure, dict[str, Axes]]:
    """Return a panel for each title, side by side."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(0.6 + 2.6 * max(len(titles), 2), 3.4, columns=len(titles))
    for axes, title in zip(figure.axes, titles.values(), strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[0].set_ylabel(label)
    return figure, dict(zip(titles, figure.axes, strict=True))


def _explain(figure: Figure, solid: str, dashed: str) -> None:
    """Explain in the legend what solid and dashed lines are."""
    style = {"color": "0.3", "linewidth": 1.5}
    figure.axes[0].plot([], [], label=solid, **style)
    figure.axes[0].plot([], [], label=dashed, linestyle=_DASHED, **style)


def _finish(figure: Figure, percent: bool = False) -> Figure:
    if percent:  # show lines at 0, and do not magnify values near 0
        top = min(max(figure.axes[0].get_ylim()[1], 10), 103)
        figure.axes[0].set_ylim(-0.03 * top, top)
    else:
        figure.axes[0].set_ylim(bottom=0)
    add_legend(figure, columns=4)
    return figure
