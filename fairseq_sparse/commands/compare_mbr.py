"""Compare minimum Bayes risk decoding of finished runs with beam search.

With each run, translations of the test set are sampled in three ways: from the model's own
distribution, by epsilon-sampling (tokens with a probability of at least .02) and from the nucleus
(.9). fairseq-sparse mbr chooses among the samples. All results, and beam search with every run, are
compared with beam search of the first run (fairseq-sparse compare): FOLDER/table.txt. When
started again, it does what is not done yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from fairseq_sparse.commands.common import add_output_folder, command_parser
from fairseq_sparse.commands.ensemble import add_run_options, read_recipes
from fairseq_sparse.commands.mbr import UTILITIES
from fairseq_sparse.commands.values import not_negative, positive
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import read_json
from fairseq_sparse.measure.text.paired_test import tokens_of
from fairseq_sparse.recipes import engine, records, stages
from fairseq_sparse.recipes.ensemble import check_together
from fairseq_sparse.recipes.evaluation import generate
from fairseq_sparse.recipes.plan import Command, Plan, Stage
from fairseq_sparse.recipes.preparation import all_references
from fairseq_sparse.recipes.recipe import Flags, Recipe

# The ways of sampling, with their flags.
METHODS: dict[str, Flags] = {
    "sampled": {},
    "epsilon": {"sampling-epsilon": 0.02},
    "nucleus": {"sampling-topp": 0.9},
}


def parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = command_parser("compare-mbr", __doc__)
    add_run_options(parser)
    add = parser.add_argument
    add_output_folder(parser)
    add("--samples", type=positive, default=32, metavar="N", help="per sentence (default: 32)")
    add("--utility", choices=UTILITIES, default="chrf", help="(default: %(default)s)")
    add(
        "--seed",
        type=not_negative,
        default=1,
        metavar="N",
        help="of the random samples (default: 1)",
    )
    return parser.parse_args(arguments)


def plan(recipes: Sequence[Recipe], out: Path, samples: int, utility: str, seed: int) -> Plan:
    """Return the plan of sampling from finished runs on one data set, choosing among the samples of
    a sentence, and comparing all with beam search of the first run: ``table.txt``."""
    check_together(recipes)
    first = recipes[0]
    names = [recipe.run_dir.name for recipe in recipes]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"two runs have the name {name}: rename one")
    if first.decoding.score != "bleu":
        raise RecipeError(f"{first.dataset} is not scored with BLEU")
    signature = read_json(first.run_dir / "bleu.json")["signature"]
    tokens = ("--tokenize", tokens_of(signature))
    every: list[Stage] = []
    systems: list[Path] = []

    def add(name: str, inputs: tuple[Path, ...], command: Command, output: Path) -> None:
        words = [word for word in command.argv if isinstance(word, str)]
        every.append(Stage(name, out, {"words": words}, inputs, (output,), (command,)))

    for name, recipe in zip(names, recipes, strict=True):
        beam, found = out / "beam" / name, recipe.run_dir / "hyp.detok.txt"
        add(f"beam-{name}", (found,), Command(("cp", found, beam), outputs=(beam,)), beam)
        systems.append(beam)
        for method in METHODS:
            sampled = _sample(recipe, out / "samples" / f"{name}-{method}", method, samples, seed)
            every.append(sampled)
            chosen = out / f"mbr-{utility}" / f"{name}-{method}"
            argv = ("fairseq-sparse", "mbr", sampled.outputs[0], "--utility", utility)
            argv += tokens if utility == "bleu" else ()
            command = Command((*argv, "--output", chosen), outputs=(chosen,))
            add(f"{utility}-{name}-{method}", sampled.outputs, command, chosen)
            systems.append(chosen)
    table = out / "table.txt"
    text = first.prepared / "text" / f"test.{first.corpus.target}"
    references = all_references(first.corpus, text)
    named = (f"{system.relative_to(out)}={system}" for system in systems)
    argv = ("fairseq-sparse", "compare", *named, "--reference", *references, *tokens)
    add("compare", (*references, *systems), Command(argv, stdout=table), table)
    title = f"{first.dataset}, minimum Bayes risk"
    return Plan(title, tuple(every), environment=stages.environment(first))


def _sample(recipe: Recipe, folder: Path, method: str, samples: int, seed: int) -> Stage:
    flags = {**recipe.decoding.flags, "sampling": True, **METHODS[method], "seed": seed}
    flags |= {"beam": samples, "nbest": samples, "batch-size": max(1, 512 // samples)}
    own = replace(recipe, run_dir=folder, decoding=replace(recipe.decoding, flags=flags))
    stage = generate(own, [recipe.run_dir / "average.pt"])
    decode = stage.commands[0]
    return replace(stage, commands=(decode,), outputs=stage.outputs[:1], before=None)


def run(given: argparse.Namespace) -> None:
    out = given.output_folder.absolute()
    made = plan(read_recipes(given), out, given.samples, given.utility, given.seed)
    records.refuse_foreign(made.stages)
    engine.run(made)
    print((out / "table.txt").read_text(encoding="utf-8"), end="")
