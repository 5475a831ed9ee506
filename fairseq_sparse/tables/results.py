"""The results of a run: reads the files in its folder, each as a part of a summary.

A part is a dictionary with one name: ``bleu``, ``generation``, ``test``, ``attention``, and so on.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.checkpoints.names import LAST
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, read_text, sha256_of
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.measure.cache import FORMAT, measurement_file
from fairseq_sparse.measure.training_log import (
    Records,
    read_records,
    still_improving,
    training_seconds,
)
from fairseq_sparse.tables.columns import Summary

# Names of the test set's score in a summary, and its file.
SCORES = {"bleu": "bleu.json", "inflection": "accuracy.json"}
# The score of long sentences, which are a test set of their own.
LONG = "bleu-long.json"
# The models that a folder may have, in order of preference.
MODELS = ("average.pt", "checkpoint_best.pt", LAST)
STATISTICS = (
    *("loss", "accuracy", "sentence_accuracy", "nonzeros", "gold_zero", "prob_sum", "tau"),
    "logit_norm",
)
_GENERATED = re.compile(r"Translated [\d,]+ sentences .*\((?P<speed>[\d.]+) sentences/s")
# The line that --task translation_sparse logs after a plain beam search.
_CERTIFIED = re.compile(
    r"certified: \d+ of (?P<judged>\d+) sentences .*? (?P<optimal>\d+) of \d+ sentences"
)


def checkpoint_of(run: Path) -> Optional[Path]:
    """Return the checkpoint that a run's results are of, if it is there: of a folder, the first of
    ``MODELS``."""
    models = [run] if run.is_file() else [run / name for name in MODELS]
    return next(filter(Path.is_file, models), None)


def summarize_training(records: Records, best: str = "") -> Summary:
    """Summarize updates, time, speed and statistics, over all the parts of an interrupted
    training.

    Args:
        best: ``--best-checkpoint-metric``, if the best checkpoint is used rather than the last
            ones.

    Raises:
        AnalysisError: no epoch is finished.
    """
    import numpy as np

    tagged: dict[str, list[dict[str, float]]] = {
        tag: [numbers for found, numbers in records if found == tag]
        for tag in ("train", "train_inner", "valid", "model")
    }
    # If training was killed after saving its last checkpoint, but before logging the end of the
    # epoch, only the preceding validation tells how far it got.
    ends = [x for x in tagged["train"] + tagged["valid"] if {"epoch", "num_updates"} <= x.keys()]
    if not ends:
        raise AnalysisError("the training log has no line of a finished epoch")
    # An epoch that was interrupted and trained again counts once, by its last record.
    last = max(reversed(tagged["train"]), key=lambda found: found["epoch"], default={})
    # The last line of a killed training may end before its speed.
    speeds = [found["wps"] for found in tagged["train_inner"] if "wps" in found]
    updates = max(int(found["num_updates"]) for found in ends)
    times = training_seconds(records)
    valid = [{}, *tagged["valid"]]
    summary: Summary = {
        "epochs": max(int(found["epoch"]) for found in ends),
        "updates": updates,
    }
    if len(times) > 1:  # a table of validations has none
        summary["seconds"] = float(np.interp(updates, *zip(*times, strict=True)))
    if speeds or "wps" in last:
        summary["words_per_second"] = statistics.median(speeds or [last["wps"]])
    if "watt_hours" in last:
        summary["watt_hours"] = last["watt_hours"]  # the total over all parts
    if tagged["model"]:
        summary["parameters"] = int(tagged["model"][-1]["parameters"])
    return {
        **summary,
        "improving": still_improving(records),
        "train": _select(last),
        "valid": _select(best_validation(valid, best) if best else valid[-1]),
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


def read_score(run: Path) -> Summary:
    """Return the score of the test set under its name and, if present, that of the long
    sentences."""
    found = {name: run / file for name, file in SCORES.items() if (run / file).is_file()}
    if not found:
        raise AnalysisError(f"{run} has no {' or '.join(SCORES.values())}: run the stage generate")
    if (run / LONG).is_file():
        found["long"] = run / LONG
    return {name: read_json(path) for name, path in found.items()}


def read_generation(run: Path) -> Summary:
    """Return the speed of decoding, and the share of results that were proven to be the best."""
    text = read_text(run / "generate-test.txt")
    match = _GENERATED.search(text)
    if not match:
        raise AnalysisError(
            f"{run / 'generate-test.txt'}: no line 'Translated N sentences', which "
            "fairseq-generate logs to stderr at its end; run it (or the stage generate) again"
        )
    found = {"sentences_per_second": float(match["speed"])}
    if certified := _CERTIFIED.search(text):
        # The share of exact beams is left out: when only one hypothesis is wanted, the search stops
        # as soon as it is proven to be the best.
        found["optimal"] = int(certified["optimal"]) / int(certified["judged"])
    return {"generation": found}


def read_statistics(run: Path, subset: str = "test") -> Summary:
    """Return the statistics that fairseq-validate logged for a subset, under its name; without
    them, those of the measurement of the output."""
    path = run / f"validate-{subset}.txt"
    if not path.is_file() and (measured := _read_measured(run, "output", subset)):
        means = {name: measured[name]["mean"] for name in ("nonzeros", "prob_sum")}
        return {subset: {**means, "gold_zero": 100 * measured["gold_zero"]}}
    found = [numbers for tag, numbers in read_records(read_text(path)) if tag == subset]
    if not found:
        raise AnalysisError(f"{path}: no statistics of the subset {subset}")
    return {subset: _select(found[-1])}


def _read_measured(run: Path, name: str, subset: str) -> Optional[dict[str, Any]]:
    """Return a measurement of a checkpoint, or of the first of ``MODELS`` in a run's folder; None
    if it is not there, damaged, or of an earlier checkpoint, so that it would be made again."""
    model = checkpoint_of(run)
    try:
        kept = read_json(measurement_file(model or run / MODELS[0], name, subset))
        made_from = kept["made_from"]
        if made_from["format"] != FORMAT:
            return None
        if model is None or made_from["checkpoint"] == sha256_of(model):
            between = "tokens" if made_from.get("subwords", "none") == "none" else "words"
            return {"between": between, **kept["result"]}
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        pass
    return None


def attention_file(subset: str) -> str:
    """Return the name of the file, in a run's folder, of the attention that was measured."""
    return "attention.json" if subset == "test" else f"attention-{subset}.json"


def read_attention(run: Path, subset: str = "test") -> Summary:
    """Return the mean rates of each place of attention over layers and heads."""
    # Where older recipes wrote it, and users may.
    path = run / attention_file(subset)
    kept = _read_measured(run, "attention", subset) or read_json(path)
    rates = kept.get("attention")
    if not isinstance(rates, dict):  # a model without attention has none
        raise AnalysisError(f"{path} has no rates: run the stage analyze again")
    names = ("sparsity", "null", "layer_null", "nonzeros", "first", "eos")
    with naming(path):
        found: Summary = {
            "attention": {
                place: {name: part[name] for name in names if name in part}
                for place, part in rates.items()
            }
        }
    return {**found, "attention_between": kept["between"]} if "between" in kept else found


def read_alignment(run: Path) -> Summary:
    """Return the error rates of word alignments from the mean attention of layers; empty if the
    data set has no gold alignments.

    They are ``aer``, the lowest of all layers, normal or shifted, and ``aol``, the mean of the
    layers' rates, normal if there are both, as in ReLA's Table 5. The links that choose the layer
    for ``aer`` are those that it is scored on, so it is a lower bound of what a layer chosen in
    advance would have.
    """
    path = run / "alignment.json"
    if not path.is_file():
        return {}
    with naming(path):
        folders = read_json(path)["folders"]
        if len(folders) != 1:
            raise ValueError(f"{path} has {len(folders)} folders of alignments: make it of one")
        (folder,) = folders
        # Links made elsewhere may be of one kind only.
        kinds = [folder[kind] for kind in ALIGNMENT_KINDS if kind in folder]
        rates = [layer["average"] for kind in kinds for layer in kind["layers"]]
        return {"alignment": {"aer": min(rates), "aol": kinds[0]["aol"]}}


def read_validation_set(run: Path) -> Summary:
    """Return the statistics of the validation set; empty if the recipe has none.

    ``search`` has the shares of sentences for which beam search proved something. ``exact``: the
    beam has every translation of nonzero probability. ``optimal``: no translation has a better
    score than the first. ``single``: there is only one translation, with all the probability.
    """
    path = run / "search-valid.jsonl"
    if not path.is_file():
        return {}
    try:
        lines = [json.loads(line) for line in read_text(path).splitlines()]
    except json.JSONDecodeError as error:
        raise AnalysisError(f"{path} is cut off or damaged: run the stage analyze again") from error
    if not lines:
        raise AnalysisError(f"{path} is empty: run the stage analyze again")
    with naming(path):
        exact = [line for line in lines if line.get("exact")]
        search = {
            "sentences": len(lines),
            "exact": len(exact) / len(lines),
            "optimal": sum(bool(line.get("optimal")) for line in lines) / len(lines),
            "single": sum(line["hypotheses"] == 1 for line in exact) / len(lines),
        }
    valid = read_statistics(run, "valid")["valid"]
    return {"valid": {**valid, **read_attention(run, "valid"), "search": search}}


# What reads the parts of a summary that come after training.
RESULTS = (
    *(read_score, read_generation, read_statistics, read_attention, read_alignment),
    read_validation_set,
)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise a ValueError that names a file if its content is not of the form that is read."""
    try:
        yield
    except (AttributeError, KeyError, StopIteration, TypeError) as error:
        raise ValueError(f"{path} does not have the expected fields: make it again") from error


def _select(numbers: dict[str, float]) -> dict[str, float]:
    return {name: numbers[name] for name in STATISTICS if name in numbers}
