"""Decoding with several trained models together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import write_json
from fairseq_sparse.measure.machine import describe_environment
from fairseq_sparse.recipes import stages
from fairseq_sparse.recipes.evaluation import generate, names_of
from fairseq_sparse.recipes.plan import Plan
from fairseq_sparse.recipes.recipe import Recipe
from fairseq_sparse.tables.results import read_generation, read_score


def plan(recipes: Sequence[Recipe], folder: Path) -> Plan:
    """Return the plan of decoding and scoring a test set with an ensemble.

    The probability of a token is the mean over the models, which are those of finished runs on one
    data set; device and decoding are those of the first.
    """
    check_together(recipes)
    if len(recipes) < 2:
        raise RecipeError("an ensemble needs at least two runs")
    members = [recipe.run_dir.resolve() for recipe in recipes]
    for member in members:
        if members.count(member) > 1:
            raise RecipeError(f"the same run was given twice: {member}")
    if folder.resolve() in members or (folder / "run.json").exists():
        raise RecipeError(f"--run-dir must not be the folder of a run: {folder}")
    if recipes[0].corpus.kind == "text":
        raise RecipeError("language models cannot decode together")
    labels = " + ".join(dict.fromkeys(recipe.label or recipe.variant for recipe in recipes))
    recipe = replace(recipes[0], label=f"ensemble of {len(recipes)}: {labels}", run_dir=folder)

    def after() -> None:
        names = names_of(recipe)
        del names["seed"], names["model"]  # of the first member
        summary = {
            **names,
            "seeds": sorted(each.seed for each in recipes),
            "members": [member.name for member in members],
            **read_score(folder),
            **read_generation(folder),
            **describe_environment(),
        }
        write_json(folder / "summary.json", summary)

    stage = generate(recipe, [member / "average.pt" for member in members])
    outputs = (*stage.outputs, folder / "summary.json")
    return Plan(
        title=f"{recipe.dataset}, {recipe.label}",
        stages=(replace(stage, outputs=outputs, before=None, after=after),),
        environment=stages.environment(recipe),
    )


def check_together(recipes: Sequence[Recipe]) -> None:
    """Check that runs are finished, and were made from the same data with the same settings."""
    for recipe in recipes:
        for name in ("average.pt", "summary.json"):
            if not (recipe.run_dir / name).is_file():
                raise RecipeError(f"{recipe.run_dir} is not a finished run: it has no {name}")
        for name in ("dataset", "settings", "corpus", "data_dir"):
            first, other = (getattr(each, name) for each in (recipes[0], recipe))
            if first != other:
                raise RecipeError(f"{recipes[0].run_dir} and {recipe.run_dir} differ in {name}")
