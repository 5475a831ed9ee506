#!/usr/bin/env python3
"""Kill a recipe again and again, and check that its result equals that of an undisturbed run.

A small model is trained by `fairseq-sparse run` on the synthetic text of examples/quickstart, saved
every few updates, and averaged. Then this is repeated, but all processes are killed (SIGKILL) at
chosen moments, and the same command is started again after each kill:

  random      at any time
  writing     while a checkpoint is being written
  copying     while a checkpoint is being copied to checkpoint_last.pt. If the kill comes too late,
              the copy is cut off at a random place, as a kill would have left it
  saved       just after a checkpoint is complete, before fairseq goes on
  finishing   after training, while its summary is being made, or soon after
  averaging   while the average is being written
  preparing   at any time in the preparation of the data

When a run is finished, its parameters (of the last checkpoint and of the average, tau included),
the state of its optimizer, the number of updates, its statistics and its data must equal those of
the undisturbed run to the last bit, and no temporary files may be left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import exit_status, one_line, output_file, positive, script_parser, seed
from stress.kill_moments import cut_the_copy, moment_has_come

ROOT = Path(__file__).resolve().parents[2]
# The kills of a run: those in training, which are shuffled, and those at the end, in this order.
TRAINING_MOMENTS = ("random", "random", "writing", "copying", "copying", "saved", "random")
ENDING_MOMENTS = ("finishing", "averaging")
SETTINGS = (
    "encoder-layers=1 encoder-embed-dim=64 encoder-ffn-embed-dim=64 encoder-attention-heads=2 "
    "decoder-layers=1 decoder-embed-dim=64 decoder-ffn-embed-dim=64 decoder-attention-heads=2 "
    "dropout=0.1 lr=5e-3 warmup-updates=10 log-interval=2 save-interval-updates=4 "
    "keep-interval-updates=2 corpus.made_by=quickstart/make_corpus.py,"
    "--train,400,--valid,40,--test,20,--held-out,4"
)
OPTIONS = "--cpu --epochs 3 --average 2 --batch 512 --device-batch 512 --bpe-merges 200"
PATIENCE = 600  # seconds for one start of the recipe


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--kills", type=positive, default=50, metavar="N", help="total (default: 50)"
    )
    parser.add_argument("--variant", default="alpha_relu", help="(default: alpha_relu)")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="flags for fairseq-train"
    )
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="(default: 1)")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="work here, and keep it (default: temporary)"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results here")
    return parser.parse_args(arguments)


class StressError(Exception):
    """Error of a run that did not end, or whose result differs from the undisturbed one."""


@dataclass
class Recipe:
    """A data folder, a run folder, and the recipe that fills them."""

    options: argparse.Namespace
    data: Path
    run: Path

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    @property
    def output(self) -> Path:
        return self.run.with_suffix(".log")

    def start(self, stages: str) -> subprocess.Popen:
        """Start the recipe in a process group of its own; it writes to ``output``."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "fairseq_sparse", "run", "quickstart"]
        command += [self.options.variant, *OPTIONS.split(), "--stages", stages]
        for pair in [*SETTINGS.split(), *self.options.set]:
            command += ["--set", pair]
        command += ["--data-dir", str(self.data), "--run-dir", str(self.run)]
        self.run.parent.mkdir(parents=True, exist_ok=True)
        with open(self.output, "ab") as output:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, stages: str) -> float:
        """Run the recipe to its end, and return the seconds that it took.

        Raises:
            StressError: the recipe failed.
        """
        start = time.monotonic()
        process = self.start(stages)
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            kill(process)
            status = f"none within {PATIENCE} seconds"
        if status != 0:
            raise StressError(
                f"status {status} of the recipe; the end of {self.output}: {self.tail()}"
            )
        return time.monotonic() - start

    def printed(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        return " / ".join(self.printed().splitlines()[-8:])


def kill(process: subprocess.Popen) -> None:
    """Kill all processes of a recipe, and wait until they are gone."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


# What is compared


def result_of(recipe: Recipe) -> dict[str, Any]:
    """Return all results that must not depend on kills, by name."""
    from fairseq_sparse.checkpoints.loading import load_checkpoint
    from fairseq_sparse.models.transformer_sparse import FUSED_COPIES

    last = load_checkpoint(recipe.checkpoints / "checkpoint_last.pt")
    average = load_checkpoint(recipe.run / "average.pt")
    summary = json.loads((recipe.run / "train.json").read_text())
    result = {
        "updates": last["optimizer_history"][-1]["num_updates"],
        **{f"train.json: {name}": summary[name] for name in ("updates", "epochs", "valid")},
        "checkpoints": sorted(path.name for path in recipe.checkpoints.glob("*.pt")),
    }
    for name, state in (("last", last), ("average", average)):
        for key, value in state["model"].items():
            if key.endswith("_float_tensor") or FUSED_COPIES.search(key):
                continue  # neither set nor used in fairseq 0.12.2
            result[f"{name}: {key}"] = _digest(value)
    for number, entries in last["last_optimizer_state"]["state"].items():
        for key, value in entries.items():
            result[f"optimizer: {number}.{key}"] = _digest(value)
    for path in sorted((recipe.data / "prepared/bin").iterdir()):
        if path.suffix in (".bin", ".idx", ".txt"):
            result[f"data: {path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return result


def _digest(value: Any) -> Any:
    """Return a value that is equal only for equal bits."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    content = value.detach().contiguous().view(-1).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()}"


def leftover_files(recipe: Recipe) -> list[str]:
    """Return the temporary files that a finished run should not have."""
    patterns = ("*.tmp", "*.partial*", "crash.pt")
    folders = (recipe.run, recipe.data)
    return sorted(str(path) for f in folders for p in patterns for path in f.rglob(p))


def compare(recipe: Recipe, expected: dict[str, Any]) -> None:
    """Raise StressError, naming the first difference from the undisturbed run."""
    found = result_of(recipe)
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            raise StressError(
                f"{recipe.run}: {name} is {found.get(name)}, undisturbed {expected.get(name)}"
            )
    leftover = leftover_files(recipe)
    if leftover:
        raise StressError(f"temporary files left: {', '.join(leftover)}")


# Kills


@dataclass
class Record:
    """Counts of kills, damaged checkpoints and finished runs, and the failures."""

    kills: Counter = field(default_factory=Counter)
    damaged_last_checkpoints: int = 0
    truncated_by_script: int = 0
    finished_runs: int = 0
    failures: list[str] = field(default_factory=list)

    def all_kills(self) -> int:
        return sum(self.kills.values())

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "kills": dict(self.kills), "all_kills": self.all_kills()}


class Stress:
    """Runs with kills, compared with one undisturbed run."""

    def __init__(self, options: argparse.Namespace, folder: Path, report: Callable[[str], None]):
        self.options, self.folder, self.report = options, folder, report
        self.chance = random.Random(options.seed)
        self.record = Record()
        self.undisturbed = Recipe(options, folder / "data", folder / "undisturbed")
        self.prepare_seconds = self.undisturbed.finish("prepare")
        self.train_seconds = self.undisturbed.finish("train-average")
        self.expected = result_of(self.undisturbed)
        report(
            f"undisturbed: {self.expected['updates']} updates; prepared in "
            f"{self.prepare_seconds:.0f} s, trained and averaged in {self.train_seconds:.0f} s"
        )

    def remaining_kills(self) -> int:
        return self.options.kills - self.record.all_kills()

    def run_all(self) -> Record:
        number = 0
        while self.remaining_kills() > 0:
            number += 1
            before = self.record.all_kills()
            prepares = number % 3 == 1
            name = f"run{number}"
            data = self.folder / (f"{name}-data" if prepares else "data")
            recipe = Recipe(self.options, data, self.folder / name)
            try:
                if prepares:
                    self.disturb(recipe, ["preparing", "preparing"], "prepare")
                moments = list(TRAINING_MOMENTS)
                self.chance.shuffle(moments)
                self.disturb(recipe, [*moments, *ENDING_MOMENTS], "train-average")
                compare(recipe, self.expected)
                self.record.finished_runs += 1
                self.report(f"{name}: equal to the undisturbed run")
            except StressError as error:
                self.record.failures.append(f"{name}: {error}")
                self.report(f"{name}: FAILED: {error}")
                if self.record.all_kills() == before:
                    break  # kills are not the cause: the next run would fail as well
        return self.record

    def disturb(self, recipe: Recipe, moments: list[str], stages: str) -> None:
        """Run the stages, with a kill at each of the moments as long as kills are left."""
        for moment in moments[: self.remaining_kills()]:
            if not self.kill_once(recipe, moment, stages):
                break  # the recipe has ended
        recipe.finish(stages)

    def kill_once(self, recipe: Recipe, moment: str, stages: str) -> bool:
        """Start the recipe and kill it at the moment; return False if it ended before."""
        from fairseq_sparse.checkpoints.names import LAST
        from fairseq_sparse.checkpoints.recovery import is_damaged

        seconds = self.prepare_seconds if moment == "preparing" else 0.7 * self.train_seconds
        recipe.output.touch()
        process = recipe.start(stages)
        has_come = moment_has_come(moment, recipe, seconds, self.chance)
        end = time.monotonic() + PATIENCE
        while not has_come():
            status = process.poll()
            if status is not None:
                if status != 0:
                    raise StressError(f"status {status} before {moment}: {recipe.tail()}")
                return False
            if time.monotonic() > end:
                kill(process)
                raise StressError(f"no end within {PATIENCE} s before {moment}: {recipe.tail()}")
            time.sleep(0.0005)
        kill(process)
        self.record.kills[moment] += 1
        if moment == "copying":
            self.record.truncated_by_script += cut_the_copy(recipe.checkpoints, self.chance)
        last = recipe.checkpoints / LAST
        damaged = last.exists() and is_damaged(last)
        self.record.damaged_last_checkpoints += damaged
        self.report(
            f"{recipe.run.name}: killed at {moment}" + (f", {LAST} is damaged" if damaged else "")
        )
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    from fairseq_sparse.files import write_json
    from fairseq_sparse.measure.machine import describe_machine

    start = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - start:6.0f} s] {line}", file=sys.stderr, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
            record = Stress(options, options.folder or Path(temporary), report).run_all()
        results = record.as_dict()
        print(json.dumps(results, indent=2))
        if options.json:
            write_json(options.json, {"machine": describe_machine(), **results})
    except (StressError, OSError) as error:
        print(f"kills.py: error: {one_line(error)}", file=sys.stderr)
        return 1
    return 1 if record.failures else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
