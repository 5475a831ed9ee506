"""The report as one HTML file with its text, figures, data and scripts; it loads nothing else."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.plots.pictures import colours_of, require_matplotlib, unescaped
from fairseq_sparse.report import sections
from fairseq_sparse.tables.published import read_published

Model = Mapping[str, Any]


def make_page(models: Sequence[Model], dataset: str, subset: str) -> str:
    """Write the page about some models.

    Args:
        models: for each its ``name``; ``summary``, ``records`` of the training log and
            ``alignment`` of :class:`Run`, empty or None if there are none; and the results of
            the methods ``output``, ``decoded``, ``empty``, ``attention`` and ``sentences`` of
            :class:`Measurements`, all on one part of the data. Under ``missing``: the commands
            that would make ``records`` and ``alignment``.
        dataset, subset: the names of the data and of its part.

    Raises:
        AnalysisError: the models do not have the same sentences, or matplotlib is missing.
    """
    require_matplotlib()
    names = [model["name"] for model in models]
    shown = [{"name": model["name"], **unescaped(model["sentences"])} for model in models]
    _check_sentences(shown)
    number = "one model" if len(names) == 1 else f"{len(names)} models"
    colours = colours_of(names)
    return fill_page(
        f"{dataset}: {', '.join(names)}",
        f"A comparison of {number} on the {subset} set of {dataset}, made by fairseq_sparse.",
        {
            "Results": sections.results(models, dataset, read_published()),
            "Training": sections.training(models, colours),
            "Output": sections.output(models, colours),
            "Attention": sections.attention(models, colours),
        },
        {"models": shown},
    )


def fill_page(
    title: str, about: str, parts: Mapping[str, Sequence[sections.Part]], data: dict[str, Any]
) -> str:
    """Return the page around its parts.

    Args:
        parts: the content of each section by its heading.
        data: for the script, see ``page.js``.
    """
    from jinja2 import Environment, StrictUndefined

    style, script = map(_read, ("page.css", "page.js"))
    # The template has a line break after <script>, which the digest must include.
    digest = hashlib.sha256(f"\n{script}".encode()).digest()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_read("page.html")).render(
        title=title,
        about=about,
        parts=parts,
        style=style,
        script=script,
        script_hash=f"sha256-{base64.b64encode(digest).decode('ascii')}",
        data=script_json(data),
    )


def script_json(content: Any) -> str:
    """Return JSON for a ``<script>`` element, in which no text can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _check_sentences(models: Sequence[Model]) -> None:
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
