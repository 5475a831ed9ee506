#!/usr/bin/env python3
"""Train tiny models side by side, and show what the sparse ones do differently.

Makes a synthetic German-English corpus, trains the models on the CPU, translates, and compares what
they can say with all correct translations, which the corpus knows. About 12 minutes on 2 cores.
Started again, it skips what is done.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # a checkout works without being installed

from command_line import (  # noqa: E402
    exit_status,
    positive,
    report_errors,
    script_parser,
    setting,
    write_text,
)
from fairseq_sparse.errors import RecipeError  # noqa: E402
from fairseq_sparse.recipes import engine, grid  # noqa: E402
from fairseq_sparse.recipes.plan import Command, Plan, Stage  # noqa: E402
from fairseq_sparse.recipes.recipe import Options, Recipe  # noqa: E402
from fairseq_sparse.recipes.resolve import resolve  # noqa: E402
from fairseq_sparse.recipes.stages import plan  # noqa: E402

MODELS = ("softmax", "entmax15", "alpha_relu", "softmax+rela_g")
SENTENCE = 3  # of the test set, whose cross-attention is drawn
COLUMNS = "variant,bleu,nonzeros,prob_sum,gold_zero,words_per_second,sentences_per_second"
NOTE = "Synthetic corpus, made from templates: the figures say nothing about translating real text."
# What is printed after the tables.
AFTER = """
BLEU and the columns after it are measured on the part test, not on test_unseen_pairs. Speeds are of
training (words in a second) and decoding, side by side on one core, with the ratio to {first}.
"nonzeros" is the number of units with a probability above 0 at a step; softmax has no zeros.

The tables again   {runs}/comparison/results.md
Translations       {runs}/MODEL/hyp.detok.txt
Models             {runs}/MODEL/average.pt
Word alignments    {runs}/MODEL/alignments, their error rates in alignment.json
Cross-attention    {pictures}
The corpus         {data}/raw, described in examples/quickstart/README.md

To try next:

All of it in one page, with every attention weight
  {python} -m fairseq_sparse report {folders} \\
      --cpu --output report.html
All translations of nonzero probability
  {python} -m fairseq_sparse draw tree {binary} \\
      --path {model} --sentence 577
Other models, same corpus
  bash examples/quickstart/run.sh sparsemax alpha_relu+rela_g
Real text, one command; what else there is
  bash examples/run.sh multi30k_de_en alpha_relu --cpu
  bash examples/run.sh --list"""


def parse_arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.prog = "bash examples/quickstart/run.sh"
    parser.add_argument(
        "models",
        nargs="*",
        default=MODELS,
        metavar="MODEL",
        help=f"an output, or OUTPUT+ATTENTION (default: {' '.join(MODELS)})",
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data/quickstart"), metavar="DIR")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/quickstart"), metavar="DIR")
    parser.add_argument(
        "--jobs",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="models to train at once, one core each (default: the number of cores)",
    )
    parser.add_argument("--epochs", type=positive, metavar="N")
    parser.add_argument("--average", type=positive, metavar="N", help="checkpoints of a model")
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as in fairseq-sparse run",
    )
    return parser.parse_args()


def recipe_of(model: str, options: argparse.Namespace) -> Recipe:
    """Return the recipe of a model, whose folder has its name."""
    return resolve(
        "quickstart",
        model,
        Options(
            epochs=options.epochs,
            average=options.average,
            overrides=dict(options.set),
            data_dir=options.data_dir,
            run_dir=options.runs_dir / model,
        ),
    )


def pictures(recipes: dict[str, Recipe]) -> dict[Path, Path]:
    """Return the folders of ReLA's models, with the pictures of their cross-attention."""
    runs = [each.run_dir for each in recipes.values() if each.model.attention.startswith("rela")]
    return {run: run / "cross_attention.png" for run in runs}


def comparison(recipes: dict[str, Recipe], folder: Path, settings: list[str]) -> Stage:
    """Return the stage that measures speeds side by side, and compares translations and supports
    with the truth. ``settings`` are those of the training."""
    first = next(iter(recipes.values()))
    runs = [recipe.run_dir for recipe in recipes.values()]
    averages = [run / "average.pt" for run in runs]
    binary = first.binary
    training, decoding = folder / "training_speeds.json", folder / "speeds.json"
    benchmarks, quickstart = ROOT / "scripts" / "benchmark", ROOT / "examples" / "quickstart"
    trained = [f"{name}={path}" for name, path in zip(recipes, averages, strict=True)]
    step = ("python", benchmarks / "training_step.py", binary, "--recipe", "quickstart")
    step += (*settings, "--fused-only", "--variants", ",".join(recipes))
    step += ("--trained", *trained, "--batches", "6", "--rounds", "3", "--json", training)
    decode = ("python", benchmarks / "decoding.py", binary, "--path", *trained, "--beams", "5")
    decode += ("--batches", "32", "--sentences", "150", "--rounds", "3", "--json", decoding)
    table = ("fairseq-sparse", "table", "results", *runs, "--speeds", training, decoding)
    check = ("python", quickstart / "check_support.py", *runs, "--data", first.data_dir)
    commands = [
        Command(step, outputs=(training,)),
        Command(decode, outputs=(decoding,)),
        Command((*table, "--columns", COLUMNS), stdout=folder / "table.md"),
        Command((*check, "--sentences", "250", "--cpu"), stdout=folder / "support.md"),
    ]
    for run, picture in pictures(recipes).items():
        draw = ("fairseq-sparse", "draw", "attention", binary, "--cpu", "--path")
        draw += (run / "average.pt", "--place", "cross", "--sentence", str(SENTENCE))
        commands.append(Command((*draw, "--output", picture), outputs=(picture,)))
    return Stage(
        name="compare",
        folder=folder,
        settings={"models": list(recipes)},
        inputs=(*averages, *(run / "summary.json" for run in runs)),
        outputs=tuple(path for command in commands for path in command.made),
        commands=tuple(commands),
    )


def quickstart(options: argparse.Namespace) -> None:
    """Train and compare the models, and print the tables.

    Raises:
        RecipeError: a stage failed.
    """
    started = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"  # the models are too small to keep two cores busy
    recipes = {model: recipe_of(model, options) for model in options.models}
    plans = {model: plan(recipe) for model, recipe in recipes.items()}
    if grid.run_all([(model, made, ()) for model, made in plans.items()], options.jobs, "cpu"):
        raise RecipeError("a model failed (see above); the same command resumes it")
    folder = options.runs_dir.absolute() / "comparison"
    settings = [f"--set={key}={value}" for key, value in options.set]
    stage = comparison(recipes, folder, settings)
    engine.run(Plan("quickstart", (stage,), environment=plans[options.models[0]].environment))
    tables = [NOTE, *((folder / name).read_text("utf-8") for name in ("table.md", "support.md"))]
    results = "\n\n".join(part.strip() for part in tables) + "\n"
    write_text(folder / "results.md", results)
    print(results, end="")
    print(text_after(recipes, options))
    minutes = math.ceil((time.monotonic() - started) / 60)
    print(f"finished in {minutes} minute{'s' * (minutes > 1)}", file=sys.stderr)


def text_after(recipes: dict[str, Recipe], options: argparse.Namespace) -> str:
    """Return where the results are, and what to try next, with commands that can be pasted."""
    folders = [options.runs_dir / model for model in recipes]
    drawn = [options.runs_dir / run.name / path.name for run, path in pictures(recipes).items()]
    sparse = "entmax15" if "entmax15" in recipes else list(recipes)[-1]
    return AFTER.format(
        first=next(iter(recipes)),
        runs=options.runs_dir,
        data=options.data_dir,
        pictures=" ".join(map(str, drawn)) or "(of ReLA models: none was trained)",
        python=shlex.quote(sys.executable),
        folders=shlex.join(map(str, folders)),
        binary=shlex.quote(str(options.data_dir / "prepared" / "bin")),
        model=shlex.quote(str(options.runs_dir / sparse / "average.pt")),
    )


if __name__ == "__main__":
    options = parse_arguments()
    sys.exit(exit_status(lambda: report_errors("quickstart", quickstart, options)))
