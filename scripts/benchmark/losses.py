#!/usr/bin/env python3
"""Speed of mappings and losses, given logits: forward and gradient.

loss       each loss as a ratio to F.cross_entropy in the same round
mapping    each mapping as a ratio to torch.softmax
algorithm  the loss of 1.5-entmax by each --output-algorithm, in PyTorch, and by our kernel
step       the same of a step of decoding: output layer of width 512, log-probabilities, and the ten
           best tokens of each row, without gradients

The logits are drawn from N(0, 1), similar to those of an untrained fairseq model; tau of alpha-ReLU
is the mean threshold of 1.5-entmax over them, as with --output-tau data.

Besides fairseq_sparse.ops, these are measured: the package `entmax`, if installed (its loss over
the 100 largest logits, with a full sort, and by bisection, with the smallest number of steps that
reaches our accuracy, or nearly its best); on a GPU, from peers.py, the cross-entropies of
Liger-Kernel and QuACK, and adasplash's mapping in both versions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import harness, peers
from command_line import script_parser

PARTS = ("loss", "mapping", "algorithm", "step")
# Width of the output layer, and number of tokens that a beam of 5 looks at, of the part step.
WIDTH, BEST = 512, 10
# Other values of alpha in (1, 2] should cost about the same.
ALPHAS = (1.25, 1.75)
PARTIAL, SORT, BISECTION = "entmax package, k=100", "entmax package, sort", "entmax package, bisect"
MOST_STEPS = 60


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--parts",
        type=harness.one_of(*PARTS),
        default=list(PARTS[:2]),
        metavar="NAME,...",
        help=f"among {', '.join(PARTS)} (default: loss,mapping)",
    )
    parser.add_argument(
        "--sizes",
        type=harness.sizes(2),
        default=harness.sizes(2)("512x10000,512x40000,4096x10000"),
        metavar="NxV,...",
        help="rows and vocabulary (default: 512x10000,512x40000,4096x10000)",
    )
    harness.add_dtypes(parser)
    harness.add_arguments(parser, rounds=7, least_seconds=0.2)
    return parser.parse_args(arguments)


def losses(z, target) -> dict[str, Callable]:
    """Return losses of logits and targets, cross-entropy first."""
    import torch.nn.functional as F

    from fairseq_sparse.ops import alpha_relu_loss, entmax_loss, tau_from_logits

    def entmax(alpha: float) -> Callable:
        return lambda z, target: entmax_loss(z, target, alpha, reduction="sum")

    tau = tau_from_logits(z.detach())
    found = {
        "cross_entropy": lambda z, target: F.cross_entropy(z, target, reduction="sum"),
        "alpha_relu_loss": lambda z, target: alpha_relu_loss(z, target, tau, reduction="sum"),
        "entmax_loss, 1.5": entmax(1.5),
        "entmax_loss, 2": entmax(2.0),
    }
    found |= {f"entmax_loss, {alpha}": entmax(alpha) for alpha in ALPHAS}
    if find_spec("entmax") and z.dtype.itemsize >= 4:  # its sums are inexact in half precision
        from entmax.losses import entmax15_loss, entmax_bisect_loss

        steps = equal_accuracy_steps(z.detach())
        found |= {
            PARTIAL: lambda z, target: entmax15_loss(z, target, 100).sum(),
            SORT: lambda z, target: entmax15_loss(z, target).sum(),
            f"{BISECTION} {steps}": lambda z, target: entmax_bisect_loss(
                z, target, n_iter=steps
            ).sum(),
        }
    return found | peers.cross_entropies(z)


def equal_accuracy_steps(z) -> int:
    """Return how many bisections bring the package's 1.5-entmax as close to fp64 as ours.

    If it does not get that close, twice its smallest error is the limit.
    """
    from entmax import entmax_bisect

    from fairseq_sparse.ops import entmax15

    rows = z[:64]
    exact = entmax15(rows.double())
    errors = [entmax_bisect(rows, n_iter=steps) for steps in range(1, MOST_STEPS + 1)]
    errors = [float((p.double() - exact).abs().max()) for p in errors]
    ours = float((entmax15(rows).double() - exact).abs().max())
    enough = max(ours, 2 * min(errors))
    return 1 + next(index for index, error in enumerate(errors) if error <= enough)


def mappings(z) -> dict[str, Callable]:
    """Return mappings of logits, softmax first."""
    import torch

    from fairseq_sparse import ops

    def entmax(alpha: float) -> Callable:
        return lambda z: ops.entmax(z, alpha)

    tau = ops.tau_from_logits(z.detach())
    found = {
        "torch.softmax": lambda z: torch.softmax(z, -1),
        "alpha_relu": lambda z: ops.alpha_relu(z, tau),
        "entmax15": ops.entmax15,
        "sparsemax": ops.sparsemax,
    }
    found |= {f"entmax, {alpha}": entmax(alpha) for alpha in ALPHAS}
    if find_spec("entmax") and z.dtype.itemsize >= 4:
        from entmax import entmax15, sparsemax

        found |= {
            "entmax package, entmax15": lambda z: entmax15(z, dim=-1),
            "entmax package, sparsemax": lambda z: sparsemax(z, dim=-1),
        }
    return found | peers.entmax_mappings(z)


def algorithms(size: int, tau: float, device) -> dict[str, tuple[str, object]]:
    """Return backend and output layer by name, softmax first.

    All but softmax and those of our kernels are computed by PyTorch functions in Python.
    """
    import torch

    from fairseq_sparse.modules import OutputProjection

    linear = torch.nn.Linear(WIDTH, size, bias=False, device=device)
    torch.nn.init.normal_(linear.weight, std=WIDTH**-0.5)
    entmax = {"newton": "our search", "sort": "full sort", "partial": "k = 100"}
    entmax["bisect"] = "bisection"
    found = {"softmax": ("auto", OutputProjection(linear))}
    for backend, where in (("auto", "kernel"), ("reference", "PyTorch")):
        layer = OutputProjection(linear, "alpha_relu", tau=tau).to(device)
        found[f"1.5-ReLU, {where}"] = (backend, layer)
        for algorithm in entmax if backend == "reference" else ("newton",):
            layer = OutputProjection(linear, "entmax15", algorithm=algorithm)
            found[f"1.5-entmax, {entmax[algorithm]}, {where}"] = (backend, layer)
    return found


def algorithm_jobs(part: str, z, target) -> harness.Jobs:
    """Return a step of training, given logits, or of decoding, by each algorithm."""
    import torch

    from fairseq_sparse.ops import backends, tau_from_logits

    features = torch.randn(z.size(0), WIDTH, device=z.device)

    def job(backend, layer):
        transform = layer.transform

        def loss():
            logits.grad = None
            transform.loss(logits, target, reduction="sum").backward()

        def step():
            transform.log_probs(layer(features)).topk(BEST)

        def run():
            with backends.use(backend), torch.set_grad_enabled(part == "algorithm"):
                loss() if part == "algorithm" else step()

        return run

    logits = own_copy(z)
    layers = algorithms(z.size(1), float(tau_from_logits(z)), z.device)
    return {name: job(*layer) for name, layer in layers.items()}


def jobs_of(part: str, rows: int, vocabulary: int, dtype, device: str) -> harness.Jobs:
    """Return jobs by name: a forward and a backward pass of each loss or mapping."""
    import torch

    z = torch.randn(rows, vocabulary, device=device).to(dtype)
    target = torch.randint(vocabulary, (rows,), device=device)
    gradient = torch.randn(rows, vocabulary, device=device).to(dtype)
    if part in ("algorithm", "step"):
        return algorithm_jobs(part, z, target)

    def loss_job(function):
        logits = own_copy(z)

        def run():
            logits.grad = None
            function(logits, target).backward()

        return run

    def mapping_job(function):
        logits = own_copy(z)

        def run():
            logits.grad = None
            p = function(logits)
            p.backward(gradient.to(p.dtype))

        return run

    if part == "loss":
        return {name: loss_job(function) for name, function in losses(z, target).items()}
    return {name: mapping_job(function) for name, function in mappings(z).items()}


def own_copy(z):
    """Copy the logits for each job: Liger-Kernel writes the gradient over them."""
    return z.clone().requires_grad_()


def run(options: argparse.Namespace, record: harness.Record) -> None:
    import torch

    for part in options.parts:
        for dtype in options.dtypes:
            for rows, vocabulary in options.sizes:
                jobs = jobs_of(part, rows, vocabulary, getattr(torch, dtype), options.device)
                what = {"part": part, "dtype": dtype, "rows": rows, "vocabulary": vocabulary}
                record.add(harness.compare(jobs, options, **what))


def table(results: list[dict]) -> str:
    from fairseq_sparse.tables.formats import format_table

    rows = [
        [result["dtype"], f"{result['rows']} x {result['vocabulary']}", result["name"]]
        + [harness.milliseconds(result), *harness.ratio_cells(result, "time")]
        for result in results
    ]
    return format_table(["dtype", "logits", "function", "ms", "time", "quartiles"], rows)


if __name__ == "__main__":
    harness.keep_freed_memory()
    sys.exit(harness.main("losses", parse_arguments(None), run, table))
