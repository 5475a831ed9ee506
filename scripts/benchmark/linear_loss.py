#!/usr/bin/env python3
"""Speed and memory of the output layer: projection, loss and all gradients.

Each is a ratio to F.linear and F.cross_entropy in the same round: the time of a forward and a
backward pass, and the peak of what PyTorch allocated during both, gradients included (on a CPU the
allocations of PyTorch alone are counted).

linear_...   projection and loss in one, the logits never all in memory
..._loss     the same loss on the logits of F.linear

Two states of the layer: `untrained`, whose logits are drawn from N(0, 1), and `trained`, where the
same logits are scaled until 1.5-entmax has the density --trained-density. tau of alpha-ReLU is the
mean threshold of 1.5-entmax over them. The density in the table is the share of the vocabulary with
a probability above 0 under the transform of the row.

Where they are installed: F.linear_cross_entropy of newer PyTorch, and on a GPU Liger-Kernel's fused
linear cross-entropy and Apple's cut cross-entropy (in half precision alone).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

# As in every script: what is imported lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import measure

STATES = ("untrained", "trained")
# Density and tau are estimated from so many rows.
SAMPLE = 64
BASELINE = "cross_entropy"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = measure.argument_parser(__doc__)
    parser.add_argument(
        "--sizes",
        type=measure.sizes(3),
        default=measure.sizes(3)("2048x512x10000,1024x512x40000,1024x512x60000"),
        metavar="NxDxV,...",
        help="tokens, width and vocabulary (default: 2048x512x10000,1024x512x40000,1024x512x60000)",
    )
    parser.add_argument(
        "--states",
        type=measure.one_of(*STATES),
        default=list(STATES),
        metavar="NAME,...",
        help="what to measure (default: untrained,trained)",
    )
    parser.add_argument(
        "--trained-density",
        type=float,
        default=0.005,
        metavar="P",
        help="of 1.5-entmax in the state trained (default: 0.005)",
    )
    measure.add_dtypes(parser)
    measure.add_arguments(parser, rounds=5, least_seconds=0.2)
    options = parser.parse_args(arguments)
    if not 0 < options.trained_density < 1:
        parser.error(f"--trained-density {options.trained_density}: must be in (0, 1)")
    return options


def density(p) -> float:
    return float((p > 0).double().mean())


def scale_to_density(logits, wanted: float) -> float:
    """Return the factor of the logits that gives 1.5-entmax the density wanted, or the nearest to
    it."""
    from fairseq_sparse.ops import entmax15

    low, high = 1e-3, 1e3  # the larger the factor, the lower the density
    for _ in range(25):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if density(entmax15(middle * logits)) > wanted else (low, middle)
    return high


def layer_of(tokens: int, width: int, vocabulary: int, state: str, options: argparse.Namespace):
    """Return features, weight, targets; a sample of the logits in fp32."""
    import torch

    device = options.device
    features = torch.randn(tokens, width, device=device)
    weight = torch.randn(vocabulary, width, device=device) / width**0.5
    sample = features[:SAMPLE] @ weight.T
    if state == "trained":
        scale = scale_to_density(sample, options.trained_density)
        weight, sample = scale * weight, scale * sample
    return features, weight, torch.randint(vocabulary, (tokens,), device=device), sample


def functions(tau, dtype, device: str) -> dict[str, tuple[str, Callable]]:
    """Return the transform and the loss of features, weight and targets, by name; the baseline
    first."""
    import torch
    import torch.nn.functional as F

    from fairseq_sparse.ops import (
        alpha_relu_loss,
        entmax_loss,
        linear_alpha_relu_loss,
        linear_entmax_loss,
    )

    def unfused(loss: Callable, *arguments) -> Callable:
        return lambda x, w, y: loss(F.linear(x, w), y, *arguments)

    def in_one(loss: Callable, *arguments) -> Callable:
        return lambda x, w, y: loss(x, w, y, *arguments)

    found = {
        BASELINE: ("softmax", unfused(F.cross_entropy)),
        "linear_alpha_relu_loss": ("alpha_relu", in_one(linear_alpha_relu_loss, tau)),
        "alpha_relu_loss": ("alpha_relu", unfused(alpha_relu_loss, tau)),
        "linear_entmax_loss, 1.5": ("entmax15", in_one(linear_entmax_loss, 1.5)),
        "entmax_loss, 1.5": ("entmax15", unfused(entmax_loss, 1.5)),
        "linear_entmax_loss, 2": ("sparsemax", in_one(linear_entmax_loss, 2.0)),
    }
    if hasattr(F, "linear_cross_entropy"):
        found["F.linear_cross_entropy"] = ("softmax", in_one(F.linear_cross_entropy))
    if device != "cpu" and find_spec("liger_kernel"):
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        found["Liger, in one"] = ("softmax", in_one(liger_fused_linear_cross_entropy))
    if device != "cpu" and find_spec("cut_cross_entropy") and dtype != torch.float32:
        from cut_cross_entropy import linear_cross_entropy

        found["Apple, in one"] = ("softmax", in_one(linear_cross_entropy))
    return found


def results_of(size: tuple[int, ...], state: str, dtype_name: str, options) -> list[dict]:
    """Measure everything about one layer."""
    import torch

    from fairseq_sparse import ops

    dtype = getattr(torch, dtype_name)
    features, weight, target, sample = layer_of(*size, state, options)
    tau = ops.tau_from_logits(sample)
    densities = {
        "softmax": 1.0,
        "alpha_relu": density(ops.alpha_relu(sample, tau)),
        "entmax15": density(ops.entmax15(sample)),
        "sparsemax": density(ops.sparsemax(sample)),
    }
    x, w = (tensor.to(dtype).requires_grad_() for tensor in (features, weight))

    def job(loss: Callable):
        def run():
            loss(x, w, target).backward()
            x.grad = w.grad = None

        return run

    chosen = functions(tau, dtype, options.device)
    jobs = {name: job(loss) for name, (_, loss) in chosen.items()}
    tokens, width, vocabulary = size
    what = {"tokens": tokens, "width": width, "vocabulary": vocabulary}
    results = measure.compare(jobs, options, state=state, dtype=dtype_name, **what)
    for result, (transform, _) in zip(results, chosen.values(), strict=True):
        result["density"] = densities[transform]
    measure.add_memory(results, jobs, options.device)
    return results


def run(options: argparse.Namespace, record: measure.Record) -> None:
    for dtype in options.dtypes:
        for size in options.sizes:
            for state in options.states:
                record.add(results_of(size, state, dtype, options))


def table(results: list[dict]) -> str:
    from fairseq_sparse.analysis.markdown import markdown_table

    rows = []
    for result in results:
        size = " x ".join(str(result[name]) for name in ("tokens", "width", "vocabulary"))
        row = [result["dtype"], size, result["state"], result["name"]]
        row += [f"{100 * result['density']:.2f}", measure.milliseconds(result)]
        row += [*measure.ratio_cells(result, "time"), *measure.memory_cells(result)]
        rows.append(row)
    header = ["dtype", "layer", "state", "function", "density (%)", "ms", "time", "quartiles"]
    return markdown_table([*header, "peak MiB", "memory"], rows)


if __name__ == "__main__":
    measure.keep_freed_memory()
    sys.exit(measure.main("linear_loss", parse_arguments(None), run, table))
