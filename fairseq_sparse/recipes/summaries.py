"""The results of a run: train.json, measures.json and summary.json."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, read_text, write_text
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.measure.cache import measurement_file
from fairseq_sparse.recipes.recipe import Recipe

GENERATE_SPEED = re.compile(
    r"Translated (?P<sentences>[\d,]+) sentences .*\((?P<speed>[\d.]+) sentences/s"
)
# The line that --task translation_sparse logs after a plain beam search.
CERTIFIED = re.compile(
    r"certified: \d+ of (?P<judged>\d+) sentences .*? (?P<optimal>\d+) of \d+ sentences"
)
PARAMETERS = re.compile(r"num\. shared model params: [\d,]+ \(num\. trained: (?P<trained>[\d,]+)\)")
# The measures logged by fairseq-eval-lm, the samples printed by fairseq-interactive, and the token
# for a line break.
MEASURES = re.compile(r"\bmeasures \| (\{.*\})")
SAMPLE = re.compile(r"^D-\d+\t\S+\t(.*)$", re.MULTILINE)
LINE_BREAK = re.compile(r" *<nl> *")
STATISTICS = (
    "loss",
    "accuracy",
    "sentence_accuracy",
    "nonzeros",
    "gold_zero",
    "prob_sum",
    "tau",
    "logit_norm",
)
# The name of the test set's score in a summary, and its file.
SCORES = {"bleu": "bleu.json", "inflection": "accuracy.json"}
# The score of long sentences, which are a test set of their own.
LONG = "bleu-long.json"


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


def select_statistics(numbers: dict[str, float]) -> dict[str, float]:
    return {name: numbers[name] for name in STATISTICS if name in numbers}


def describe_environment() -> dict[str, object]:
    """Return versions and hardware, for reports."""
    import fairseq
    import torch

    import fairseq_sparse
    from fairseq_sparse.measure.machine import cpu_name

    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": fairseq.__version__,
        "fairseq_sparse": fairseq_sparse.__version__,
        "sacrebleu": metadata.version("sacrebleu"),
    }
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "versions": versions,
        "hardware": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": gpus,
        },
    }


def summarize_training(log: Path, best: str = "") -> dict[str, object]:
    """Summarize updates, time, speed and statistics, over all the parts of an interrupted
    training.

    Args:
        log: the output of fairseq-train, or its log file.
        best: ``--best-checkpoint-metric``, if the best checkpoint is used rather than the last
            ones.
    """
    import numpy as np

    from fairseq_sparse.measure.training_log import log_text, read_records, training_seconds

    text = log_text(log)
    records = read_records(text)
    # An epoch that was interrupted and trained again counts once, by its last record.
    epochs = {int(numbers["epoch"]): numbers for tag, numbers in records if tag == "train"}
    # The last line of a killed training may end before its speed.
    speeds = [
        numbers["wps"] for tag, numbers in records if tag == "train_inner" and "wps" in numbers
    ]
    parameters = PARAMETERS.findall(text)
    valid = [numbers for tag, numbers in records if tag == "valid"]
    # If training was killed after saving its last checkpoint, but before logging the end of the
    # epoch, only the preceding validation tells how far it got.
    counted = [
        numbers
        for tag, numbers in records
        if tag in ("train", "valid") and {"epoch", "num_updates"} <= numbers.keys()
    ]
    if not counted:
        raise AnalysisError(f"{log}: no line of a finished epoch")
    last = epochs[max(epochs)] if epochs else {}
    speeds = speeds or [last.get("wps", 0.0)]
    updates = max(int(numbers["num_updates"]) for numbers in counted)
    seconds = float(np.interp(updates, *zip(*training_seconds(records), strict=True)))
    summary = {
        "epochs": max(int(numbers["epoch"]) for numbers in counted),
        "updates": updates,
        "seconds": seconds,
    }
    if "watt_hours" in last:
        summary["watt_hours"] = last["watt_hours"]  # the total over all parts
    used = best_validation(valid, best) if best else [{}, *valid][-1]
    if parameters:
        summary["parameters"] = int(parameters[-1].replace(",", ""))
    return {
        **summary,
        "words_per_second": statistics.median(speeds),
        "train": select_statistics(last),
        "valid": select_statistics(used),
        **describe_environment(),
    }


def best_validation(valid: list[dict[str, float]], metric: str) -> dict[str, float]:
    """Return the validation of the checkpoint that is best by a metric."""
    # fairseq logs the best value so far, if there is one; an equal value replaces its checkpoint.
    best = [
        numbers
        for numbers in valid
        if metric in numbers and numbers[metric] == numbers.get(f"best_{metric}", numbers[metric])
    ]
    return best[-1] if best else {}


def summarize_generation(run: Path) -> dict[str, object]:
    """Return the speed of decoding, and the share of results that were proven to be the best."""
    text = read_text(run / "generate-test.txt")
    match = GENERATE_SPEED.search(text)
    if not match:
        raise AnalysisError(
            f"{run / 'generate-test.txt'}: no line 'Translated N sentences', which "
            "fairseq-generate logs to stderr at its end; run it (or the stage generate) again"
        )
    summary = {"sentences_per_second": float(match["speed"])}
    if certified := CERTIFIED.search(text):
        # The share of exact beams is left out: when only one hypothesis is wanted, the search stops
        # as soon as it is proven to be the best.
        summary["optimal"] = int(certified["optimal"]) / int(certified["judged"])
    return summary


def read_score(run: Path) -> dict[str, object]:
    """Return the score of the test set under its name and, if present, that of the long
    sentences."""
    found = {name: run / file for name, file in SCORES.items() if (run / file).is_file()}
    if not found:
        raise AnalysisError(f"{run} has no {' or '.join(SCORES.values())}: run the stage generate")
    if (run / LONG).is_file():
        found["long"] = run / LONG
    return {name: read_json(path) for name, path in found.items()}


def attention_file(run: Path, subset: str) -> Path:
    """Return the file of a run's attention, where it is kept or where older recipes wrote it."""
    path = measurement_file(run / "average.pt", "attention", subset)
    older = run / ("attention.json" if subset == "test" else f"attention-{subset}.json")
    return path if path.is_file() else older


def summarize_attention(path: Path) -> dict[str, object]:
    """Summarize the mean rates of each place of attention over layers and heads."""
    content = read_json(path)
    rates = content.get("result", content).get("attention")
    if not rates:
        raise AnalysisError(f"{path} has no rates: run the stage analyze again")
    return {
        place: {
            name: part[name]
            for name in ("sparsity", "null", "layer_null", "nonzeros", "first", "eos")
            if name in part
        }
        for place, part in rates.items()
    }


def summarize_alignment(run: Path) -> dict[str, object]:
    """Return the error rates of word alignments from the mean attention of layers; empty if the
    data set has no gold alignments.

    They are ``aer``, the lowest of all layers, normal or shifted, and ``aol``, the mean of the
    layers' rates, normal, as in ReLA's Table 5. The links that choose the layer for ``aer`` are
    those that it is scored on, so it is a lower bound of what a layer chosen in advance would have.
    """
    path = run / "alignment.json"
    if not path.is_file():
        return {}
    (folder,) = read_json(path)["folders"]
    rates = [layer["average"] for kind in ALIGNMENT_KINDS for layer in folder[kind]["layers"]]
    return {"alignment": {"aer": min(rates), "aol": folder["normal"]["aol"]}}


def statistics_of(run: Path, subset: str) -> dict[str, float]:
    """Return the statistics that fairseq-validate logged for a subset."""
    from fairseq_sparse.measure.training_log import read_records

    path = run / f"validate-{subset}.txt"
    found = [numbers for tag, numbers in read_records(read_text(path)) if tag == subset]
    if not found:
        raise AnalysisError(f"{path}: no statistics of the subset {subset}")
    return select_statistics(found[-1])


def summarize_search(path: Path) -> dict[str, object]:
    """Summarize a search report as shares of sentences for which beam search proved something.

    ``exact``: the beam has every translation of nonzero probability. ``optimal``: no translation
    has a better score than the first. ``single``: there is only one translation, with all the
    probability.
    """
    lines = [json.loads(line) for line in read_text(path).splitlines()]
    if not lines:
        raise AnalysisError(f"{path} is empty: run the stage analyze again")
    exact = [line for line in lines if line.get("exact")]
    return {
        "sentences": len(lines),
        "exact": len(exact) / len(lines),
        "optimal": sum(bool(line.get("optimal")) for line in lines) / len(lines),
        "single": sum(line["hypotheses"] == 1 for line in exact) / len(lines),
    }


def summarize_validation_set(run: Path) -> dict[str, object]:
    """Summarize the statistics of the validation set; empty if the recipe has none."""
    report = run / "search-valid.jsonl"
    if not report.is_file():
        return {}
    statistics = statistics_of(run, "valid")
    attention = summarize_attention(attention_file(run, "valid"))
    return {"valid": {**statistics, "attention": attention, "search": summarize_search(report)}}


def names_of(recipe: Recipe) -> dict[str, object]:
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


def summarize_all(run: Path, names: dict[str, object]) -> dict[str, object]:
    """Return everything that a results table needs.

    Args:
        run: the folder of the run.
        names: the result of :func:`names_of`.
    """
    train = read_json(run / "train.json")
    measures = run / "measures.json"
    if measures.is_file():  # a language model
        return {**names, **read_json(measures), "training": train, **describe_environment()}
    test = statistics_of(run, "test")
    return {
        **names,
        **read_score(run),
        "generation": summarize_generation(run),
        "test": test,
        "attention": summarize_attention(attention_file(run, "test")),
        **summarize_alignment(run),
        **summarize_validation_set(run),
        "training": train,
        **describe_environment(),
    }
