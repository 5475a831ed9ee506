"""Trained models for the report: runs of the recipes, and those of plain ``fairseq-train``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, sha256_of
from fairseq_sparse.measure.training_log import Records
from fairseq_sparse.tables.summaries import MODELS, read_run


@dataclass(frozen=True)
class Run:
    """A trained model, and what is known of its training and its scores.

    Attributes:
        name: its name in the report, different from all others.
        folder: the folder of the run.
        checkpoint: the model.
        summary, records: see :func:`read_run`.
        alignment: the results of ``fairseq-sparse analyze alignment --json`` for its alignments;
            None if its data have no gold alignments, or the stage align has not run.
    """

    name: str
    folder: Path
    checkpoint: Path
    summary: dict[str, Any]
    records: Records
    alignment: Optional[dict[str, Any]]

    @property
    def trained_on(self) -> dict[str, str]:
        """The SHA-256 of each file of its prepared data, if the recipe recorded them."""
        inputs = _read_json(self.folder / "stages" / "train.json").get("inputs", {})
        return {name: entry["sha256"] for name, entry in inputs.items()}

    @property
    def subwords(self) -> Optional[str]:
        """How words were split, if the recipe recorded it: a choice of ``--subwords``."""
        return (
            _read_json(self.folder / "stages" / "analyze.json").get("settings", {}).get("subwords")
        )


def read_runs(given: Sequence[Path], logs: Sequence[Path] = ()) -> list[Run]:
    """Read the runs in folders, or checkpoints alone.

    Args:
        given: folders of the recipes, folders of ``--save-dir``, or checkpoints.
        logs: the training log of each, in the same order; if empty, those of the recipes.

    Raises:
        AnalysisError: a run is given twice, or has no checkpoint; a log has no numbers, or the
            numbers of logs and runs differ.
        OSError, ValueError: a file of a run cannot be read.
    """
    if logs and len(logs) != len(given):
        raise AnalysisError(f"{len(given)} runs, but {len(logs)} logs: give one for each, in order")
    paths = [path.resolve() for path in given]
    for place, path in zip(paths, given, strict=True):
        if paths.count(place) > 1:
            raise AnalysisError(f"{path} is given twice")
    checkpoints = [find_checkpoint(path) for path in given]
    runs = []
    for place, name, checkpoint, log in zip(
        paths, short_names(paths), checkpoints, logs or [None] * len(given), strict=True
    ):
        summary, records = read_run(place, log)
        alone = place.is_file()  # the rest of the folder may be of another checkpoint
        aligned = [] if alone else _read_json(place / "alignment.json").get("folders")
        folder = place.parent if alone else place
        alignment = aligned[0] if aligned else None
        runs.append(Run(name, folder, checkpoint, summary, records, alignment))
    return runs


def find_checkpoint(path: Path) -> Path:
    """Return the model of a run: the given checkpoint, or the preferred one in its folder.

    Raises:
        AnalysisError: there is no checkpoint.
    """
    if path.is_file():
        return path.resolve()
    for name in MODELS:
        if (path / name).is_file():
            return path.resolve() / name
    if not path.exists():
        raise AnalysisError(f"{path}: there is no such file or folder")
    raise AnalysisError(
        f"{path}: no {', '.join(MODELS)}; give a checkpoint, a folder of fairseq-train's "
        "--save-dir, or one of fairseq-sparse run, after its stages train and average"
    )


def short_names(places: Sequence[Path]) -> list[str]:
    """Return the names of the folders, or where they are not unique, the parts of the paths that
    differ.

    The name of a checkpoint is preceded by its folder's.
    """
    names = [
        f"{place.parent.name}/{place.name}" if place.is_file() else place.name for place in places
    ]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath(places)
    return [os.path.relpath(place, common) for place in places]


def find_data(runs: Sequence[Run], data: Optional[str]) -> str:
    """Find the folder of prepared data that all runs were trained on.

    Args:
        runs: at least one.
        data: the folder given by the user; None: the folder named in the first run's checkpoint.

    Raises:
        AnalysisError: the folder does not exist, or a run was trained on other data.
        CheckpointError: the checkpoint cannot be read.
    """
    if data is None:
        from fairseq_sparse.checkpoints.loading import load_checkpoint, settings_of

        state = load_checkpoint(runs[0].checkpoint, with_tensors=False)
        data = settings_of(state, "task").get("data")
        if not isinstance(data, str) or not Path(data).is_dir():
            raise AnalysisError(
                f"{runs[0].folder} was trained on {data or 'unnamed data'}, which is not there: "
                "give --data"
            )
    elif not Path(data).is_dir():
        raise AnalysisError(f"--data {data}: there is no such folder")
    there = {name: Path(data) / name for run in runs for name in run.trained_on}
    known = {name: sha256_of(path) for name, path in there.items() if path.is_file()}
    for run in runs:
        if any(known.get(name, digest) != digest for name, digest in run.trained_on.items()):
            raise AnalysisError(
                f"{run.folder} was trained on other data than {data}: a report compares models "
                "of one data set"
            )
    return data


def find_subwords(runs: Sequence[Run]) -> str:
    """Return how words were split in the first run that has a record of it, or ``none``."""
    return next(filter(None, (run.subwords for run in runs)), "none")


def name_of_data(runs: Sequence[Run], data: str) -> str:
    """Return the recipe's name of the data set, or the folder of the data."""
    names = [run.summary.get("dataset") for run in runs]
    return next(filter(None, names), data)


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
