"""The stages of training: fairseq-train, and the average of its checkpoints."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.files import sha256_of, write_json
from fairseq_sparse.measure.machine import describe_environment
from fairseq_sparse.measure.run_folders import Run
from fairseq_sparse.measure.training_log import read_log
from fairseq_sparse.recipes.launch import Launch
from fairseq_sparse.recipes.plan import (
    USER_DIR,
    Argument,
    Command,
    Stage,
    as_arguments,
    as_settings,
)
from fairseq_sparse.recipes.preparation import binary_files
from fairseq_sparse.recipes.recipe import Flags, Recipe
from fairseq_sparse.tables.results import summarize_training

# Schedules with which a longer training begins as a shorter one does.
_WITHOUT_END = {"fixed", "inverse_sqrt", "reduce_lr_on_plateau", "reduce_lr_on_valid_loss"}

# Beside the command of several workers in a printed script.
_ELSEWHERE = """\
On several machines: the same on each, with --nnodes N --node-rank K --master-addr HOST instead
of --standalone --local-addr localhost, and all workers counted in --distributed-world-size and
--update-freq. In a job of Slurm with one task on each machine:
  export HOST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
  srun bash -c 'torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr $HOST ...'
"""


def _check_dictionaries(recipe: Recipe, model: Path) -> None:
    """Check that a run's model, which is to be fine-tuned, has the dictionaries of the data.

    fairseq compares their sizes only, so that each embedding could become that of another token.
    """
    # The model lies in the folder of its run, or in the folder of checkpoints there.
    trained_on = ChainMap(*(Run("", model, folder).trained_on for folder in model.parents[:2]))
    for path in recipe.binary.glob("dict*.txt"):  # dict.txt: that of a language model
        if path.name in trained_on and trained_on[path.name] != sha256_of(path):
            raise RecipeError(
                f"{model} was trained with another {path.name} than that of {recipe.binary}: "
                "prepare the new text with its BPE and dictionaries, or train from scratch"
            )


def begin(recipe: Recipe, *stale: Path) -> Callable[[], None]:
    """Return what a stage does first: remove results of an earlier model, and write run.json."""

    def record() -> None:
        recipe.run_dir.mkdir(parents=True, exist_ok=True)
        for path in stale:  # first: a kill in between must not leave them beside the new run.json
            path.unlink(missing_ok=True)
        write_json(recipe.run_dir / "run.json", recipe.as_json())

    return record


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
    updates, interval = (str(flags.get(x, "")) for x in ("max-update", "save-interval-updates"))
    counted = training.checkpoints == "updates" and updates.isdigit() and interval.isdigit()
    if counted and 0 < int(updates) < training.average * int(interval):
        raise RecipeError(
            f"--updates {updates}: the last {training.average} checkpoints are averaged, and one "
            f"is written every {interval} updates; train for longer, or set --average"
        )
    return flags


def _check_lengths(recipe: Recipe, flags: Flags) -> None:
    """Refuse sentences for validation and testing that the model cannot take; fairseq would fail
    there when training is over.

    Raises:
        RecipeError: there is one.
    """
    from fairseq.data.data_utils import load_indexed_dataset

    if recipe.corpus.kind == "text" or flags.get("skip-invalid-size-inputs-valid-test"):
        return
    limits = _longest(recipe, flags)
    subsets = ["valid", "test", *(["test1"] if recipe.corpus.long_test else [])]
    for subset in subsets:
        for side, limit in limits.items():
            path = recipe.binary / f"{subset}.{'-'.join(limits)}.{side}"
            sentences = load_indexed_dataset(str(path), None, "mmap")
            for number, size in enumerate(sentences.sizes if sentences else (), start=1):
                if size > limit:
                    raise RecipeError(
                        f"sentence {number} of the set {subset} ({side}) has {size} tokens, EOS "
                        f"included, more than the {limit} of the model: leave it out"
                    )


def _longest(recipe: Recipe, flags: Flags) -> dict[str, int]:
    """Return how many tokens a sentence of each language may have."""
    sides = zip(("source", "target"), recipe.corpus.sides, strict=True)
    return {side: int(flags.get(f"max-{name}-positions", 1024)) for name, side in sides}


def _batch(recipe: Recipe, devices: int, flags: Flags) -> list[str]:
    """Return the flags that fill each device, and accumulate to the same batch for any number."""
    training = recipe.training
    batch, device_batch = training.batch, training.device_batch
    frequency = math.ceil(batch / (devices * device_batch))
    share = batch // (devices * frequency)
    if not share:
        raise RecipeError(f"a batch of {batch} {training.unit} is too small for {devices} devices")
    flag = "--batch-size" if training.unit == "sentences" else "--max-tokens"
    words = [flag, str(share), "--update-freq", str(frequency)]
    if flag == "--max-tokens" and recipe.corpus.kind != "text" and "max-tokens-valid" not in flags:
        # Sentences for training that do not fit are left out; one for validation would end it all.
        longest = max(_longest(recipe, flags).values())
        words += ["--max-tokens-valid", str(longest)] if share < longest else []
    return words


def train(recipe: Recipe, launch: Launch) -> Stage:
    run, flags = recipe.run_dir, train_flags(recipe)
    checkpoints = run / "checkpoints"
    argv: list[Argument] = [*launch.command(), recipe.binary, "--user-dir", USER_DIR]
    argv += ["--save-dir", checkpoints, *as_arguments(flags)]
    argv += _batch(recipe, launch.devices, flags)
    argv += ["--log-format", "json", *recipe.device]
    argv += launch.flags()
    if launch.devices > 1 and recipe.config == "cpu":
        # The default wrapper of a distributed model assumes that it is on a GPU.
        argv += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    model = flags.get("finetune-from-model")
    metric = ""
    if recipe.training.checkpoints == "best":
        metric = str(flags.get("best-checkpoint-metric", "loss"))

    without_end = flags.get("lr-scheduler", "fixed") in _WITHOUT_END

    def before() -> None:
        _check_lengths(recipe, flags)
        if model:
            _check_dictionaries(recipe, Path(model))
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
        inputs=(*binary_files(recipe, "train", "valid"), *([Path(model)] if model else [])),
        outputs=(run / "train.json",),
        commands=(Command(tuple(argv), comment=_ELSEWHERE if launch.devices > 1 else ""),),
        changed="refuse",
        prolonged_by=("--max-epoch", "--max-update") if without_end else (),
        before=before,
        after=after,
        resumes_from=checkpoints / "checkpoint_last.pt",
    )


def average(recipe: Recipe) -> Stage:
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
    of_model = ("alignment.json", "empty.json", "summary.json")
    stale = (*(run / name for name in of_model), recipe.score_file)
    return Stage(
        name="average",
        folder=run,
        settings=settings,
        inputs=(run / "train.json",),
        outputs=(output,),
        commands=(Command(argv, outputs=(output,)),),
        before=begin(recipe, *stale),
    )
