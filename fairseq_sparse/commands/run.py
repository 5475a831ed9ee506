"""Prepare data, train, decode and score: all stages from raw text to a table of results.

A finished stage is skipped, an interrupted one resumes, and changed settings are reported. Several
variants or seeds are several runs on the same data. --print shows the commands as a bash script
that can be edited and run without this one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.commands import table_results
from fairseq_sparse.commands.common import command_parser, refuse_alone
from fairseq_sparse.commands.values import (
    not_negative,
    numbers,
    positive,
    setting,
    share,
    whole,
    words,
)
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue, engine, grid, records
from fairseq_sparse.recipes.data import own_data
from fairseq_sparse.recipes.launch import Launch, count_gpus, join_training
from fairseq_sparse.recipes.plan import Plan, Stage
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.recipes.script import as_script
from fairseq_sparse.recipes.stages import plan

STAGES = ("prepare", "train", "average", "generate", "align", "analyze")
_STATES = {
    records.FINISHED: "done",
    records.INTERRUPTED: "would resume",
    records.CHANGED: "changed",
    records.NEW: "to do",
}


def stages(text: str) -> list[str]:
    """Parse names and ranges of stages, for argparse: ``prepare-generate,analyze``."""
    chosen: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        for name in (first, last or first):
            if name not in STAGES:
                there = ", ".join(STAGES)
                raise argparse.ArgumentTypeError(f"{name!r} is no stage; there are {there}")
        found = STAGES[STAGES.index(first) : STAGES.index(last or first) + 1]
        if not found:
            raise argparse.ArgumentTypeError(f"{part!r} is an empty range of stages")
        chosen += found
    return [name for name in STAGES if name in chosen]


def parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = command_parser("run", __doc__)
    parser.usage = (
        "%(prog)s DATASET VARIANT... [options]\n"
        "       %(prog)s --data DIR --source-lang LANG [--target-lang LANG] VARIANT... [options]\n"
        "       %(prog)s --list"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="show data sets, variants, settings")
    add = parser.add_argument_group("text of your own").add_argument
    text = "has train.LANG, test.LANG and perhaps valid.LANG, one sentence a line"
    add("--data", type=Path, metavar="DIR", help=text)
    add("--source-lang", metavar="LANG", help="a language, the ending of the files")
    add("--target-lang", metavar="LANG", help="without it, a language model is trained")
    text = "languages whose text is already split into tokens"
    add("--tokenized", type=words, default=[], metavar="LANG[,LANG]", help=text)
    add("--separate-bpe", action="store_true", help="the languages share no subwords")
    text = "without valid.LANG, validate on every Nth training pair (default: 20)"
    add("--hold-out", type=positive, metavar="N", help=text)
    add = parser.add_argument_group("what is done").add_argument
    text = f"names or ranges (default: {'-'.join(STAGES[::5])}) of {', '.join(STAGES)}"
    add("--stages", type=stages, default=list(STAGES), metavar="LIST", help=text)
    add("--dry-run", action="store_true", help="only say which stages are done")
    add("--print", action="store_true", help="only print the commands, as a bash script")
    text = "default: 1; several seeds are several runs"
    add("--seed", type=numbers, action="append", metavar="N[,N...]", help=text)
    text = "start from the model of a finished run, or a checkpoint, and train it for 5 epochs"
    add("--finetune", type=Path, metavar="RUN", help=text)
    add_model_options(parser)
    add_training_options(parser)
    add = parser.add_argument_group("folders").add_argument
    add("--data-dir", type=Path, metavar="DIR", help="prepared data (default: data/DATASET)")
    text = "results (default: runs/DATASET/VARIANT-cpu...)"
    add("--run-dir", type=Path, metavar="DIR", help=text)
    add = parser.add_argument_group(
        "training on several machines", "start it on each of them; the folders must be shared"
    ).add_argument
    add("--nnodes", type=positive, default=1, metavar="N", help="machines (default: 1)")
    add("--node-rank", type=int, metavar="K", help="number of this machine, from 0")
    add("--master-addr", metavar="HOST", help="name or address of machine 0")
    add("--master-port", type=whole(1, 65535), default=29500, metavar="PORT", help="default: 29500")
    text = "workers on each machine (default: one for each GPU, or one on a CPU)"
    add("--nproc-per-node", type=positive, metavar="N", help=text)
    options = parser.parse_intermixed_args(arguments)
    options.given = sys.argv[1:] if arguments is None else arguments
    check(parser, options)
    return options


def add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    for place in ("", "-enc", "-dec", "-cross"):
        add(f"--attention{place}", default="", metavar="KIND", help="see --list")
    add("--output-alpha", type=float, metavar="X", help="alpha of the output; 1 is softmax")
    add("--attention-alpha", type=float, metavar="X", help="alpha of entmax attention")
    add(
        "--output-tau",
        default="",
        metavar="TAU",
        help="of alpha_relu: weights, data, formula or a number",
    )
    add("--output-algorithm", default="", metavar="NAME", help="how the threshold is found")
    text = (
        "share of the targets that is spread over all tokens (default: that of the settings, or 0)"
    )
    add("--label-smoothing", type=share, metavar="X", help=text)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data, training and decoding")
    add = group.add_argument
    add("--settings", default="", metavar="NAME", help="hyperparameters of a paper")
    add("--raw-dir", type=Path, metavar="DIR", help="raw files that you have (default: $RAW_DIR)")
    text = "runs at a time (default: one for each GPU; on a CPU 1)"
    add("--jobs", type=positive, default=0, metavar="N", help=text)
    device = group.add_mutually_exclusive_group()
    for name, text in (("cpu", "train and decode on a CPU"), ("gpu", "default, if there is one")):
        device.add_argument(f"--{name}", dest="config", action="store_const", const=name, help=text)
    for unit in ("epochs", "updates"):
        text = f"end the training after N {unit} (default: as the data set's settings say)"
        add(f"--{unit}", type=positive, metavar="N", help=text)
    add("--batch", type=positive, metavar="N", help="tokens or sentences of an update")
    add("--device-batch", type=positive, metavar="N", help="what a device holds at once")
    add("--average", type=positive, metavar="N", help="checkpoints that are averaged")
    add("--bpe-merges", type=not_negative, metavar="N", help="0: whole tokens")
    text = "languages to use of a corpus that has many, such as that of inflection"
    add("--languages", type=words, default=[], metavar="LANG,...", help=text)
    text = "flag of fairseq-train, generate.FLAG of fairseq-generate, corpus.FIELD of the data set"
    add("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help=text)


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that do not go together, and split the names."""
    options.dataset = ""
    if options.list:
        return
    if options.data is None:
        if len(options.names) < 2:
            parser.error("name a data set and a variant (--list shows them), or give --data")
        options.dataset, *options.names = options.names
        own = ("source_lang", "target_lang", "tokenized", "separate_bpe", "hold_out")
        for name in own:
            refuse_alone(parser, options, name, "data")
    elif options.raw_dir is not None:
        parser.error("--raw-dir: with --data, that is the folder of the raw files")
    elif not options.source_lang:
        parser.error("--data needs --source-lang, the ending of its files")
    elif options.source_lang == options.target_lang:
        parser.error(
            "--source-lang and --target-lang must differ: they are the endings of two files"
        )
    else:
        options.dataset = options.data.resolve().name
        if options.dataset in catalogue.entries("datasets"):
            parser.error(f"--data: {options.dataset} is a data set of --list; rename the folder")
    if not options.names:
        parser.error("name a variant; --list shows them")
    refuse_alone(parser, options, "separate_bpe", "target_lang")
    options.seed = list(dict.fromkeys(seed for seeds in options.seed or [[1]] for seed in seeds))
    options.names = list(dict.fromkeys(options.names))
    several = len(options.seed) * len(options.names) > 1
    if several and options.run_dir is not None:
        parser.error("--run-dir is for a single run: name one variant and one --seed")
    if options.finetune is not None and options.settings:
        parser.error("--finetune has settings of its own: leave out --settings")
    if options.settings == "finetuning" and "finetune-from-model" not in dict(options.set):
        parser.error("--settings finetuning is for a trained model: give --finetune RUN instead")
    if options.nnodes > 1:
        if several or options.print:
            parser.error("--nnodes: name one variant and one --seed, without --print")
        if options.node_rank is None or not options.master_addr:
            parser.error(f"--nnodes {options.nnodes} needs --node-rank and --master-addr")
    else:
        refuse_alone(parser, options, "master_addr", "nnodes")
    options.node_rank = options.node_rank or 0
    if not 0 <= options.node_rank < options.nnodes:
        parser.error(f"--node-rank {options.node_rank} is not from 0 to {options.nnodes - 1}")


def recipes_of(options: argparse.Namespace) -> list[Recipe]:
    """Return the recipes of a command line: each variant with each seed."""
    entry = None
    if options.data is not None:
        languages = options.source_lang, options.target_lang or ""
        kinds = options.tokenized, options.separate_bpe, options.hold_out
        entry = own_data(options.data, *languages, *kinds)
    more: dict[str, Any] = {}
    if options.finetune is not None:
        model = options.finetune.absolute()
        model = model / "average.pt" if model.is_dir() else model
        if not model.exists():
            raise RecipeError(f"--finetune: there is no {model}")
        base = {"finetune-from-model": str(model)}
        more = {"settings": "finetuning", "overrides": base | dict(options.set)}
    return [
        resolve(options.dataset, variant, options_of(options, seed=seed, **more), entry)
        for variant in options.names
        for seed in options.seed
    ]


def options_of(options: argparse.Namespace, **more: Any) -> Options:
    """Return what a command line, and ``more``, change in an entry of the catalogue."""
    raw = os.environ.get("RAW_DIR")
    names = [field.name for field in fields(Options) if hasattr(options, field.name)]
    given = {name: getattr(options, name) for name in names}
    given |= {
        "config": options.config or ("gpu" if count_gpus() else "cpu"),
        "overrides": dict(options.set),
        "languages": tuple(options.languages),
        "raw_dir": options.raw_dir or (Path(raw) if raw else None),
    }
    return Options(**{**given, **more})


def devices_of(recipe: Recipe, options: argparse.Namespace, at_once: int) -> int:
    """Return how many devices of this machine train a recipe, of ``at_once`` (0: one per GPU)."""
    wanted = options.nproc_per_node
    if recipe.config == "cpu":
        return wanted or 1
    # A finished training needs no devices.
    if options.print or options.dry_run or records.is_finished(plan(recipe).stages[1]):
        return wanted or 1
    there = count_gpus()
    if not there:
        raise RecipeError("--gpu: PyTorch sees no GPU; use --cpu, or check CUDA_VISIBLE_DEVICES")
    share = max(1, there // (at_once or there))
    if wanted and wanted > share:
        raise RecipeError(f"--nproc-per-node {wanted}: PyTorch sees {there} GPU(s), {share} a run")
    return wanted or share


def wanted_stages(options: argparse.Namespace, made: Plan) -> list[str]:
    """Return the names of the chosen stages that a plan has, of which there must be one."""
    there = [stage.name for stage in made.stages]
    names = [name for name in options.stages if name in there]
    if not names:
        raise RecipeError(f"{made.title}: no stage {options.stages[0]}, only {', '.join(there)}")
    places = [there.index(names[0]), there.index(names[-1])]
    left_out = [name for name in there[slice(*places)] if name not in names and name != "align"]
    if left_out:
        raise RecipeError(f"--stages: {names[-1]} needs {left_out[0]}, which is left out")
    for stage in made.stages[: places[0]]:
        if stage.name != "align":
            refuse_changes(stage)
    return names


def refuse_changes(stage: Stage) -> None:
    """Check that a stage before those that are to run has the present settings and inputs, and that
    it has come to its end."""
    state = records.check(stage)
    if state.differences:
        raise RecipeError(
            f"{stage.folder}: the stage {stage.name} was done with other settings or inputs (give "
            f"the options that it was done with, or begin with --stages {stage.name}): "
            f"{'; '.join(state.differences)}"
        )
    if state.kind == records.INTERRUPTED and stage.name != "prepare":
        raise RecipeError(
            f"{stage.folder}: the stage {stage.name} is not finished: begin with --stages "
            f"{stage.name}"
        )


def show_states(made: Plan, names: Sequence[str]) -> None:
    """Print which stages are done, and what has changed for the others."""
    for stage in made.stages:
        if stage.name in names:
            state = records.check(stage)
            print(f"{stage.name:10}{_STATES[state.kind]}")
            for difference in state.differences:
                print(f"{'':10}  {difference}")


def run(options: argparse.Namespace) -> None:
    if options.list:
        print(listing())
        return
    # An outer launcher may have set them; fairseq would use them in every stage.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    recipes, jobs = recipes_of(options), []
    if options.raw_dir and recipes[0].corpus.made_by:
        raise RecipeError(f"--raw-dir: {options.dataset} is made by a script, from no files")
    at_once = options.jobs if len(recipes) > 1 else 1
    for recipe in recipes:
        workers = devices_of(recipe, options, at_once)
        place = options.master_addr, options.master_port
        launch = Launch(options.nnodes, options.node_rank, workers, *place)
        made = plan(recipe, launch)
        names = wanted_stages(options, made)
        if options.print:
            if recipe is not recipes[0]:  # all share the data, which are prepared once
                names = [name for name in names if name != STAGES[0]]
            origin = f"fairseq-sparse run {shlex.join(options.given)}"
            print(as_script(made, names, origin) if names else "", end="")
        elif options.dry_run:
            print(f"{made.title}: {recipe.run_dir}")
            show_states(made, names)
        elif launch.machine:
            if "train" in names:
                join_training(made, launch)
        else:
            print(f"{made.title}: {recipe.run_dir}", file=sys.stderr)
            jobs.append((recipe.run_dir.name, made, names))
    if len(jobs) == 1:
        engine.run(made, names)
        print(f"finished: {recipe.run_dir}", file=sys.stderr)
    elif jobs and (failed := grid.run_all(jobs, at_once, recipes[0].config)):
        raise RecipeError(f"{len(failed)} of {len(jobs)} runs failed; start the same command again")
    if jobs and STAGES[-1] in options.stages:
        folders = [str(recipe.run_dir) for recipe in recipes]
        table_results.run(table_results.parse_arguments(folders))


def listing() -> str:
    """Return the names in the catalogue."""
    lines = ["data sets:"]
    for name, entry in catalogue.entries("datasets").items():
        lines.append(f"  {name:28}{entry.get('title', '')}".rstrip())
    for title, names in (
        ("variants", catalogue.entries("variants")),
        ("attentions", catalogue.section("variants", "attentions")),
        ("settings", catalogue.entries("settings")),
    ):
        lines += ["", f"{title}:", *(f"  {name}" for name in names)]
    return "\n".join(lines)
