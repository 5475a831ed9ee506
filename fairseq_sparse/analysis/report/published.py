"""The papers' own figures, for comparison: ``published.json``.

Every figure there is copied from the source that stands beside it, as it is printed; none is read
off a plot. A paper's table that could not be checked is not there.

``scores`` are figures by data set and row; ``tables`` are as the papers have them, and where they
have ``columns`` and ``variants``, these say which of our columns and rows a figure belongs to.
``recipe`` is what ``examples/reproduce.sh`` calls the paper. A row is a variant of the recipes with
the variables that it is given: ``entmax OUTPUT_ALPHA=2 ATTENTION_ALPHA=1``.
"""

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, Optional


def read_published() -> dict[str, Any]:
    """``scores``, by data set and variant, and other ``tables``."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return json.loads(text)


def published_figure(
    published: dict[str, Any], recipe: str, dataset: str, row: str, column: str
) -> Optional[str]:
    """What a paper reports for a row and a column of our tables; None if it does not.

    Scores are those of the data set; sizes and speeds are those of the paper's own data, whatever
    ours are.

    Args:
        recipe: what ``examples/reproduce.sh`` calls the paper.
        column: of :data:`fairseq_sparse.analysis.results.COLUMNS`.
    """
    score = _score(scores_of(published, recipe, column), dataset, row)
    if score is not None:
        return score
    for table in published["tables"]:
        if table.get("recipe") == recipe and column in table.get("columns", ()):
            for variants, figures in zip(table["variants"], table["rows"], strict=True):
                if row in variants:
                    return figures[table["columns"].index(column)]
    return None


def scores_of(published: dict[str, Any], recipe: str, column: str) -> list[dict[str, Any]]:
    """The tables of ``scores`` of one paper and one column."""
    return [
        table
        for table in published["scores"]
        if (table["recipe"], table["column"]) == (recipe, column)
    ]


def published_score(published: dict[str, Any], dataset: str, variant: str) -> Optional[str]:
    """What a paper reports for a data set and a variant of the recipes; None if it does not."""
    return _score(published["scores"], dataset, variant)


def _score(tables: Sequence[dict[str, Any]], dataset: str, row: str) -> Optional[str]:
    """The figure of a data set and a row in the first of the tables that has it."""
    for table in tables:
        datasets = list(table["datasets"])
        for line in table["rows"]:
            if dataset in datasets and row in line["variants"]:
                return line["figures"][datasets.index(dataset)]
    return None
