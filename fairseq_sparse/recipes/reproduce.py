"""The runs behind a table: planned from its rows, trained, and read when they are finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import ensemble, grid, records
from fairseq_sparse.recipes.launch import Launch, count_gpus
from fairseq_sparse.recipes.plan import Command, Plan, Stage
from fairseq_sparse.recipes.preparation import all_references
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve, run_name
from fairseq_sparse.recipes.stages import plan
from fairseq_sparse.recipes.tables import Table

if TYPE_CHECKING:
    from fairseq_sparse.tables.rows import Row


@dataclass(frozen=True)
class Runs:
    """The runs behind a table, with recipes by data set, row and seed."""

    table: Table
    recipes: dict[str, list[list[Recipe]]]

    def __iter__(self) -> Iterator[Recipe]:
        """Yield all rows of a seed before the next seed, so that a stopped grid gives a table."""
        rows = [row for rows in self.recipes.values() for row in rows]
        for same_seed in zip(*rows, strict=True):
            yield from same_seed


def choose(table: Table, datasets: Sequence[str], settings: str) -> tuple[tuple[str, ...], str]:
    """Return the data sets and the settings of a table, or those that a user has chosen instead.

    The table's settings are for its own data sets alone.
    """
    if not table.rows and datasets:
        raise RecipeError("--dataset: this table needs no data")
    for dataset in datasets:
        if datasets.count(dataset) > 1:
            raise RecipeError(f"--dataset is given more than once with {dataset!r}")
    own = {dataset in table.datasets for dataset in datasets or table.datasets}
    if table.settings and not settings and len(own) > 1:
        raise RecipeError(
            f"--dataset: some of these are the table's own and have its settings ({table.settings})"
            ", others have none: run them separately, or give --settings"
        )
    return tuple(datasets) or table.datasets, settings or (table.settings if True in own else "")


def plan_runs(table: Table, seeds: Sequence[int], options: Options, data: Path, runs: Path) -> Runs:
    """Return the runs behind a table, of each row with each seed, in ``runs / DATASET``.

    Options that a user has chosen extend those of a row. Prepared data are in ``data / DATASET``.
    """

    def recipe(dataset: str, variant: str, given: dict[str, Any], seed: int) -> Recipe:
        overrides = {**given.get("overrides", {}), **options.overrides}
        own = replace(options, **{**given, "seed": seed, "overrides": overrides})
        folder = runs / dataset / run_name(variant, own)
        return resolve(dataset, variant, replace(own, data_dir=data / dataset, run_dir=folder))

    return Runs(
        table,
        {
            dataset: [
                [recipe(dataset, variant, given, seed) for seed in seeds]
                for variant, given in table.rows
            ]
            for dataset in table.datasets
        },
    )


def train(runs: Runs, at_once: int) -> list[str]:
    """Train and score the runs, and decode with the ensembles; return the names of failed ones."""
    config = next(iter(runs)).config
    gpus = count_gpus() if config == "gpu" else 0
    devices = max(1, gpus // (at_once or gpus or 1))
    jobs = [(_name(each), _plan(runs.table, each, devices), ()) for each in runs]
    failed = grid.run_all(jobs, at_once, config)
    if runs.table.ensembles:
        jobs = []
        for recipes in (row for rows in runs.recipes.values() for row in rows):
            if len(recipes) > 1 and all(is_finished(each) for each in recipes):
                together = ensemble.plan(recipes, ensemble_folder(recipes))
                jobs.append((f"{_name(recipes[0])}: ensemble", together, ()))
        failed += grid.run_all(jobs, at_once, config)
    return failed


def describe(runs: Runs) -> str:
    """Return a line for each run, and for each command on the finished models."""
    lines = []
    for recipe in runs:
        begun = "begun" if recipe.run_dir.is_dir() else "to do"
        state = "done" if is_finished(recipe) else begun
        model = recipe.label or recipe.variant
        lines.append(
            f"{state:<6} seed {recipe.seed}  {recipe.dataset}  {model}  {recipe.run_dir}\n"
        )
    return "".join([*lines, *(f"then   {line}\n" for line in runs.table.follow_up)])


def finished(runs: Runs) -> dict[str, list[Recipe]]:
    """Return the finished runs that the table's commands get, by data set.

    Of a table of formulas, there are none of an empty data set.
    """
    if not runs.recipes:
        return {"": []}
    found: dict[str, list[Recipe]] = {dataset: [] for dataset in runs.recipes}
    for recipe in runs:
        if is_finished(recipe) and (runs.table.all_seeds or recipe.seed == 1):
            found[recipe.dataset].append(recipe)
    return found


def is_finished(recipe: Recipe) -> bool:
    return (recipe.run_dir / "summary.json").is_file()


def ensemble_folder(recipes: Sequence[Recipe]) -> Path:
    """Return the folder where the seeds of a row decode together."""
    first = recipes[0].run_dir
    return first.with_name(f"{first.name}-ensemble")


def _name(recipe: Recipe) -> str:
    settings = f", settings of {recipe.settings}" if recipe.settings else ""
    return f"{recipe.dataset}, {recipe.label or recipe.variant}{settings}, seed {recipe.seed}"


def _plan(table: Table, recipe: Recipe, devices: int) -> Plan:
    """Return the plan of a run, with the analysis that the table needs."""
    found = plan(recipe, Launch(workers=devices))
    if not table.empty:
        return found
    model, output = recipe.run_dir / "average.pt", recipe.run_dir / "empty.json"
    argv = ("fairseq-sparse", "analyze", "empty", recipe.binary, "--subset", "valid")
    argv += ("--path", model, "--json", output, *(["--cpu"] if recipe.config == "cpu" else []))
    command = Command(argv, outputs=(output,))
    empty = Stage("empty", recipe.run_dir, {"subset": "valid"}, (model,), (output,), (command,))
    return replace(found, stages=(*found.stages, empty))


def read_rows(runs: Runs) -> dict[str, list[Row]]:
    """Read the finished runs of each data set; refuse those that are not as planned."""
    from fairseq_sparse.tables.rows import read_row

    return {
        dataset: [read_row(row, finished_ensemble(row)) for row in rows]
        for dataset, rows in runs.recipes.items()
    }


def finished_ensemble(recipes: Sequence[Recipe]) -> Path | None:
    """Return the folder where the finished seeds of a row have decoded together; None if they have
    not, or if the models have changed since."""
    folder, members = ensemble_folder(recipes), [each for each in recipes if is_finished(each)]
    if len(members) < 2 or not folder.is_dir():
        return None
    try:
        stages = ensemble.plan(members, folder).stages
    except RecipeError:  # a model is no longer there
        return None
    return folder if all(map(records.is_finished, stages)) else None


def references(runs: Runs) -> dict[str, list[Path]]:
    """Return the texts that the test set of each data set is scored with."""
    found = {}
    for dataset, rows in runs.recipes.items():
        first = rows[0][0]
        text = first.prepared / "text" / f"test.{first.corpus.target}"
        found[dataset] = all_references(first.corpus, text)
    return found
