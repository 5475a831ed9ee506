"""The summary of a run: one dictionary with all its results, read from the files in its folder.

A run is a folder of ``fairseq-sparse run``, whose last stage keeps the summary in ``summary.json``;
one kept by ``scripts/publish_run.py``; a ``--save-dir`` of fairseq-train; or a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, sha256_of
from fairseq_sparse.measure.training_log import Records, curves, read_log, still_improving
from fairseq_sparse.tables.columns import COLUMNS, Summary
from fairseq_sparse.tables.results import (
    RESULTS,
    SCORES,
    checkpoint_of,
    naming,
    read_attention,
    read_statistics,
    summarize_training,
)

# The file of a run that fairseq-sparse analyze empty writes.
EMPTY = "empty.json"
# Training logs of a run; the last has only its validations.
LOGS = ("logs/train.log", "train.log", "training.tsv")
# What a plain run can lack, and what makes it.
MAKERS = {
    "training": "speed and updates: --log FILE or RUN/train.log, the output of fairseq-train",
    "score": "BLEU: fairseq-sparse score --json RUN/bleu.json",
    "generation": "decoding speed: fairseq-generate ... > RUN/generate-test.txt 2>&1",
    "test": "nonzeros: fairseq-sparse analyze support, or, with the accuracy, fairseq-validate "
    "--valid-subset test --log-format json ... > RUN/validate-test.txt 2>&1",
    "attention": "zeros in attention: fairseq-sparse analyze attention, or report",
}
_REMEDY = "make it again with the stage analyze"


def read_run(run: Path, log: Optional[Path] = None) -> tuple[Summary, Records]:
    """Return the summary of a run, and the records of its training log (see :func:`read_records`).

    Args:
        run: its folder, or a checkpoint, for which the other files in its folder do not count.
        log: its training log; by default, the first of ``LOGS`` that there is.

    Raises:
        AnalysisError: there is no such run, or the log has no numbers.
        OSError, ValueError: a file cannot be read.
    """
    if not run.exists():
        raise AnalysisError(f"{run}: there is no such file or folder")
    records = read_log(log) if log else _own_records(run)
    summary = read_summary(run) if run.is_dir() else None
    if summary is None:
        summary = _read_plain(run, records)
    if "training" in summary:
        summary["training"].setdefault("improving", still_improving(records))
    return summary, records


def read_summary(run: Path) -> Optional[Summary]:
    """Return the ``summary.json`` of a run, with the results on empty translations if they have
    been measured; None if it is not finished.

    Raises:
        ValueError: a figure is not a number; the message names the file and the field.
    """
    path = run / "summary.json"
    if not path.exists():
        return None
    summary = read_json(path)
    _check(summary, path)
    summary.setdefault("run", run.resolve().name)
    if (run / EMPTY).is_file():
        paths = ("name", "checkpoints")  # paths on the machine of the measurement
        with naming(run / EMPTY):
            # As the model scores, without dividing by the sum of p.
            row = next(row for row in read_json(run / EMPTY)["rows"] if row["scores"] == "p")
            summary["empty"] = {name: value for name, value in row.items() if name not in paths}
        _check(summary, run / EMPTY)
    return summary


def missing_parts(summaries: Iterable[Summary]) -> list[str]:
    """Return a message for each part that some plain runs lack, with the command that makes it."""
    summaries = list(summaries)
    lacking: dict[str, list[str]] = {}
    for summary in summaries:
        there = {*summary, *(["score"] if summary.keys() & SCORES.keys() else [])}
        for part in MAKERS if "dataset" not in summary else ():  # the recipes name the data set
            if part not in there:
                lacking.setdefault(part, []).append(summary["run"])
    messages = [f"no {MAKERS[part]} ({', '.join(names)})" for part, names in lacking.items()]
    if outdated := [summary["run"] for summary in summaries if "outdated" in summary]:
        messages.append(
            "results of an earlier checkpoint left out: fairseq-sparse evaluate makes them again "
            f"({', '.join(outdated)})"
        )
    return messages


def _own_records(run: Path) -> Records:
    for path in (run / name for name in LOGS):
        if path.is_file():
            try:
                return read_log(path)
            except AnalysisError:  # it has no numbers yet
                return []
    return []


def _read_plain(run: Path, records: Records) -> Summary:
    """Return what there is of a summary. A file that does not have its figures is left out."""
    alone = run.is_file()
    summary: Summary = {
        "run": f"{run.resolve().parent.name}/{run.name}" if alone else run.resolve().name
    }
    place, readers = run, RESULTS
    model = checkpoint_of(run)
    if not alone and model and _is_outdated(run, model):
        summary["outdated"] = True
    if alone or "outdated" in summary:
        # The other results in its folder can be, or are, those of another checkpoint.
        place, readers = model, (read_statistics, read_attention)
    best = _best_metric(records) if model and model.name == "checkpoint_best.pt" else ""
    training = [lambda _: {"training": summarize_training(records, best)}] if records else []
    for read in [*training, *readers]:
        try:
            part = read(place)
            _check(part, run)
            summary |= part
        # missing_parts names it.
        except (AnalysisError, FileNotFoundError, NotADirectoryError, ValueError):
            pass
    return summary


def _best_metric(records: Records) -> str:
    """Return the ``--best-checkpoint-metric`` of a training, whose best value fairseq logs from the
    second validation on."""
    names = curves(records, "valid")
    return next((name[5:] for name in names if name.startswith("best_")), "loss")


def _is_outdated(run: Path, model: Path) -> bool:
    """Return whether the results in a folder are those that ``fairseq-sparse evaluate`` made from
    another model than the one that is there now."""
    try:
        record = read_json(run / "stages" / "evaluate-test.json")
    except FileNotFoundError:
        return False  # made otherwise, and so of an unknown model
    made = record.get("outputs", {}).items()
    if any((run / name).is_file() and sha256_of(run / name) != digest for name, digest in made):
        return False  # made again otherwise
    made_from = record.get("inputs", {}).get(model.name, {})
    return made_from.get("sha256") != sha256_of(model)


def _check(summary: Summary, path: Path) -> None:
    """Check that the figures of a summary are numbers."""
    names = (
        "run",
        "variant",
        "variant_name",
        "settings",
        "dataset",
        "bleu.signature",
        "empty.subset",
    )
    fields: dict[str, Any] = dict.fromkeys(names, str)
    places = summary.get("attention")
    fields |= {"attention": dict, "inflection.languages": (list, dict)}
    for column in COLUMNS.values():
        if not column.rate:
            fields.setdefault(column.path, (int, float))
        elif isinstance(places, dict):
            fields |= dict.fromkeys((f"attention.{x}.{column.rate}" for x in places), (int, float))
    for field, kind in fields.items():
        value: Any = summary
        for name in field.split("."):
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"{path}: {name} of {field} is missing: {_REMEDY}")
            value = None if value is None else value.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise ValueError(f"{path}: {field} is {value!r:.40}, of another type: {_REMEDY}")
