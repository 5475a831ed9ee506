"""Decode the test set with several trained models together, and score it.

The models of finished runs on one data set, for example of several seeds, decode together: the
probability of a token is the mean over the models. Device and decoding are those of the first run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from fairseq_sparse.commands import table_results
from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import read_json
from fairseq_sparse.recipes import engine, ensemble, records
from fairseq_sparse.recipes.recipe import Recipe


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the finished runs, and where their data and the device are."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="a finished run")
    text = "prepared data (default: those of the run)"
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=text)
    device = parser.add_mutually_exclusive_group()
    for name in ("cpu", "gpu"):
        device.add_argument(f"--{name}", dest="config", action="store_const", const=name)


def read_recipes(given: argparse.Namespace) -> list[Recipe]:
    """Read the recipes of finished runs."""
    recipes = []
    for folder in given.runs:
        try:
            recipe = Recipe.from_json(read_json(folder / "run.json"))
        except FileNotFoundError as error:
            raise RecipeError(f"{folder} is not a run: it has no run.json") from error
        except (KeyError, TypeError) as error:
            raise RecipeError(f"{folder}/run.json is of another version: {error}") from error
        data_dir = (given.data_dir or recipe.data_dir).absolute()
        config = given.config or recipe.config
        recipes.append(replace(recipe, run_dir=folder.resolve(), data_dir=data_dir, config=config))
    return recipes


def parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = command_parser("ensemble", __doc__)
    add_run_options(parser)
    text = "for translations and results"
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help=text)
    return parser.parse_args(arguments)


def run(given: argparse.Namespace) -> None:
    folder = given.run_dir.absolute()
    made = ensemble.plan(read_recipes(given), folder)
    records.refuse_foreign(made.stages)
    engine.run(made)
    table_results.run(table_results.parse_arguments([str(folder)]))
