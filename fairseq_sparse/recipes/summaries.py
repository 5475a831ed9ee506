"""The results of a run that the recipes write: measures.json and summary.json."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, read_text, write_text
from fairseq_sparse.recipes.recipe import Recipe
from fairseq_sparse.tables.summaries import RESULTS

# The measures logged by fairseq-eval-lm, the samples printed by fairseq-interactive, and the token
# for a line break.
MEASURES = re.compile(r"\bmeasures \| (\{.*\})")
SAMPLE = re.compile(r"^D-\d+\t\S+\t(.*)$", re.MULTILINE)
LINE_BREAK = re.compile(r" *<nl> *")


def summarize_text(run: Path) -> dict[str, Any]:
    """Collect the measures of a language model, and write its samples as readable text."""
    summary = {}
    for subset in ("valid", "test"):
        path = run / f"evaluate-{subset}.txt"
        found = MEASURES.findall(read_text(path))
        if not found:
            raise AnalysisError(f"{path} has no measures")
        summary[subset] = json.loads(found[-1])
    samples = SAMPLE.findall(read_text(run / "samples-raw.txt"))
    texts = [LINE_BREAK.sub("\n", text.strip()) for text in samples]
    write_text(run / "samples.txt", "\n\n".join(texts) + "\n")
    return summary


def describe_environment() -> dict[str, Any]:
    """Return versions and hardware, for reports."""
    import fairseq
    import torch

    import fairseq_sparse
    from fairseq_sparse.measure.machine import cpu_name

    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fairseq": fairseq.__version__,
            "fairseq_sparse": fairseq_sparse.__version__,
            "sacrebleu": metadata.version("sacrebleu"),
        },
        "hardware": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        },
    }


def names_of(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a recipe by which tables know its runs."""
    return {
        "dataset": recipe.dataset,
        "dataset_note": recipe.note,
        "variant": recipe.variant,
        "variant_name": recipe.label,
        "settings": recipe.settings,
        "config": recipe.config,
        "seed": recipe.seed,
        "model": asdict(recipe.model),
    }


def summarize_all(recipe: Recipe) -> dict[str, Any]:
    """Return everything that a results table needs of a run.

    Raises:
        AnalysisError, OSError, ValueError: a result is missing, or its file damaged.
    """
    run, summary = recipe.run_dir, names_of(recipe)
    measures = run / "measures.json"
    if measures.is_file():  # a language model
        summary |= read_json(measures)
    else:
        for read in RESULTS:
            summary |= read(run)
    return {**summary, "training": read_json(run / "train.json"), **describe_environment()}
