"""The rows of a paper's table, from the runs behind it: means over seeds and a paired test.

``examples/reproduce.sh`` plans the runs, trains them, and makes the table from those that are
finished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Optional

from fairseq_sparse.analysis.runs.columns import (
    COLUMNS,
    Summary,
    cell,
    look_up,
    number,
    read_summary_file,
)
from fairseq_sparse.analysis.runs.published import alphas_of
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, read_json

_SEED = re.compile(r"^--seed (\d+)$", re.MULTILINE)
_SWEEP_FOLDER = re.compile(r"output-([\d.]+)-attention-([\d.]+)")
# The mark of an empty field in a plan.
NOTHING = "-"
# The file that the recipes let fairseq-sparse analyze output write into a run's folder.
EMPTY = "empty.json"


@dataclass(frozen=True)
class PlannedRun:
    """A run of the grid behind a table.

    Attributes:
        environment: the variables of the variant, as ``NAME=VALUE NAME=VALUE``.
        settings: the value of ``run.sh --settings``.
        data_dir, folder: the values of ``run.sh --data-dir`` and ``--run-dir``.
    """

    seed: int
    dataset: str
    variant: str
    settings: str
    environment: str
    data_dir: Path
    folder: Path

    @property
    def row(self) -> str:
        """The variant with its variables, the same for all seeds."""
        return f"{self.variant} {self.environment}".strip()


@dataclass
class Row:
    """The runs of one row of a table on one data set.

    Attributes:
        name: variant and variables.
        runs: the planned run of each seed.
        summaries: the summary of each finished seed.
        ensemble: the summary of the ensemble of these seeds, if ``sweep.sh`` has made it.
        p: for each seed, the p-value of the paired test against the baseline with this seed.
    """

    name: str
    runs: dict[int, PlannedRun] = field(default_factory=dict)
    summaries: dict[int, Summary] = field(default_factory=dict)
    ensemble: Optional[Summary] = None
    p: dict[int, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name that the variant gives itself, or else the row's name."""
        names = (summary.get("variant_name") for summary in self.summaries.values())
        return next(filter(None, names), self.name)

    @property
    def mean(self) -> Summary:
        """The summary that has the mean of each number over the finished seeds."""
        return mean_of(list(self.summaries.values())) if self.summaries else {}

    @property
    def alphas(self) -> tuple[float, float]:
        """The alphas of output and attention.

        Raises:
            AnalysisError: the variant is not alpha-entmax.
        """
        return alphas_of(self.name)

    def values(self, column: str) -> list[float]:
        """Look up a column of a single number in the finished seeds."""
        found = (number(summary, column) for summary in self.summaries.values())
        return [value for value in found if value is not None]

    def values_at(self, path: str) -> list[float]:
        """Look up a dotted path in the summaries of the finished seeds that have it."""
        found = (look_up(summary, path) for summary in self.summaries.values())
        return [value for value in found if value is not None]

    def cell(self, column: str, baseline: Row) -> str:
        """Return the mean of a column; scores of several seeds have their standard deviation.

        It is the sample standard deviation, with n - 1 in the denominator. Where some of the
        finished seeds lack the value, the number of those that have it follows.
        """
        text = cell(self.mean, column, baseline.mean)
        values = self.values(column)
        if COLUMNS[column].spread and len(values) > 1:
            text += f" ± {COLUMNS[column].format.format(stdev(values))}"
        if 0 < len(values) < len(self.summaries):
            text += f" (n = {len(values)})"
        return text


def mean_of(summaries: Sequence[Summary]) -> Summary:
    """Return the mean of each number over those that have it, and the first of other values."""
    names = dict.fromkeys(name for summary in summaries for name in summary)
    result: Summary = {}
    for name in names:
        values = [summary[name] for summary in summaries if summary.get(name) is not None]
        if not values:
            continue
        if isinstance(values[0], dict):
            result[name] = mean_of(values)
        elif isinstance(values[0], (int, float)) and len(values) > 1:
            result[name] = fmean(values)
        else:
            result[name] = values[0]
    return result


def read_plan(path: Path) -> list[PlannedRun]:
    """Read the runs in a file of ``examples/reproduce.sh``: seven fields with tabs between them.

    Raises:
        AnalysisError: a line is not a run, or there are no lines.
    """
    plan = []
    for line in lines_of(path):
        fields = ["" if part == NOTHING else part for part in line.split("\t")]
        if len(fields) != 7 or not fields[0].isdigit():
            raise AnalysisError(f"{path}: no run: {line!r}")
        seed, dataset, variant, settings, environment, data_dir, folder = fields
        folders = Path(data_dir), Path(folder)
        plan.append(PlannedRun(int(seed), dataset, variant, settings, environment, *folders))
    if not plan:
        raise AnalysisError(f"{path} has no run")
    return plan


def gather(plan: Iterable[PlannedRun]) -> dict[str, list[Row]]:
    """Return the rows of each data set, in the order of the plan, with the summaries of finished
    runs.

    Raises:
        AnalysisError: a run is of another data set, variant, settings or seed than planned, or
            two seeds of a row were trained with different settings.
    """
    rows: dict[str, dict[str, Row]] = {}
    for run in plan:
        row = rows.setdefault(run.dataset, {}).setdefault(run.row, Row(run.row))
        row.runs[run.seed] = run
        summary = read_summary(run.folder)
        if summary is None:
            continue
        found = {name: summary.get(name, "") for name in ("dataset", "variant", "settings")}
        found["seed"] = _seed_of(run.folder, run.seed)
        for name, value in found.items():
            if value != getattr(run, name):
                raise AnalysisError(
                    f"{run.folder} has a run of {name} {value!r}, not {getattr(run, name)!r}: "
                    "move it away"
                )
        row.summaries[run.seed] = summary
    for row in (row for found in rows.values() for row in found.values()):
        _check_same_training(row.runs[seed].folder for seed in row.summaries)
        for seed, run in row.runs.items():
            if run.folder.name == f"seed-{seed}":  # in a folder of sweep.sh
                row.ensemble = _ensemble_of(run.folder.parent, row)
    return {dataset: list(found.values()) for dataset, found in rows.items()}


def read_sweep(folder: Path) -> list[Row]:
    """Read the finished runs of ``examples/sweep.sh`` in a folder, sorted by alphas.

    Raises:
        AnalysisError: there are no finished runs, their data sets differ, two folders have the same
            alphas, or two seeds were trained with different settings.
    """
    rows = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _SWEEP_FOLDER.fullmatch(path.name)
        if not match:
            continue
        row = Row(f"entmax OUTPUT_ALPHA={match[1]} ATTENTION_ALPHA={match[2]}")
        for summary in sorted(path.glob("*/summary.json")):
            name = summary.parent.name
            if name.startswith("seed-"):
                row.summaries[int(name.removeprefix("seed-"))] = read_summary_file(summary)
        _check_same_training(path / f"seed-{seed}" for seed in row.summaries)
        row.ensemble = _ensemble_of(path, row)
        if row.summaries:
            rows.append(row)
    if not rows:
        raise AnalysisError(f"{folder} has no finished run (output-A-attention-B/seed-N)")
    if len({row.alphas for row in rows}) < len(rows):
        raise AnalysisError(f"{folder} has two folders with the same alphas, such as 1.5 and 1.50")
    datasets = {summary["dataset"] for row in rows for summary in row.summaries.values()}
    if len(datasets) > 1:
        raise AnalysisError(f"{folder} has runs of different data sets: {', '.join(datasets)}")
    return sorted(rows, key=lambda row: row.alphas)


def compare_with_baseline(
    rows: Sequence[Row], baseline: Row, samples: int
) -> tuple[Optional[str], list[str]]:
    """Compute p-values against the baseline, seed by seed, and store them in the rows' ``p``.

    Only runs with BLEU have them.

    Args:
        rows: the rows of one data set, including ``baseline``.
        samples: draws of the bootstrap.

    Returns:
        sacreBLEU's signature of the test, or None if no test was run; and messages about the seeds
        without a test.
    """
    from fairseq_sparse.analysis.runs.paired_bootstrap import paired_bootstrap, reference_of

    signature, missing = None, []
    for seed, first in baseline.runs.items():
        others = [
            row for row in rows if row is not baseline and "bleu" in row.summaries.get(seed, ())
        ]
        if not others or "bleu" not in baseline.summaries.get(seed, ()):
            continue
        folders = [first.folder, *(row.runs[seed].folder for row in others)]
        try:
            reference = reference_of(first.folder, first.data_dir)
            found, signature = paired_bootstrap(folders, reference, samples)
        except (AnalysisError, OSError) as error:
            missing.append(f"no paired test of seed {seed}: {error}")
            continue
        for row, p in zip(others, found, strict=True):
            row.p[seed] = p
    return signature, missing


def as_json(rows: Sequence[Row], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the table shows, by seed and as means and standard deviations."""
    return [
        {
            "row": row.name,
            "seeds": {
                seed: {
                    "folder": str(run.folder),
                    **{name: _value(row.summaries.get(seed, {}), name) for name in columns},
                    "p": row.p.get(seed),
                }
                for seed, run in row.runs.items()
            },
            "mean": {name: _value(row.mean, name) for name in columns},
            "deviation": {
                name: stdev(row.values(name)) for name in columns if _has_deviation(row, name)
            },
            "ensemble": {
                name: _value(row.ensemble, name) for name in columns if row.ensemble is not None
            },
        }
        for row in rows
    ]


def _has_deviation(row: Row, column: str) -> bool:
    values = [] if COLUMNS[column].path.startswith("attention.") else row.values(column)
    return len(values) > 1 and not isinstance(values[0], str)


def _value(summary: Summary, column: str) -> Any:
    path = COLUMNS[column].path
    if path.startswith("attention."):
        rate = path.removeprefix("attention.")
        places = summary.get("attention", {})
        return {place: part.get(rate) for place, part in places.items()} or None
    return number(summary, column)


def read_summary(folder: Path) -> Optional[dict[str, Any]]:
    """Return the results of a finished run, with those on empty translations if measured."""
    path = folder / "summary.json"
    summary = read_summary_file(path) if path.is_file() else None
    analysis = _read(folder / EMPTY)
    if summary is not None and analysis is not None:
        # As the model scores, without dividing by the sum of p.
        row = next(row for row in analysis["rows"] if row["scores"] == "p")
        paths = ("name", "checkpoints")  # paths on the machine of the measurement
        summary["empty"] = {name: value for name, value in row.items() if name not in paths}
    return summary


def _seed_of(folder: Path, default: int) -> int:
    """Return the seed with which a run was trained, or the default if there is no record of it."""
    seeds = _SEED.findall(_training_settings(folder))
    return int(seeds[-1]) if seeds else default  # of flags that are repeated, the last one counts


def _check_same_training(folders: Iterable[Path]) -> None:
    """Refuse the seeds of a row if their settings differ in more than the seed.

    Raises:
        AnalysisError: naming two of the folders.
    """
    known: dict[str, Path] = {}
    for folder in folders:
        settings = _SEED.sub("", _training_settings(folder))
        if settings:
            known.setdefault(settings, folder)
    if len(known) > 1:
        first, other = list(known.values())[:2]
        raise AnalysisError(
            f"{first} and {other} were trained with different settings (their files "
            "settings/train): move one of them away"
        )


def _training_settings(folder: Path) -> str:
    """Return the settings with which a run was trained; empty if there is no record of them."""
    settings = folder / "settings" / "train"
    return settings.read_text(encoding="utf-8") if settings.is_file() else ""


def _ensemble_of(folder: Path, row: Row) -> Optional[Summary]:
    """Return the summary of the ensemble in a folder of ``sweep.sh``, if it has the row's seeds."""
    found = _read(folder / "ensemble" / "summary.json")
    seeds = {f"seed-{seed}" for seed in row.summaries}
    return found if found is not None and set(found.get("members", seeds)) == seeds else None


def _read(path: Path) -> Optional[dict[str, Any]]:
    return read_json(path) if path.is_file() else None
