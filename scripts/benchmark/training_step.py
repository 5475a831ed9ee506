#!/usr/bin/env python3
"""Speed and memory of whole training steps: fairseq's Trainer and criterions on the same batches.

Each model is the one that `fairseq-sparse run` trains on a CPU with a data set and a variant of the
catalogue; `stock` is the same with fairseq's own architecture and cross_entropy. A step is the
Trainer's: forward, backward, clipping, update and logging. All models take turns on the same
batches of the training set, spread over the sentence lengths; the first of --variants is the
baseline. Speed is target tokens per second as a ratio to the baseline's, so 1 / speed is the
relative training time of "Speeding Up Entmax", Table 5.

A variant is VARIANT or VARIANT+ATTENTION (entmax15+rela_g), with options of the command run if it
needs some ("entmax15 output_algorithm=sort"). Each is also measured with --no-fused-loss, unless
--fused-only is given.

Without DATA the text is random, with the word frequencies of real text, and --vocabulary is needed.
With DATA, --vocabulary enlarges the dictionary by entries that do not occur. --trained starts a
variant from a checkpoint, because a step is faster the fewer words have a probability above 0. The
recipe of a language model (tinyshakespeare) needs DATA.

Memory is the peak of PyTorch's allocations in a step on the largest batch, beyond the models.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import harness, random_data
from command_line import quiet, script_parser, setting, words
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.plan import as_arguments
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.recipes.training import train_flags

STOCK = "stock"
# Every output and every kind of attention, and the best of both.
DEFAULT_VARIANTS = (
    "stock,softmax,sparsemax,entmax15,entmax15_k100,entmax output_alpha=1.25,alpha_relu,"
    "softmax+sparsemax,softmax+entmax15,softmax+entmax,softmax+relu,softmax+relu_rmsnorm,"
    "softmax+rela_i,softmax+rela_g,softmax+rela_g_layernorm,softmax+rela_g_gelu,"
    "softmax+rela_g_leaky_relu,softmax+softmax_gated,softmax+softmax_rmsnorm_gated,"
    "softmax+relu_length,softmax+relu_l1,softmax+relu_centred,softmax+alpha_relu,"
    "softmax+alpha_relu_rmsnorm_gated,softmax+softpick,softmax+sigmoid,entmax15+rela_g,"
    "alpha_relu+rela_g"
)
UNFUSED = " --no-fused-loss"
PRECISIONS = ("fp32", "fp16", "bf16")
RANDOM_SENTENCES = 4000


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "data",
        nargs="?",
        metavar="DATA",
        help="folder that fairseq-preprocess made (default: random text)",
    )
    parser.add_argument(
        "--recipe",
        default="multi30k_de_en",
        metavar="NAME",
        help="data set of the catalogue (default: multi30k_de_en)",
    )
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="flag of fairseq-train, as in fairseq-sparse run",
    )
    parser.add_argument(
        "--variants",
        type=words,
        default=DEFAULT_VARIANTS.split(","),
        metavar="NAME,...",
        help=f"what to compare (default: {DEFAULT_VARIANTS})",
    )
    parser.add_argument(
        "--fused-only", action="store_true", help="do not measure --no-fused-loss as well"
    )
    parser.add_argument(
        "--trained", nargs="+", default=[], metavar="VARIANT=CKPT", help="checkpoint to start from"
    )
    parser.add_argument(
        "--vocabulary",
        type=random_data.vocabulary_size,
        metavar="N",
        help="entries of the dictionary (default: those of DATA)",
    )
    parser.add_argument(
        "--precisions",
        type=harness.one_of(*PRECISIONS),
        default=["fp32"],
        metavar="NAME,...",
        help=f"among {', '.join(PRECISIONS)} (default: fp32)",
    )
    parser.add_argument(
        "--max-tokens",
        type=harness.positive,
        metavar="N",
        help="maximum tokens per batch (default: the recipe's)",
    )
    parser.add_argument(
        "--batches",
        type=harness.positive,
        default=8,
        metavar="N",
        help="batches per round (default: 8)",
    )
    harness.add_arguments(parser, rounds=5)
    options = parser.parse_args(arguments)
    if not options.data and not options.vocabulary:
        parser.error("without DATA --vocabulary is needed")
    if any("=" not in pair for pair in options.trained):
        parser.error("--trained: give VARIANT=CKPT")
    measured = [variant.removesuffix(UNFUSED) for variant in options.variants]
    for pair in options.trained:
        if pair.split("=", 1)[0] not in measured:
            parser.error(f"--trained {pair}: not among --variants {','.join(options.variants)}")
    return options


# From recipes to models


def recipe_of(variant: str, dataset: str, overrides: Optional[dict[str, str]] = None) -> Recipe:
    """Return the recipe of a variant with its options, or of softmax in place of ``stock``.

    Raises:
        RecipeError: a name or an option is unknown, or does not fit the variant.
    """
    name, *options = variant.split()
    chosen = dict(option.partition("=")[::2] for option in options)
    known = {field.name for field in fields(Options)}
    if unknown := chosen.keys() - known:
        raise RecipeError(f"{variant}: there is no option {', '.join(unknown)}")
    for option in chosen.keys() & {"output_alpha", "attention_alpha"}:
        chosen[option] = float(chosen[option])
    options = Options(overrides=overrides or {}, **chosen)
    return resolve(dataset, "softmax" if name == STOCK else name, options)


def training_flags(variant: str, precision: str, options: argparse.Namespace) -> list[str]:
    """Return the command line of fairseq-train, without the program's name."""
    recipe = recipe_of(variant.removesuffix(UNFUSED), options.recipe, dict(options.set))
    flags = train_flags(recipe)
    if variant == STOCK:
        del flags["label-smoothing"]  # of our losses alone
        flags["criterion"] = "cross_entropy"
    words = as_arguments(flags)
    if not options.data:
        source, target = random_data.LANGUAGES
        words += ["--source-lang", source, "--target-lang", target]
    unit = "batch-size" if recipe.training.unit == "sentences" else "max-tokens"
    words += (
        ["--max-tokens", str(options.max_tokens)]
        if options.max_tokens
        else [f"--{unit}", str(recipe.training.batch)]
    )
    words += ["--num-workers", "0", "--no-save", "--distributed-world-size", "1"]
    if variant.endswith(UNFUSED):
        words.append(UNFUSED.strip())
    if options.device == "cpu":
        words.append("--cpu")
    if precision != "fp32":
        words.append(f"--{precision}")
    return [str(options.data), *words]


@dataclass(frozen=True)
class Training:
    """A model in training, and the batches that it is trained on."""

    trainer: Any
    batches: list[dict]

    def step(self, sample: dict) -> None:
        self.trainer.train_step([sample])

    def run(self) -> None:
        for sample in self.batches:
            self.step(sample)

    def step_on_largest(self) -> None:
        self.step(max(self.batches, key=lambda sample: sample["target"].numel()))


def build(variant: str, precision: str, options: argparse.Namespace, batches=None) -> Training:
    """Build the model and Trainer of fairseq-train, and read ``batches`` if they are not given.

    Raises:
        ValueError: the flags, the data and the checkpoint do not match.
    """
    from fairseq import options as fairseq_options
    from fairseq import tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer

    import fairseq_sparse  # noqa: F401
    from fairseq_sparse.checkpoints.loading import load_checkpoint
    from fairseq_sparse.errors import CheckpointError

    parser = fairseq_options.get_training_parser()
    flags = training_flags(variant, precision, options)
    arguments = fairseq_options.parse_args_and_arch(parser, flags)
    if variant == STOCK:  # fairseq's model, with the sizes of our architecture
        kinds = ("lstm", "transformer_lm", "transformer")
        arguments.arch = next(kind for kind in kinds if arguments.arch.startswith(kind))
    config = convert_namespace_to_omegaconf(arguments)
    task = tasks.setup_task(config.task)
    if options.vocabulary:
        enlarge(task, options.vocabulary)
    model = task.build_model(config.model)
    checkpoint = dict(pair.split("=", 1) for pair in options.trained).get(
        variant.removesuffix(UNFUSED)
    )
    if checkpoint:
        try:
            model.load_state_dict(load_checkpoint(checkpoint)["model"])
        except (CheckpointError, ValueError, RuntimeError) as error:
            raise ValueError(f"--trained {variant}={checkpoint}: {error}") from error
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    return Training(trainer, batches or read_batches(trainer, options.batches))


def enlarge(task, size: int) -> None:
    """Add entries to the dictionaries that do not occur.

    Raises:
        ValueError: they are already larger.
    """
    for dictionary in (task.source_dictionary, task.target_dictionary):
        if len(dictionary) > size:
            raise ValueError(f"--vocabulary {size}: DATA has {len(dictionary)} entries already")
        for number in range(size - len(dictionary)):
            dictionary.add_symbol(f"madeupword{number}", n=0)


def read_batches(trainer, count: int) -> list[dict]:
    """Read batches of the training set, spread over the lengths of its sentences."""
    batches = list(trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=False))
    every = max(1, len(batches) // count)
    return batches[::every][:count]


# What is measured


def results_of(precision: str, options: argparse.Namespace) -> list[dict]:
    """Measure all variants in one precision."""
    names = []
    for variant in options.variants:
        both = variant != STOCK and not options.fused_only
        names += [variant, f"{variant}{UNFUSED}"] if both else [variant]
    trainings: dict[str, Training] = {}
    for name in names:
        print(f"building {name}", file=sys.stderr)
        batches = next(iter(trainings.values())).batches if trainings else None
        trainings[name] = build(name, precision, options, batches)
    batches = trainings[names[0]].batches
    vocabulary = len(trainings[names[0]].trainer.task.target_dictionary)
    what = {"part": "training", "precision": precision, "vocabulary": vocabulary}
    jobs = {name: training.run for name, training in trainings.items()}
    results = harness.compare(jobs, options, key="model", **what)
    tokens = sum(sample["ntokens"] for sample in batches)
    for result in results:
        if "seconds" in result:
            result |= {"rate": tokens / statistics.median(result["seconds"]), "unit": "tokens"}
    steps = {name: training.step_on_largest for name, training in trainings.items()}
    if options.device == "cpu":
        harness.add_memory(results, steps, options.device)
    else:
        add_memory_on_gpu(results, trainings, options.device)
    return results


def add_memory_on_gpu(results: list[dict], trainings: dict[str, Training], device: str) -> None:
    """Add the memory as harness.add_memory does, but from the free memory that the Trainer logs,
    because it resets the peak itself."""
    import torch
    from fairseq.logging import metrics

    total = torch.cuda.get_device_properties(device).total_memory
    for result, training in zip(results, trainings.values(), strict=True):
        if "failed" in result:
            continue
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        with metrics.aggregate(new_root=True) as logged:
            training.step_on_largest()
        if "gb_free" not in logged:  # fp16 skipped this update because of an overflow
            continue
        result["peak_bytes"] = int(total - logged["gb_free"].avg * 2**30 - before)
        if results[0].get("peak_bytes"):
            result["memory"] = result["peak_bytes"] / results[0]["peak_bytes"]


def run(options: argparse.Namespace, record: harness.Record) -> int:
    """Measure, and return the exit status: 1 if a model could not be trained."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        if not options.data:
            random_data.write(Path(folder), options.vocabulary, RANDOM_SENTENCES)
            options.data = folder
        for precision in options.precisions:
            record.add(results_of(precision, options))
    return int(any("failed" in result for result in record.content["results"]))


def table(results: list[dict]) -> str:
    from fairseq_sparse.tables.formats import format_table

    rows = []
    for result in results:
        row = [result["precision"], result["vocabulary"], result["model"]]
        row.append(f"{result['rate']:,.0f}" if "rate" in result else "-")
        row += [*harness.ratio_cells(result, "speed"), harness.ratio_cells(result, "time")[0]]
        rows.append(row + harness.memory_cells(result))
    header = ["precision", "vocabulary", "model", "tokens/s", "speed", "quartiles", "time"]
    return format_table([*header, "peak MiB", "memory"], rows)


if __name__ == "__main__":
    harness.keep_freed_memory()
    sys.exit(harness.main("training_step", parse_arguments(None), run, table))
