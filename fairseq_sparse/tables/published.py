"""The papers' tables, for comparison: ``published.json``.

Every figure is copied as printed; none is read off a plot. A table has ``columns``, each with the
``dataset`` (as the recipes call it, or null), the ``split`` (null: not stated, or none), the
``metric`` and the ``statistic`` of its figures: ``value`` (the number of runs is not stated),
``mean``, ``deviation`` or ``ensemble``. A row may replace metric and split for all of its figures.
``languages`` is the number of languages averaged over. ``models`` are the row's models, by the
fields of ``recipe.Model``; output and attention are softmax if left out. A time belongs to the
algorithm as well (``"output_algorithm": "sort"``), other figures to the model however it is
computed. ``recipe`` is the paper's name in ``fairseq-sparse reproduce``.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Optional

from fairseq_sparse.tables.columns import METRICS, Quantity
from fairseq_sparse.tables.models import Identity, identity

# Measures that a reader could take for one another.
BLEU = {"bleu", "tokenized_bleu"}


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, and what it was measured on.

    Attributes:
        recipe, paper, table: the source of the figure.
        models: the models that it is of.
        dataset: as the recipes call it.
        quantity: metric, split and number of languages.
        statistic: ``value``, ``mean``, ``deviation`` or ``ensemble``.
        text: the figure as printed.
    """

    recipe: str
    paper: str
    table: str
    models: frozenset[Identity]
    dataset: Optional[str]
    quantity: Quantity
    statistic: str
    text: str


@cache
def read_published() -> list[dict[str, Any]]:
    """Read the tables of ``published.json``."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return json.loads(text)["tables"]


@cache
def published_figures() -> tuple[Figure, ...]:
    """Return all figures of all tables."""
    return tuple(
        Figure(
            table["recipe"],
            table["paper"],
            table["table"],
            frozenset(map(identity, row["models"])),
            column["dataset"],
            Quantity(
                row.get("metric", column["metric"]),
                row.get("split", column["split"]),
                column.get("languages"),
            ),
            column["statistic"],
            text,
        )
        for table in read_published()
        for row in table["rows"]
        for column, text in zip(table["columns"], row["figures"], strict=True)
        if text is not None
    )


def find_figure(
    recipe: Optional[str],
    dataset: str,
    model: dict[str, Any],
    quantity: Optional[Quantity],
    statistics: Sequence[str] = ("value", "mean"),
) -> Optional[Figure]:
    """Return a paper's figure for a model, or None if no figure is measured in the same way.

    Args:
        recipe: the paper's name in ``fairseq-sparse reproduce``; None for any.
        dataset: as the recipes call it.
        model: as :func:`identity` takes it.
        quantity: metric, split and languages, all of which must be the paper's; None: no figure.
        statistics: acceptable statistics, in order of preference.
    """
    models = {identity(model)}
    if quantity and quantity.metric != "hours" and model.get("output_algorithm") == "sort":
        models.add(identity({**model, "output_algorithm": ""}))  # the same but for the time
    found = [
        figure
        for figure in published_figures()
        if recipe in (None, figure.recipe)
        and (figure.dataset, figure.quantity) == (dataset, quantity)
        and models & figure.models
    ]
    for statistic in statistics:
        for figure in found:
            if figure.statistic == statistic:
                return figure
    return None


def published_text(
    recipe: Optional[str], dataset: str, model: dict[str, Any], quantity: Optional[Quantity]
) -> Optional[str]:
    """Return the text of the figure found by :func:`find_figure`, with its deviation if known."""
    figure = find_figure(recipe, dataset, model, quantity)
    if figure is None:
        return None
    deviation = find_figure(figure.recipe, dataset, model, quantity, ["deviation"])
    return f"{figure.text} ± {deviation.text}" if deviation else figure.text


def differences(recipe: Optional[str], dataset: str, quantities: Iterable[Quantity]) -> list[str]:
    """Explain for each table with the same data set why its figures cannot be compared with ours.

    Args:
        recipe, dataset: as for :func:`find_figure`.
        quantities: those of all our figures; the paper's figures of the same quantities stand
            beside ours.
    """
    ours = dict.fromkeys(quantities)
    theirs = {
        (figure.paper, figure.table, figure.quantity): None
        for figure in published_figures()
        if recipe in (None, figure.recipe)
        and figure.dataset == dataset
        and figure.quantity not in ours
    }
    return [
        f"{paper}, {table}, has {describe(other)}; ours is {describe(quantity)}: the figures "
        "are not comparable"
        for quantity in ours
        for paper, table, other in theirs
        if other.metric == quantity.metric or {other.metric, quantity.metric} <= BLEU
    ]


def describe(quantity: Quantity) -> str:
    """Return metric, split and number of languages in words."""
    text = METRICS.get(quantity.metric, quantity.metric)
    if quantity.split:
        text += f" on the {quantity.split} set"
    return f"{text} of {quantity.languages} languages" if quantity.languages else text
