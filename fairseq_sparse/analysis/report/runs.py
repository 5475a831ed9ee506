"""What a folder has that the recipes' stages made."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.analysis.reports import read_json
from fairseq_sparse.analysis.trained_models import AnalysisError
from fairseq_sparse.analysis.training_log import Records, read_records
from fairseq_sparse.checkpoint_safety import load_checkpoint


@dataclass(frozen=True)
class Run:
    """A trained model, and what is known of its training and its scores.

    Attributes:
        name: what to call it, different from the names of the others.
        folder: of the run.
        summary: ``summary.json`` of the stage analyze; empty if there is none.
        records: of the training log, see :func:`read_records`; empty if there is none.
        alignment: what ``scripts/score_alignments.py --json`` wrote of its folder of alignments;
            None if its data have no gold alignments, or the stage align has not run.
    """

    name: str
    folder: Path
    summary: dict[str, Any]
    records: Records
    alignment: Optional[dict[str, Any]]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "average.pt"

    @property
    def trained_on(self) -> Optional[str]:
        """The SHA-256 of the settings that its data were prepared with, if the recipe noted it."""
        settings = self.folder / "settings" / "train"
        first = settings.read_text(encoding="utf-8").split("\n")[0] if settings.is_file() else ""
        return first.removeprefix("data ") if first.startswith("data ") else None


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in folders.

    Raises:
        AnalysisError: a folder is given twice, or has no ``average.pt``.
        OSError, ValueError: a file of a run cannot be read.
    """
    places = [folder.resolve() for folder in folders]
    for place, folder in zip(places, folders, strict=True):
        if places.count(place) > 1:
            raise AnalysisError(f"{folder} is given twice")
        if not (place / "average.pt").is_file():
            raise AnalysisError(
                f"{folder}: no average.pt; give folders that examples/run.sh made, and run its "
                "stages train and average first"
            )
    return [_read_run(*pair) for pair in zip(places, short_names(places), strict=True)]


def short_names(places: Sequence[Path]) -> list[str]:
    """The names of the folders, or what differs in their paths if the names are not unique."""
    names = [place.name for place in places]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath(places)
    return [os.path.relpath(place, common) for place in places]


def find_data(runs: Sequence[Run], data: Optional[str]) -> str:
    """The folder of prepared data that all runs were trained on.

    Args:
        runs: at least one.
        data: what the user says; None: what the first run's checkpoint says.

    Raises:
        AnalysisError: it does not exist, or a run was trained on other data.
        CheckpointError: the checkpoint cannot be read.
    """
    if data is None:
        data = load_checkpoint(runs[0].checkpoint)["cfg"]["task"]["data"]
        if not Path(data).is_dir():
            raise AnalysisError(
                f"{runs[0].folder} was trained on {data}, which is not there: give --data"
            )
    elif not Path(data).is_dir():
        raise AnalysisError(f"--data {data}: there is no such folder")
    settings = Path(data).resolve().parent / "settings"
    known = hashlib.sha256(settings.read_bytes()).hexdigest() if settings.is_file() else None
    for run in runs:
        known = known or run.trained_on
        if run.trained_on not in (None, known):
            raise AnalysisError(
                f"{run.folder} was trained on other data than {data}: one report compares models "
                "of one data set"
            )
    return data


def name_of_data(runs: Sequence[Run], data: str) -> str:
    """What the recipe calls the data set, or the folder of the data."""
    names = [run.summary.get("dataset") for run in runs]
    return next(filter(None, names), data)


def _read_run(folder: Path, name: str) -> Run:
    log = folder / "logs" / "2_train.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    aligned = _read_json(folder / "alignment.json").get("folders")
    summary = _read_json(folder / "summary.json")
    return Run(name, folder, summary, read_records(text), aligned[0] if aligned else None)


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
