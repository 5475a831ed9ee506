"""The rows of a table, from the runs behind it: means over seeds and a paired test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json
from fairseq_sparse.tables.columns import (
    COLUMNS,
    Summary,
    cell,
    look_up,
    number,
    values_of,
)
from fairseq_sparse.tables.models import alphas_of, identity
from fairseq_sparse.tables.summaries import read_summary

if TYPE_CHECKING:
    from fairseq_sparse.recipes.recipe import Recipe

# Fields of run.json that say how a model was trained and decoded.
_PLANNED = ("task", "corpus", "training", "decoding")
# Flags of the model that are no part of its identity, because a paper's tables do not name them.
_OF_TRAINING = ("label-smoothing", "label-smoothing-prior", "output-init")


@dataclass
class Row:
    """The runs of one row of a table on one data set.

    Attributes:
        title: what the table calls the model.
        model: the fields of ``recipe.Model``.
        settings: the paper's hyperparameters that it is trained with, or empty.
        runs: the folder of each planned seed.
        summaries: the summary of each finished seed.
        ensemble: the summary of the ensemble of these seeds, if they have decoded together.
        raw_p, p: for each seed, the p-value of the paired test against the baseline with this
            seed, as it is and corrected for the number of tests of the table.
    """

    title: str
    model: dict[str, Any] = field(default_factory=dict)
    settings: str = ""
    runs: dict[int, Path] = field(default_factory=dict)
    summaries: dict[int, Summary] = field(default_factory=dict)
    ensemble: Optional[Summary] = None
    raw_p: dict[int, float] = field(default_factory=dict)
    p: dict[int, float] = field(default_factory=dict)

    @property
    def mean(self) -> Summary:
        """The summary that has the mean of each number over the finished seeds."""
        return mean_of(list(self.summaries.values())) if self.summaries else {}

    @property
    def alphas(self) -> tuple[float, float]:
        """The alphas of output and attention.

        Raises:
            AnalysisError: the model is not alpha-entmax.
        """
        alphas = alphas_of(self.model)
        if alphas is None:
            raise AnalysisError(f"{self.title} has no alphas")
        return alphas

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
            text += f" ± {stdev(values):{COLUMNS[column].format}}"
        count = len(values)
        if rate := COLUMNS[column].rate:
            places = (summary.get("attention", {}) for summary in self.summaries.values())
            count = sum(any(rate in part for part in found.values()) for found in places)
        if 0 < count < len(self.summaries):
            text += f" (n = {count})"
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


def read_row(recipes: Sequence[Recipe], ensemble: Optional[Path] = None) -> Row:
    """Read the finished runs of one row on one data set.

    Args:
        recipes: of the planned seeds.
        ensemble: the folder where all of these seeds have decoded together, if they have.

    Raises:
        AnalysisError: a run is of another data set, model, settings or seed than planned, or was
            trained or decoded otherwise.
    """
    first = recipes[0]
    row = Row(first.label or first.variant, asdict(first.model), first.settings)
    for recipe in recipes:
        row.runs[recipe.seed] = recipe.run_dir
        summary = read_summary(recipe.run_dir)
        if summary is None:
            continue
        found = read_json(recipe.run_dir / "run.json")
        for name in ("dataset", "settings", "seed"):
            if found[name] != getattr(recipe, name):
                raise AnalysisError(
                    f"{recipe.run_dir} has a run of {name} {found[name]!r}, not "
                    f"{getattr(recipe, name)!r}: move it away"
                )
        if identity(found["model"]) != identity(row.model):
            raise AnalysisError(f"{recipe.run_dir} has a run of another model: move it away")
        planned = json.loads(json.dumps(recipe.as_json()))
        for flag in _OF_TRAINING:
            was, wanted = (run["model"]["flags"].get(flag) for run in (found, planned))
            if str(was) != str(wanted):
                raise AnalysisError(
                    f"{recipe.run_dir} has a run with --{flag} {was}, not {wanted}: move it away"
                )
        for name in _PLANNED:
            if found[name] != planned[name]:
                raise AnalysisError(
                    f"{recipe.run_dir} has a run of another {name} than planned (see its run.json, "
                    "and run --dry-run): move it away"
                )
        row.summaries[recipe.seed] = summary
    together = read_summary(ensemble) if ensemble else None
    if together and together.get("seeds") == sorted(row.summaries):
        row.ensemble = together
    return row


def compare_with_baseline(
    rows: Sequence[Row], references: Sequence[Path], trials: int
) -> tuple[Optional[str], list[str]]:
    """Compute p-values against the first row, seed by seed, and store them in the rows.

    Only runs with BLEU have them.

    Args:
        references: the texts of the test set that the translations were scored with.

    Returns:
        sacreBLEU's signature of the test, or None if no test was run; and messages about the seeds
        without a test.
    """
    from fairseq_sparse.measure.text.paired_test import paired_test

    signature, missing = None, []
    for seed in rows[0].runs:
        scored = [row for row in rows if "bleu" in row.summaries.get(seed, ())]
        if len(scored) < 2 or scored[0] is not rows[0]:
            continue
        try:
            folders = [row.runs[seed] for row in scored]
            found, signature = paired_test(folders, references, trials)
        except (AnalysisError, OSError) as error:
            missing.append(f"no paired test of seed {seed}: {error}")
            continue
        for row, p in zip(scored[1:], found, strict=True):
            row.raw_p[seed] = p
    tests = [(row, seed, p) for row in rows for seed, p in row.raw_p.items()]
    for (row, seed, _), p in zip(tests, holm([p for *_, p in tests]), strict=True):
        row.p[seed] = p
    return signature, missing


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method (1979): the chance of any false
    finding among those below a level is at most that level."""
    corrected, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected


def as_json(rows: Sequence[Row], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the table shows, by seed and as means and standard deviations."""
    return [
        {
            "row": row.title,
            "model": row.model,
            "seeds": {
                seed: {
                    "folder": str(folder),
                    **values_of(row.summaries.get(seed, {}), columns),
                    "p": row.raw_p.get(seed),
                    "p_holm": row.p.get(seed),
                }
                for seed, folder in row.runs.items()
            },
            "mean": values_of(row.mean, columns),
            "deviation": {
                name: stdev(values)
                for name in columns
                if len(values := row.values(name)) > 1 and not isinstance(values[0], str)
            },
            "ensemble": values_of(row.ensemble, columns) if row.ensemble else {},
        }
        for row in rows
    ]
