"""From a recipe to its stages: every command of a run, and what decides whether it is done."""

from __future__ import annotations

import math

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import write_json
from fairseq_sparse.measure.training_log import read_log
from fairseq_sparse.recipes.evaluation import align, analyze, generate
from fairseq_sparse.recipes.launch import ALONE, Launch
from fairseq_sparse.recipes.parts import USER_DIR, as_arguments, as_settings, begin
from fairseq_sparse.recipes.plan import Argument, Command, Plan, Stage
from fairseq_sparse.recipes.preparation import EXAMPLES, binary_files, prepare
from fairseq_sparse.recipes.recipe import Flags, Recipe
from fairseq_sparse.recipes.summaries import describe_environment
from fairseq_sparse.tables.summaries import summarize_training

# glibc returns every freed tensor to the system and requests the memory again, which costs a fifth
# of the time on a CPU; with these it keeps the memory.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
# Beside the command of several workers in a printed script.
_ELSEWHERE = """\
On several machines: the same on each, with --nnodes N --node-rank K --master-addr HOST instead
of --standalone --local-addr localhost, and all workers counted in --distributed-world-size and
--update-freq. In a job of Slurm with one task on each machine:
  export HOST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
  srun bash -c 'torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr $HOST ...'
"""


def plan(recipe: Recipe, launch: Launch = ALONE) -> Plan:
    """Return all stages of a run; the result does not depend on the number of devices."""
    for folder in (recipe.data_dir, recipe.run_dir):
        if {":", ","} & set(str(folder)):
            raise RecipeError(f"{folder}: fairseq takes ':' and ',' for the end of a path")
    stages = [prepare(recipe), _train(recipe, launch), _average(recipe), generate(recipe)]
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
    return _KEEP_MEMORY if recipe.config == "cpu" else {}


def train_flags(recipe: Recipe) -> Flags:
    """Return the flags of fairseq-train without those of the batch and the devices."""
    training = recipe.training
    keep: Flags = {"no-epoch-checkpoints": True}
    if training.checkpoints == "last":
        keep = {"keep-last-epochs": training.average}
    elif training.checkpoints == "updates":
        # If an epoch ends with such an update, fairseq writes no checkpoint for it; an older one
        # then takes its place.
        keep["keep-interval-updates"] = training.average
    flags = {**recipe.task, **keep, **training.flags, **recipe.model.flags, "seed": recipe.seed}
    epochs = str(flags.get("max-epoch", ""))
    # 0 is no limit; anything else that is no number is left to fairseq.
    if training.checkpoints == "last" and epochs.isdigit() and 0 < int(epochs) < training.average:
        raise RecipeError(
            f"--epochs {epochs}: the checkpoints of the last {training.average} epochs are "
            "averaged; train for as many, or set --average"
        )
    return flags


def _batch(recipe: Recipe, devices: int) -> list[str]:
    """Return the flags that fill each device, and accumulate to the same batch for any number."""
    training = recipe.training
    batch, device_batch = training.batch, training.device_batch
    frequency = math.ceil(batch / (devices * device_batch))
    share = batch // (devices * frequency)
    if not share:
        raise RecipeError(f"a batch of {batch} {training.unit} is too small for {devices} devices")
    flag = "--batch-size" if training.unit == "sentences" else "--max-tokens"
    return [flag, str(share), "--update-freq", str(frequency)]


def _train(recipe: Recipe, launch: Launch) -> Stage:
    run, flags = recipe.run_dir, train_flags(recipe)
    checkpoints = run / "checkpoints"
    argv: list[Argument] = [*launch.command(), recipe.binary, "--user-dir", USER_DIR]
    argv += ["--save-dir", checkpoints, *as_arguments(flags), *_batch(recipe, launch.devices)]
    argv += ["--log-format", "json", *recipe.device]
    argv += launch.flags()
    if launch.devices > 1 and recipe.config == "cpu":
        # The default wrapper of a distributed model assumes that it is on a GPU.
        argv += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    metric = ""
    if recipe.training.checkpoints == "best":
        metric = str(flags.get("best-checkpoint-metric", "loss"))

    def before() -> None:
        begin(recipe, run / "summary.json")()
        if (checkpoints / "checkpoint_last.pt").exists():
            from fairseq_sparse.commands import recover

            recover.run(recover.parse_arguments([str(checkpoints), "--quiet"]))

    def after() -> None:
        summary = summarize_training(read_log(run / "logs" / "train.log"), metric)
        write_json(run / "train.json", {**summary, **describe_environment()})

    return Stage(
        name="train",
        folder=run,
        settings={
            "batch": recipe.training.batch,
            "unit": recipe.training.unit,
            **as_settings(flags),
        },
        inputs=binary_files(recipe, "train", "valid"),
        outputs=(run / "train.json",),
        commands=(Command(tuple(argv), comment=_ELSEWHERE if launch.devices > 1 else ""),),
        changed="refuse",
        before=before,
        after=after,
        resumes_from=checkpoints / "checkpoint_last.pt",
    )


def _average(recipe: Recipe) -> Stage:
    run, training = recipe.run_dir, recipe.training
    output = run / "average.pt"
    inputs: list[Argument] = [run / "checkpoints"]
    if training.checkpoints == "best":
        inputs = [run / "checkpoints" / "checkpoint_best.pt"]
    else:
        kind = "epoch" if training.checkpoints == "last" else "update"
        inputs += [f"--num-{kind}-checkpoints", str(training.average)]
    if training.exponential:
        inputs += ["--ema"]
    argv = ("fairseq-sparse", "average", "--inputs", *inputs, "--output", output)
    settings = {"checkpoints": training.checkpoints, "exponential": training.exponential}
    if training.checkpoints != "best":
        settings["average"] = training.average
    stale = (run / "alignment.json", recipe.score_file, run / "summary.json")
    return Stage(
        name="average",
        folder=run,
        settings=settings,
        inputs=(run / "train.json",),
        outputs=(output,),
        commands=(Command(argv, outputs=(output,)),),
        before=begin(recipe, *stale),
    )
