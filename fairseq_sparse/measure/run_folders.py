"""Trained models for the report: runs of the recipes, and those of plain ``fairseq-train``."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json, sha256_of
from fairseq_sparse.tables.results import MODELS


@dataclass(frozen=True)
class Run:
    """A trained model, and what the folder of its run says about it.

    Attributes:
        name: its name, different from all others.
        checkpoint: the model.
        place: the folder, or the checkpoint alone if other files may be of another model.
    """

    name: str
    checkpoint: Path
    place: Path

    @property
    def folder(self) -> Path:
        return self.place.parent if self.place.is_file() else self.place

    @property
    def alignment(self) -> Optional[dict[str, Any]]:
        """The results of ``fairseq-sparse analyze alignment --json`` for its alignments; None if
        its data have no gold alignments, or the stage align has not run."""
        return next(iter(_read_json(self.place / "alignment.json").get("folders", [])), None)

    @property
    def trained_on(self) -> dict[str, str]:
        """The SHA-256 of each file of its prepared data, if the recipe recorded them."""
        inputs = _read_json(self.folder / "stages" / "train.json").get("inputs", {})
        return {name: entry["sha256"] for name, entry in inputs.items()}

    @property
    def subwords(self) -> Optional[str]:
        """How words were split, if the recipe recorded it: a choice of ``--subwords``."""
        record = _read_json(self.folder / "stages" / "analyze.json")
        return record.get("settings", {}).get("subwords")


def find_runs(given: Sequence[Path]) -> list[Run]:
    """Find the models in folders of the recipes, in folders of ``--save-dir``, or alone.

    Raises:
        AnalysisError: a run is given twice, or has no checkpoint.
    """
    places = [path.resolve() for path in given]
    for place, path in zip(places, given, strict=True):
        if places.count(place) > 1:
            raise AnalysisError(f"{path} is given twice")
    checkpoints = map(find_checkpoint, given)
    return list(map(Run, short_names(places), checkpoints, places))


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


def find_data(runs: Sequence[Run], data: Optional[str], remedy: str = "give --data") -> str:
    """Find the folder of prepared data that all runs were trained on.

    Args:
        runs: at least one.
        data: the folder given by the user; None: the folder named in the first run's checkpoint.
        remedy: what the user can do if that folder is not there.

    Raises:
        AnalysisError: the folder does not exist, or a run was trained on other data.
        CheckpointError: the checkpoint cannot be read.
    """
    if data is None:
        from fairseq_sparse.checkpoints.loading import load_checkpoint, settings_of

        state = load_checkpoint(runs[0].checkpoint, with_tensors=False)
        data = settings_of(state, "task").get("data")
        if data == ".":
            data = None  # from average --share: not the folder that one happens to be in
        if not isinstance(data, str) or not Path(data).is_dir():
            raise AnalysisError(
                f"{runs[0].folder} was trained on {data or 'unnamed data'}, which is not there: "
                f"{remedy}"
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


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
