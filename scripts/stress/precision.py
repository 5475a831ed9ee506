#!/usr/bin/env python3
"""Train every output with every attention in half precision, and check for overflow.

Each run trains a tiny model on synthetic text that it can learn (the target is the source
reversed), with the steps of fairseq's Trainer, and fairseq's own optimizers and loss scaling:

  fp16            --fp16: weights in fp16, a copy of them in fp32
  fp16_efficient  --memory-efficient-fp16: weights in fp16, no copy
  bf16            --bf16
  amp_fp16        --amp: weights in fp32, autocast to fp16
  amp_bf16        autocast to bf16, without scaling

Precisions that this PyTorch lacks on a CPU are left out: all of fp16 before 2.3.

The loss scale starts at --init-scale: 128 is fairseq's default, and 65536 is halved until the
gradients fit. A run passes if every loss is finite, the loss decreases, and at most 1% of the
updates are skipped at a loss scale of 128 or less. Attention relu has no norm and may overflow,
which is reported, but not counted as a failure. An LSTM only has the kinds of attention whose
weights sum to 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import (
    exit_status,
    numbers,
    one_line,
    output_file,
    positive,
    quiet,
    script_parser,
    words,
)

PRECISIONS = ("fp16", "fp16_efficient", "bf16", "amp_fp16", "amp_bf16")
SIZES = {
    "transformer_sparse": "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 "
    "--decoder-embed-dim 32 --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --share-all-embeddings",
    "lstm_sparse": "--encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-hidden-size 32 "
    "--decoder-hidden-size 32 --decoder-out-embed-dim 32",
}
PRECISION_FLAGS = {
    "fp16": "--fp16 --fp16-no-flatten-grads",  # flat gradients are made on a GPU only
    "fp16_efficient": "--memory-efficient-fp16",
    "bf16": "--bf16",
    "amp_fp16": "--amp",
    "amp_bf16": "--amp",
}
VOCABULARY, BATCHES, SENTENCES = 200, 16, 8
SMALL_SCALE = 128  # fairseq's initial scale
MOST_SKIPPED = 50
ALPHA = 1.3  # for the kind "entmax"
WITHOUT_NORM = "relu"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--arch", choices=tuple(SIZES), default="transformer_sparse")
    parser.add_argument("--outputs", type=words, metavar="NAME,...", help="(default: all)")
    parser.add_argument("--attention", type=words, metavar="NAME,...", help="(default: all)")
    parser.add_argument(
        "--precisions",
        type=words,
        default=list(PRECISIONS),
        metavar="NAME,...",
        help=f"(default: {','.join(PRECISIONS)})",
    )
    parser.add_argument("--updates", type=positive, default=500, metavar="N", help="(default: 500)")
    parser.add_argument(
        "--init-scale",
        type=numbers,
        default=[128, 65536],
        metavar="N,...",
        help="initial loss scales (default: 128,65536)",
    )
    parser.add_argument(
        "--flags", default="", metavar="'FLAGS'", help="more flags for fairseq-train"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results here")
    return parser.parse_args(arguments)


@dataclass
class Run:
    """One training run and its result."""

    precision: str
    output: str
    attention: str
    init_scale: int
    first_loss: float = math.nan
    last_loss: float = math.nan
    updates: int = 0
    # For each skipped update: the number of updates before it, and the loss scale.
    skipped: list[tuple[int, float]] = field(default_factory=list)
    last_scale: float = 1.0
    seconds: float = 0.0
    failure: str = ""

    @property
    def excepted(self) -> bool:
        return self.attention == WITHOUT_NORM

    @property
    def name(self) -> str:
        return f"{self.precision} {self.output} {self.attention} from {self.init_scale}"


def runs_of(options: argparse.Namespace) -> list[Run]:
    """Return the runs that the options select.

    Raises:
        ValueError: there is no such output, attention or precision.
    """
    from fairseq_sparse.modules.attention_config import GLOBAL_ATTENTION_KINDS
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
    from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

    lstm = options.arch == "lstm_sparse"
    kinds = GLOBAL_ATTENTION_KINDS if lstm else (*ATTENTION_KINDS, "entmax_learned")
    chosen = []
    for flag, known in (
        ("precisions", PRECISIONS),
        ("outputs", OUTPUT_TRANSFORMS),
        ("attention", kinds),
    ):
        values = getattr(options, flag) or known
        unknown = [value for value in values if value not in known]
        if unknown:
            raise ValueError(f"--{flag} {unknown[0]}: choose from {', '.join(known)}")
        chosen.append(values)
    return [
        Run(precision, output, attention, scale)
        for precision in chosen[0]
        # bf16 has the range of fp32, and its loss is not scaled.
        for scale in ([1] if precision.endswith("bf16") else options.init_scale)
        for output in chosen[1]
        for attention in chosen[2]
    ]


def is_available(precision: str) -> bool:
    """Return whether this version of PyTorch can train in a precision on a CPU."""
    import torch

    if precision == "amp_fp16":
        return hasattr(torch.amp, "GradScaler")
    if not precision.startswith("fp16"):
        return True
    x = torch.ones(2, 2, dtype=torch.float16, requires_grad=True)
    try:
        x = torch.nn.functional.linear(x, x, x[0])
        torch.nn.functional.layer_norm(x, (2,)).sum().backward()
    except RuntimeError:
        return False
    return True


class Training:
    """A model, its criterion and its optimizer, as fairseq's Trainer puts them together."""

    def __init__(self, run: Run, options: argparse.Namespace):
        import torch
        from fairseq import optim
        from fairseq import options as fairseq_options
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        from random_models import translation_task

        parser = fairseq_options.get_training_parser()
        arguments = fairseq_options.parse_args_and_arch(parser, training_flags(run, options))
        config = convert_namespace_to_omegaconf(arguments)
        torch.manual_seed(1)
        self.task = translation_task(VOCABULARY)
        self.model = self.task.build_model(config.model)
        self.criterion = self.task.build_criterion(config.criterion)
        self.clip_norm = config.optimization.clip_norm
        self.autocast = nullcontext
        dtype = torch.bfloat16 if run.precision in ("bf16", "amp_bf16") else torch.float16
        if not run.precision.startswith("amp"):
            self.model = self.model.to(dtype)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if run.precision == "fp16_efficient":
            kind = optim.MemoryEfficientFP16Optimizer
        else:
            kind = optim.AMPOptimizer if config.common.amp else optim.FP16Optimizer
        self.optimizer = kind.build_optimizer(config, parameters)
        if config.common.amp:
            self.autocast = lambda: torch.autocast("cpu", dtype=dtype)
            if dtype == torch.float16:
                self.optimizer._grad_scaler = torch.amp.GradScaler("cpu", run.init_scale)

    def forward(self, model, sample: dict[str, Any]) -> tuple:
        """Compute the criterion under autocast, which fairseq has only for GPUs."""
        with self.autocast():
            return self.criterion(model, sample)

    def step(self, sample: dict[str, Any], update: int) -> tuple[float, bool]:
        """Take a step; return the loss of a batch per token, and whether the parameters were
        updated."""
        import torch

        torch.manual_seed(1 + update)
        self.model.train()
        self.optimizer.zero_grad()
        loss, size, _ = self.task.train_step(
            sample, self.model, self.forward, self.optimizer, update
        )
        self.optimizer.multiply_grads(1 / size)
        try:
            norm = self.optimizer.clip_grad_norm(self.clip_norm)
        except OverflowError:  # how fairseq's fp16 skips an update
            return loss.item() / size, False
        updated = bool(torch.isfinite(norm))
        if not updated and not hasattr(self.optimizer, "_grad_scaler"):
            raise FloatingPointError(f"the norm of the gradients is {norm}")
        self.optimizer.step()
        return loss.item() / size, updated

    def loss_scale(self) -> float:
        scaler = self.optimizer.scaler
        if scaler is None:
            return 1.0
        return float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler.loss_scale)


def training_flags(run: Run, options: argparse.Namespace) -> list[str]:
    """Return the command line of fairseq-train, without the program's name."""
    criterion = "alpha_relu_loss" if run.output == "alpha_relu" else "entmax_loss"
    output = f"entmax --output-alpha {ALPHA}" if run.output == "entmax" else run.output
    attention = {
        "entmax": f"entmax --attention-alpha {ALPHA}",
        "entmax_learned": "entmax --attention-alpha-learnable",
    }.get(run.attention, run.attention)
    flags = (
        f"DATA --cpu --task translation_sparse --arch {options.arch} {SIZES[options.arch]} "
        f"--output-transform {output} --criterion {criterion} --attention {attention} "
        f"--optimizer adam --lr 0.003 --clip-norm 1.0 --dropout 0.1 --batch-size {SENTENCES} "
        f"{PRECISION_FLAGS[run.precision]} --fp16-init-scale {run.init_scale} {options.flags}"
    )
    return flags.split()


def batches(task) -> Iterator[dict[str, Any]]:
    """Yield an endless sequence of batches with sentences to reverse, of different lengths."""
    import torch
    from fairseq.data import LanguagePairDataset

    words = task.source_dictionary
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(BATCHES):
        lengths = torch.randint(3, 11, (SENTENCES,), generator=generator).tolist()
        end = torch.tensor([words.eos()])
        texts = [
            torch.randint(words.nspecial, len(words), (length,), generator=generator)
            for length in lengths
        ]
        source = [torch.cat([text, end]) for text in texts]
        target = [torch.cat([text.flip(0), end]) for text in texts]
        sizes = [length + 1 for length in lengths]
        data = LanguagePairDataset(source, sizes, words, target, sizes, words)
        made.append(data.collater([data[index] for index in range(len(data))]))
    while True:
        yield from made


def train(run: Run, options: argparse.Namespace) -> None:
    """Train a run, and fill in its results."""
    start = time.perf_counter()
    losses = []
    try:
        training = Training(run, options)
        samples = batches(training.task)
        while run.updates < options.updates and len(run.skipped) <= MOST_SKIPPED:
            scale = training.loss_scale()
            loss, updated = training.step(next(samples), run.updates)
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss}")
            losses.append(loss)
            if updated:
                run.updates += 1
            else:
                run.skipped.append((run.updates, scale))
        run.last_scale = training.loss_scale()
    except Exception as error:  # any error; the other runs continue
        run.failure = f"{type(error).__name__} at update {run.updates}: {one_line(error)}"
    some = max(1, min(BATCHES, len(losses) // 2))
    if losses:
        run.first_loss = sum(losses[:some]) / some
        run.last_loss = sum(losses[-some:]) / some
    run.seconds = time.perf_counter() - start
    if not run.failure:
        run.failure = failure_of(run, options)


def failure_of(run: Run, options: argparse.Namespace) -> str:
    if run.updates < options.updates:
        return f"{len(run.skipped)} updates skipped within {run.updates}"
    at_small_scale = [update for update, scale in run.skipped if scale <= SMALL_SCALE]
    if len(at_small_scale) > math.ceil(options.updates / 100):
        return f"updates skipped for a loss scale of {SMALL_SCALE} or less: {at_small_scale}"
    if run.last_loss >= run.first_loss:
        return f"the loss went from {run.first_loss:.3f} to {run.last_loss:.3f}"
    return ""


def table(runs: list[Run]) -> str:
    """Return a table with a row for each precision, output and scale, over all kinds of attention;
    those without a norm count only for runs, updates and failures."""
    from fairseq_sparse.tables.formats import format_table

    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.precision, run.init_scale, run.output), []).append(run)
    rows = []
    for (precision, scale, output), group in groups.items():
        counted = [run for run in group if not run.excepted]
        failed = [run.attention for run in group if run.failure]
        done = [run for run in counted if run.updates]
        rows.append(
            [
                *(precision, scale, output, len(group)),
                sum(run.updates for run in group),
                sum(len(run.skipped) for run in counted),
                sum(scale <= SMALL_SCALE for run in counted for _, scale in run.skipped),
                f"{min((run.last_scale for run in counted), default=1):g}",
                f"{max((run.last_loss for run in done), default=math.nan):.3f}",
                ", ".join(failed) or "none",
            ]
        )
    header = ["precision", "first scale", "output", "runs", "updates", "skipped"]
    header += [f"at {SMALL_SCALE} or less", "least scale", "worst last loss", "failed"]
    return format_table(header, rows)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    import torch
    from tqdm import tqdm

    import fairseq_sparse  # noqa: F401
    from fairseq_sparse.files import write_json
    from fairseq_sparse.measure.machine import describe_machine

    torch.set_num_threads(1)
    done: list[Run] = []
    try:
        runs = runs_of(options)
        for precision in dict.fromkeys(run.precision for run in runs):
            if not is_available(precision):
                print(f"{precision} is left out: this PyTorch lacks it on a CPU", file=sys.stderr)
                runs = [run for run in runs if run.precision != precision]
        for run in tqdm(runs, unit="run"):
            with quiet():
                train(run, options)
            if run.failure:
                tqdm.write(f"{run.name}: {run.failure}", file=sys.stderr)
            done.append(run)
            if options.json:
                results = [asdict(run) | {"excepted": run.excepted} for run in done]
                write_json(options.json, {"machine": describe_machine(), "runs": results})
        print(table(done))
    except (ValueError, OSError) as error:
        print(f"precision.py: error: {one_line(error)}", file=sys.stderr)
        return 1
    failed = [run for run in runs if run.failure and not run.excepted]
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
