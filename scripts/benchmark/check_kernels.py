#!/usr/bin/env python3
"""Check every function of fairseq_sparse.ops that has a kernel on this device against fp64.

Values and gradients for rounded inputs are compared with those of the same function in fp64 on the
CPU, which runs plain PyTorch. The error is the Euclidean norm of the difference over that of the
reference; its bound is two units of rounding of the dtype (fp32: 1e-4, for sums in another order).
A kernel that PyTorch replaces, because it was wrong at its first use, fails, too. The script needs
only PyTorch; `pytest -m gpu` checks more. It exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import harness
from command_line import script_parser

BOUNDS = {"float32": 1e-4, "bfloat16": 2 * 2**-7, "float16": 2 * 2**-10}
ROWS = ((64, 1000), (8, 40001), (2, 262144))
IGNORED = 3
# Largest number of failures in the table.
MOST_FAILURES = 40

# The name, a function of tensors, the tensors that get a gradient, and its other arguments.
Check = tuple[str, Callable, dict, dict]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--rows",
        type=harness.sizes(2),
        default=list(ROWS),
        metavar="NxV,...",
        help="sizes of logits (default: 64x1000,8x40001,2x262144)",
    )
    harness.add_dtypes(parser)
    harness.add_run_arguments(parser)
    return parser.parse_args(arguments)


def checks_of_rows(size: tuple[int, int]) -> Iterator[Check]:
    """Yield checks of mappings and losses of logits."""
    import torch

    from fairseq_sparse import ops

    z = {"z": 2 * torch.randn(size, dtype=torch.float64)}
    target = torch.randint(IGNORED + 1, size[1], size[:1])
    target[0] = IGNORED
    tau = float(ops.tau_from_logits(z["z"]))
    shape = f"{size[0]} x {size[1]}"
    yield f"alpha_relu {shape}", lambda z: ops.alpha_relu(z, tau), z, {}
    for alpha in (1.25, 1.5, 1.75, 2.0):
        yield f"entmax {alpha} {shape}", partial(entmax, alpha=alpha), z, {}
    for smoothing in (0.0, 0.1):
        settings = {"label_smoothing": smoothing, "ignore_index": IGNORED, "reduction": "none"}
        name = f"{shape} smoothing {smoothing}"
        loss = partial(ops.alpha_relu_loss, tau=tau, **settings)
        yield f"alpha_relu_loss {name}", loss, z, {"target": target}
        for alpha in (1.25, 1.5, 2.0):
            loss = partial(ops.entmax_loss, alpha=alpha, **settings)
            yield f"entmax_loss {alpha} {name}", loss, z, {"target": target}


def entmax(z, alpha: float):
    """Compute the mapping by its special function, if there is one."""
    from fairseq_sparse import ops

    own = {1.5: ops.entmax15, 2.0: ops.sparsemax}
    return own[alpha](z) if alpha in own else ops.entmax(z, alpha)


def checks_of_layers() -> Iterator[Check]:
    """Yield checks of the fused output layer."""
    import torch

    from fairseq_sparse import ops

    tokens, width, vocabulary = 130, 64, 5003
    inputs = {
        "features": torch.randn(tokens, width, dtype=torch.float64),
        "weight": torch.randn(vocabulary, width, dtype=torch.float64) / width**0.5,
        "bias": torch.randn(vocabulary, dtype=torch.float64) / 4,
    }
    target = torch.randint(IGNORED + 1, vocabulary, (tokens,))
    target[5] = IGNORED
    tau = float(ops.tau_from_logits(inputs["features"] @ inputs["weight"].T + inputs["bias"]))
    for smoothing in (0.0, 0.1):
        settings = {"label_smoothing": smoothing, "ignore_index": IGNORED, "reduction": "sum"}
        loss = partial(ops.linear_alpha_relu_loss, tau=tau, **settings)
        yield f"linear_alpha_relu_loss smoothing {smoothing}", loss, inputs, {"target": target}
        for alpha in (1.25, 1.5, 2.0):
            loss = partial(ops.linear_entmax_loss, alpha=alpha, **settings)
            name = f"linear_entmax_loss {alpha} smoothing {smoothing}"
            yield name, loss, inputs, {"target": target}


def checks_of_attention() -> Iterator[Check]:
    """Yield checks of rectified and entmax attention: head sizes, incomplete blocks, masks."""
    import torch

    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
    from fairseq_sparse.ops import attend
    from fairseq_sparse.ops.masks import causal_mask

    def result(query, key, value, kind, causal=False, masked=None):
        kind = ATTENTION_KINDS[kind]
        settings = {"masked": masked, "sums_to_one": kind.sums_to_one}
        if causal:
            n = query.size(2)
            # Cut from a stored mask, as in fairseq.
            settings.update(bias=causal_mask(n, n, query)[:n, :n], causal=True)
        return attend(query, key, value, kind.weights, **settings)[0]

    for kind in ("rela_g", "entmax15"):
        for width, queries, keys in ((32, 70, 70), (64, 333, 333), (80, 40, 517), (128, 129, 129)):
            inputs = {
                "query": torch.randn(2, 3, queries, width, dtype=torch.float64) / width**0.5,
                "key": torch.randn(2, 3, keys, width, dtype=torch.float64),
                "value": torch.randn(2, 3, keys, width, dtype=torch.float64),
            }
            masked = torch.zeros(2, keys, dtype=torch.bool)
            masked[0, -keys // 3 :] = True
            name = f"attend {kind} {queries} x {keys} heads of {width}"
            function = partial(result, kind=kind)
            yield name, function, inputs, {}
            yield f"{name} padded", function, inputs, {"masked": masked}
            if queries == keys:
                function = partial(result, kind=kind, causal=True)
                yield f"{name} causal", function, inputs, {}
                yield f"{name} causal, padded", function, inputs, {"masked": masked}


def errors(check: Check, dtype, device: str) -> dict[str, float]:
    """Return the errors of the value and of each gradient against fp64."""
    import torch

    _, function, inputs, others = check
    rounded = {name: tensor.to(dtype) for name, tensor in inputs.items()}

    def evaluate(dtype, device):
        own = {name: tensor.to(device, dtype, copy=True) for name, tensor in rounded.items()}
        own = {name: tensor.requires_grad_() for name, tensor in own.items()}
        value = function(**own, **{name: tensor.to(device) for name, tensor in others.items()})
        generator = torch.Generator().manual_seed(2)
        gradient = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        value.backward(gradient.to(device, value.dtype))
        found = {"value": value.detach(), **{name: tensor.grad for name, tensor in own.items()}}
        return {name: tensor.double().cpu() for name, tensor in found.items()}

    found, expected = evaluate(dtype, device), evaluate(torch.float64, "cpu")
    return {
        name: float((found[name] - expected[name]).norm() / expected[name].norm())
        for name in expected
    }


def results_of(check: Check, dtype_name: str, device: str) -> list[dict]:
    import torch

    what = {"part": "kernels", "dtype": dtype_name, "name": check[0]}
    try:
        found = errors(check, getattr(torch, dtype_name), device)
    except Exception as error:  # on any hardware
        return [
            {
                **what,
                "passed": False,
                "failed": f"{type(error).__name__}: {harness.one_line(error)}",
            }
        ]
    bound = BOUNDS[dtype_name]
    return [
        {**what, "of": name, "error": error, "bound": bound, "passed": error <= bound}
        for name, error in found.items()
    ]


def rejected_kernels() -> list[dict]:
    """Return the kernels that were wrong at their first use, so that PyTorch computed instead."""
    from fairseq_sparse.ops.gpu import verification

    what = {"part": "kernels", "dtype": "-", "passed": False}
    reason = "is not the reference's result, see the log"
    return [{**what, "name": name, "failed": reason} for name in verification.rejected()]


def run(options: argparse.Namespace, record: harness.Record) -> int:
    checks = [check for size in options.rows for check in checks_of_rows(size)]
    checks += [*checks_of_layers(), *checks_of_attention()]
    for dtype in options.dtypes:
        for check in checks:
            record.add(results_of(check, dtype, options.device))
    if options.device == "cuda":
        record.add(rejected_kernels())
    return int(bool(failures(record.content["results"])))


def failures(results: list[dict]) -> list[dict]:
    return [result for result in results if not result["passed"]]


def table(results: list[dict]) -> str:
    from fairseq_sparse.tables.formats import format_table

    failed = failures(results)
    rows = [
        [
            result["dtype"],
            result["name"],
            result.get("of", "-"),
            f"{result['error']:.1e}" if "error" in result else result.get("failed", "-"),
            f"{result['bound']:.1e}" if "bound" in result else "-",
        ]
        for result in failed[:MOST_FAILURES]
    ]
    text = f"{len(results) - len(failed)} of {len(results)} checks passed."
    header = ["dtype", "failed", "of", "error", "bound"]
    return f"{text}\n\n{format_table(header, rows)}" if failed else text


if __name__ == "__main__":
    sys.exit(harness.main("check_kernels", parse_arguments(None), run, table))
