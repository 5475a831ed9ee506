"""The papers' own figures, for comparison: ``published.json``.

Every figure there is copied from the source that stands beside it, as it is printed; none is read
off a plot. A paper's table that could not be checked is not there.
"""

import json
from importlib import resources
from typing import Any, Optional


def read_published() -> dict[str, Any]:
    """``scores``, by data set and variant, and other ``tables``."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return json.loads(text)


def published_score(published: dict[str, Any], dataset: str, variant: str) -> Optional[str]:
    """What a paper reports for a data set and a variant of the recipes; None if it does not."""
    for table in published["scores"]:
        datasets = list(table["datasets"])
        for row in table["rows"]:
            if dataset in datasets and variant in row["variants"]:
                return row["figures"][datasets.index(dataset)]
    return None
