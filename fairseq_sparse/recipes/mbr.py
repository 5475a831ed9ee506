"""Minimum Bayes risk decoding of finished runs, compared with beam search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import read_json
from fairseq_sparse.recipes import stages
from fairseq_sparse.recipes.ensemble import check_together
from fairseq_sparse.recipes.plan import Argument, Command, Plan, Stage
from fairseq_sparse.recipes.preparation import all_references
from fairseq_sparse.recipes.recipe import Flags, Recipe

# The ways of sampling, with their flags.
METHODS: dict[str, Flags] = {
    "sampled": {},
    "epsilon": {"sampling-epsilon": 0.02},
    "nucleus": {"sampling-topp": 0.9},
}
# sacreBLEU calls the systems by the paths that it is given, which are relative to the folder $0.
_COMPARE = 'cd "$0" && exec sacrebleu "$@"'


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
    found = re.search(r"\|tok:([^|]+)", read_json(first.run_dir / "bleu.json")["signature"])
    tokens = ("--tokenize", found[1] if found else "13a")
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
            argv = ("fairseq-sparse", "mbr", sampled.outputs[0], "--utility", utility, *tokens)
            command = Command((*argv, "--output", chosen), outputs=(chosen,))
            add(f"{utility}-{name}-{method}", sampled.outputs, command, chosen)
            systems.append(chosen)
    table = out / "table.txt"
    text = first.prepared / "text" / f"test.{first.corpus.target}"
    references = all_references(first.corpus, text)
    places = (str(system.relative_to(out)) for system in systems)
    argv: tuple[Argument, ...] = ("sh", "-c", _COMPARE, out, *references, "-i", *places)
    argv += ("-m", "bleu", "chrf", *tokens, "--paired-bs", "--format", "text")
    add("compare", (*references, *systems), Command(argv, stdout=table), table)
    title = f"{first.dataset}, minimum Bayes risk"
    return Plan(title, tuple(every), environment=stages.environment(first))


def _sample(recipe: Recipe, folder: Path, method: str, samples: int, seed: int) -> Stage:
    flags = {**recipe.decoding.flags, "sampling": True, **METHODS[method], "seed": seed}
    flags |= {"beam": samples, "nbest": samples, "batch-size": max(1, 512 // samples)}
    own = replace(recipe, run_dir=folder, decoding=replace(recipe.decoding, flags=flags))
    stage = stages.generate(own, [recipe.run_dir / "average.pt"])
    decode = stage.commands[0]
    return replace(stage, commands=(decode,), outputs=stage.outputs[:1], before=None)
