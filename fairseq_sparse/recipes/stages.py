"""From a recipe to its stages: every command of a run, and what decides whether it is done."""

from __future__ import annotations

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.measure.machine import KEEP_MEMORY
from fairseq_sparse.recipes.evaluation import align, analyze, generate
from fairseq_sparse.recipes.launch import ALONE, Launch
from fairseq_sparse.recipes.plan import USER_DIR, Plan
from fairseq_sparse.recipes.preparation import EXAMPLES, prepare
from fairseq_sparse.recipes.recipe import Recipe
from fairseq_sparse.recipes.training import average, train


def plan(recipe: Recipe, launch: Launch = ALONE) -> Plan:
    """Return all stages of a run; the result does not depend on the number of devices."""
    for folder in (recipe.data_dir, recipe.run_dir):
        if {":", ","} & set(str(folder)):
            raise RecipeError(f"{folder}: fairseq takes ':' and ',' for the end of a path")
    stages = [prepare(recipe), train(recipe, launch), average(recipe), generate(recipe)]
    if recipe.corpus.kind == "parallel":
        stages.append(align(recipe))
    stages.append(analyze(recipe))
    variables = {"RAW": recipe.raw} if recipe.own_raw else {}
    variables |= {"DATA": recipe.data_dir, "RUN": recipe.run_dir, "USER_DIR": USER_DIR}
    if recipe.corpus.made_by:
        variables["EXAMPLES"] = EXAMPLES
    return Plan(
        title=f"{recipe.dataset}, {recipe.label or recipe.variant}"
        + (f", settings of {recipe.settings}" if recipe.settings else "")
        + f", on a {recipe.config.upper()}",
        stages=tuple(stages),
        variables=variables,
        environment=environment(recipe),
    )


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the variables of all commands of a run."""
    return KEEP_MEMORY if recipe.config == "cpu" else {}
