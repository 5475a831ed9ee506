"""The report as one HTML file with its text, figures, data and scripts; it loads nothing else."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.cache import Measurements
from fairseq_sparse.measure.run_folders import name_of_data
from fairseq_sparse.plots.pictures import require_matplotlib
from fairseq_sparse.report.sections import (
    attention_section,
    output_section,
    results_section,
    training_section,
)
from fairseq_sparse.tables.published import read_published


def make_page(measurements: Sequence[Measurements], sentences: int) -> str:
    """Measure what has not been measured yet, and write the page.

    Args:
        measurements: of each model, on the same part of the same data.
        sentences: number of sentences that are shown one by one.

    Raises:
        AnalysisError: a model and the data do not match, the models do not have the same
            sentences, or matplotlib is missing.
        CheckpointError: a checkpoint cannot be read.
        OSError: the measurements cannot be written.
        ValueError: a model's parameters are NaN or infinite.
    """
    require_matplotlib()
    runs = [found.run for found in measurements]
    data, subset = measurements[0].data, measurements[0].subset
    dataset = name_of_data(runs, data)
    rows = [found.output() for found in measurements]
    decoded = [found.decoded() for found in measurements]
    empty = [row for found in measurements for row in found.empty()]
    attention = {found.run.name: found.attention() for found in measurements}
    alignment = {run.name: run.alignment for run in runs if run.alignment}
    models = [{"name": found.run.name, **found.sentences(sentences)} for found in measurements]
    _check_sentences(models)
    number = "one model" if len(runs) == 1 else f"{len(runs)} models"
    return fill_page(
        title=f"{dataset}: {', '.join(run.name for run in runs)}",
        about=f"A comparison of {number} on the {subset} set of {dataset}, made by fairseq_sparse.",
        results=results_section(runs, dataset, read_published()),
        training=training_section(runs),
        output=output_section(rows, decoded, empty),
        attention=attention_section(attention, alignment),
        data={"models": models},
    )


def fill_page(title: str, about: str, data: dict[str, Any], **sections: str) -> str:
    """Return the page around its parts.

    Args:
        title, about: text.
        data: for the script, see ``page.js``.
        sections: ``results``, ``training``, ``output``, ``attention``: HTML.
    """
    template, style, script = map(_read, ("page.html", "page.css", "page.js"))
    # The template has a line break after <script>, which the digest must include.
    digest = hashlib.sha256(f"\n{script}".encode()).digest()
    return template.format(
        title=escape(title),
        about=escape(about),
        style=style,
        script=script,
        script_hash=f"sha256-{base64.b64encode(digest).decode('ascii')}",
        data=script_json(data),
        **sections,
    )


def script_json(content: Any) -> str:
    """Return JSON for a ``<script>`` element, in which no text can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _check_sentences(models: Sequence[dict[str, Any]]) -> None:
    """Check that all models show the same sentences; otherwise they could not be compared."""
    tokens = [
        [(part["number"], part["source"], part["target"]) for part in model["sentences"]]
        for model in models
    ]
    if not tokens[0]:
        raise AnalysisError(f"{models[0]['name']}: all the sentences are too long for the model")
    for model, own in zip(models, tokens, strict=True):
        if own != tokens[0]:
            raise AnalysisError(
                f"{model['name']} and {models[0]['name']} do not see the same sentences: their "
                "limits of length differ"
            )


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
