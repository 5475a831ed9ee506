"""Code shared by the benchmarks: arguments, comparisons, and the record of a run."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import platform
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from command_line import one_line, output_file, positive, words
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.measure.machine import KEEP_MEMORY

ROOT = Path(__file__).resolve().parents[2]
# The beginning of the failure message of a missing package.
_MISSING = "not installed"
# Keys that may hold the name of a result, see `key` of `compare`.
_NAMES = ("name", "attention", "model")
Jobs = dict[str, Callable[[], object]]
DTYPES = ("float32", "bfloat16", "float16")
# Packages compared with, besides PyTorch; the versions of the installed ones are recorded.
PEERS = (
    *("triton", "entmax", "liger-kernel", "cut-cross-entropy", "quack-kernels", "adasplash"),
    *("nvidia-cutlass-dsl", "flash-attn", "flash-attn-3", "flash-attn-4"),
)


def keep_freed_memory() -> None:
    """Restart this process with ``KEEP_MEMORY``, which glibc reads only at the start."""
    missing = {name: value for name, value in KEEP_MEMORY.items() if name not in os.environ}
    if missing and platform.libc_ver()[0] == "glibc":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


# Arguments


def add_arguments(
    parser: argparse.ArgumentParser, rounds: int, least_seconds: float | None = None
) -> None:
    """Add the arguments of every benchmark; without ``least_seconds`` no job is repeated in a
    round."""
    parser.add_argument(
        "--rounds",
        type=positive,
        default=rounds,
        metavar="N",
        help=f"number of rounds, each of which measures all in turn (default: {rounds})",
    )
    if least_seconds is not None:
        parser.add_argument(
            "--least-seconds",
            type=seconds,
            default=least_seconds,
            metavar="S",
            help=f"repeat quick jobs for at least this long in a round (default: {least_seconds})",
        )
    add_run_arguments(parser)


def seconds(text: str) -> float:
    """Parse a duration in seconds, for argparse."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return value


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the device, the threads and the output file."""
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--threads", type=positive, help="for PyTorch (default: its own choice)")
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )


def add_dtypes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtypes",
        type=one_of(*DTYPES),
        default=["float32"],
        metavar="NAME,...",
        help=f"among {', '.join(DTYPES)} (default: float32)",
    )


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names among ``choices``, for argparse."""

    def parse(text: str) -> list[str]:
        found = words(text)
        unknown = [name for name in found if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no {', '.join(unknown)}; choose from {', '.join(choices)}"
            )
        return found

    return parse


def sizes(count: int) -> Callable[[str], list[tuple[int, ...]]]:
    """Return a parser of sizes of ``count`` numbers, as in 512x10000,512x40000, for argparse."""

    def parse(text: str) -> list[tuple[int, ...]]:
        found = [tuple(map(positive, part.split("x"))) for part in text.split(",")]
        if any(len(size) != count for size in found):
            raise argparse.ArgumentTypeError(f"{text}: sizes have {count} numbers, with x between")
        return found

    return parse


def begin(options: argparse.Namespace) -> None:
    """Set threads, seed and CUDA's current device, on which models are put.

    Raises:
        ValueError: there is no such device.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs each start
    import torch

    torch.manual_seed(1)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.device.startswith(("cpu", "cuda")):
        raise ValueError(f"--device {options.device}: choose cpu or cuda")
    try:
        device = torch.empty(1, device=options.device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {options.device}: {str(error).splitlines()[0]}") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)


# Comparisons


def compare(jobs: Jobs, options: argparse.Namespace, key: str = "name", **what: object) -> list:
    """Time jobs in turns, and return one result for each, in their order.

    A result has ``what``, the job's name as ``key``, and its ``seconds`` in each round. The first
    job is the baseline: ``time`` is the median over the rounds of the job's time divided by the
    baseline's in the same round, ``speed`` that of the inverse, each with ``_quartiles``. A job
    that fails has its error message in ``failed`` instead, and does not stop the others.

    Args:
        jobs: functions to time.
        options: the options of :func:`add_arguments`.
    """
    from benchmark.timing import measure

    failures = {name: failure for name in jobs if (failure := attempt(jobs[name]))}
    working = {name: run for name, run in jobs.items() if name not in failures}
    least_seconds = getattr(options, "least_seconds", 0.0)
    seconds = measure(working, options.rounds, least_seconds, options.device)
    baseline = seconds.get(next(iter(jobs)))
    results = []
    for name in jobs:
        result: dict[str, object] = {**what, key: name}
        if name in failures:
            result["failed"] = failures[name]
            print(f"{name} failed: {failures[name]}", file=sys.stderr)
        else:
            result["seconds"] = seconds[name]
            if baseline:
                result |= summary("time", ratios(seconds[name], baseline))
                result |= summary("speed", ratios(baseline, seconds[name]))
        results.append(result)
    return results


class NotInstalled(Exception):
    """A missing package; the message says how to install it."""


def attempt(run: Callable[[], object]) -> str:
    """Run a job once, and return its error message, or an empty text."""
    try:
        run()
    except NotInstalled as remedy:
        return f"{_MISSING}: {remedy}"
    except Exception as error:  # third-party code can fail in any way
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Return one ratio per round."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def summary(name: str, values: Sequence[float]) -> dict[str, object]:
    """Return the median under ``name``, and the lower and upper quartile."""
    median = statistics.median(values)
    lower, upper = median, median
    if len(values) > 1:
        lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {name: median, f"{name}_quartiles": [lower, upper]}


def add_memory(results: list[dict], jobs: Jobs, device: str) -> None:
    """Add to each result its ``peak_bytes``, and as ``memory`` their ratio to the baseline's."""
    from benchmark.timing import peak_memory

    for result, run in zip(results, jobs.values(), strict=True):
        if "failed" not in result:
            result["peak_bytes"] = peak_memory(run, device)
            if results[0].get("peak_bytes"):
                result["memory"] = result["peak_bytes"] / results[0]["peak_bytes"]


def error_of(function: Callable, exact: Callable, inputs: Sequence, gradient=None) -> float:
    """Return the largest relative error of a function's result and of its gradients, against those
    of ``exact`` in fp64, computed by the reference.

    Args:
        gradient: that of the result; None if this is one number.
    """
    import torch

    from fairseq_sparse.ops import backends

    def evaluate(function: Callable, dtype=None):
        tensors = [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in inputs]
        output = function(*tensors)
        given = None if gradient is None else gradient.to(output.dtype)
        return [output.detach(), *torch.autograd.grad(output, tensors, given)]

    found = evaluate(function)
    with backends.use("reference"):
        expected = evaluate(exact, torch.float64)
    pairs = zip(found, expected, strict=True)
    return max(float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in pairs)


# What is reported


class Record:
    """The results of a run and their conditions, saved to ``--json`` after each addition."""

    def __init__(self, benchmark: str, options: argparse.Namespace):
        from fairseq_sparse.measure.machine import describe_machine

        self.path = options.json
        chosen = {name: value for name, value in vars(options).items() if name != "json"}
        self.content = {
            "benchmark": benchmark,
            "command": shlex.join([os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
            "machine": describe_machine(options.device) | {"peers": installed(PEERS)},
            "malloc": {name: os.environ.get(name) for name in KEEP_MEMORY},
            "options": {name: _plain(value) for name, value in chosen.items()},
            "results": [],
        }

    def add(self, results: list[dict]) -> None:
        """Add results, and print them to stderr."""
        from fairseq_sparse.files import write_json

        self.content["results"] += results
        for result in results:
            print(_line(result), file=sys.stderr)
        if self.path:
            write_json(self.path, self.content)


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _line(result: dict) -> str:
    label = " ".join(
        str(value)
        for name, value in result.items()
        if isinstance(value, (str, int)) and name not in ("peak_bytes", "unit")
    )
    return f"{label}: time {result['time']:.2f}" if "time" in result else label


def ratio_cells(result: dict, name: str) -> list[str]:
    """Return a ratio and its quartiles, for a table."""
    if name not in result:
        failure = str(result.get("failed", ""))
        missing = failure.startswith(_MISSING)
        return [_MISSING if missing else "failed" if failure else "-", "-"]
    lower, upper = result[f"{name}_quartiles"]
    return [f"{result[name]:.2f}", f"{lower:.2f}-{upper:.2f}"]


def milliseconds(result: dict) -> str:
    return f"{1000 * statistics.median(result['seconds']):.1f}" if "seconds" in result else "-"


def memory_cells(result: dict) -> list[str]:
    """Return the peak in MiB and its ratio, for a table."""
    if "peak_bytes" not in result:
        return ["-", "-"]
    ratio = f"{result['memory']:.2f}" if "memory" in result else "-"
    return [f"{result['peak_bytes'] / 2**20:.1f}", ratio]


def failures(results: list[dict]) -> str:
    """Return a Markdown list of failures with their reasons; empty if there are none."""
    failed = [x for x in results if "failed" in x and "passed" not in x]  # see check_kernels.py
    names = [next(x[key] for key in _NAMES if key in x) for x in failed]
    found = [f"- {name}: {x['failed']}" for name, x in zip(names, failed, strict=True)]
    counts = Counter(found)
    return "\n".join(line if n == 1 else f"{line} ({n} times)" for line, n in counts.items())


def conditions(content: dict) -> str:
    """Return the hardware, versions and rounds of the measurements, as text."""
    machine = content["machine"]
    versions = {"torch": machine["torch"], "fairseq": machine["fairseq"], **machine["peers"]}
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    hardware = f"{machine['hardware']}, {machine['cores']} cores, {machine['threads']} threads"
    rounds = content["options"].get("rounds")
    turns = f"; medians and quartiles of {rounds} rounds in turns" if rounds else ""
    return f"{hardware}; {named}{turns}."


def main(benchmark: str, options: argparse.Namespace, run: Callable, table: Callable) -> int:
    """Run a benchmark, print its table, and return the exit status.

    Args:
        run: takes the options and the :class:`Record` to add to; returns the exit status.
        table: makes the table from the results of the record.
    """
    try:
        begin(options)
        record = Record(benchmark, options)
        status = run(options, record)
    except (ValueError, OSError, RecipeError) as error:
        print(f"{benchmark}: error: {one_line(error)}", file=sys.stderr)
        return 1
    results = record.content["results"]
    print(
        *filter(None, (table(results), failures(results), conditions(record.content))), sep="\n\n"
    )
    return status or 0
