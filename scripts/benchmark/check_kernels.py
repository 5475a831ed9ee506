#!/usr/bin/env python3
"""Check every function of fairseq_sparse.ops that has a kernel on this device against fp64.

Values and gradients for rounded inputs are compared with those of the same function in fp64 on the
CPU, which runs plain PyTorch. The error is the Euclidean norm of the difference over that of the
reference; its bound is two units of rounding of the dtype (fp32: 1e-4, for sums in another order).
The script needs only PyTorch; `pytest -m gpu` checks more. It exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import measure
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
        type=measure.sizes(2),
        default=list(ROWS),
        metavar="NxV,...",
        help="sizes of logits (default: 64x1000,8x40001,2x262144)",
    )
    measure.add_dtypes(parser)
    measure.add_run_arguments(parser)
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
        for alpha in (1.25, 1.5, 2.0, 3.0):
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

    def result(query, key, value, kind, causal=False, masked=None):
        kind = ATTENTION_KINDS[kind]
        settings = {"masked": masked, "sums_to_one": kind.sums_to_one}
        if causal:
            settings.update(bias=causal_mask(query), causal=True)
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


def causal_mask(query):
    """Return a causal mask, cut from a stored one, as fairseq does."""
    import torch

    length = query.size(2)
    mask = torch.full((length, length), -float("inf"), device=query.device).triu(1)
    return mask.to(query.dtype)[:length, :length]


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


def edge_cases(device: str) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield checks of special rows, in fp32."""
    import torch

    from fairseq_sparse import ops

    inf = float("inf")
    row = torch.randn(5000)
    rows = {
        "constant": torch.full((5000,), 0.7),
        "ties": row.round(),
        "large": 1e4 * row.sign(),
        "one finite": torch.full((5000,), -inf).index_fill(0, torch.tensor([77]), -3.0),
        "long": torch.randn(262144),
    }
    masked = torch.stack([torch.full_like(row, -inf), row])
    broken = torch.stack([row.index_fill(0, torch.tensor([3]), float("nan")), row])

    def sums_to_one(function: Callable, z) -> bool:
        return abs(function(z.to(device)).double().sum().item() - 1) <= 1e-6

    def is_zero(function: Callable) -> bool:
        return not function(masked.to(device))[0].any().item()

    def is_nan(function: Callable) -> bool:
        p = function(broken.to(device))
        return bool(p[0].isnan().all() and p[1].isfinite().all())

    for name, function in (("sparsemax", ops.sparsemax), ("entmax15", ops.entmax15)):
        for label, z in rows.items():
            yield f"{name} of a row: {label}: sums to 1", partial(sums_to_one, function, z)
        yield f"{name} of a masked row is 0", partial(is_zero, function)
        yield f"{name} of a NaN is NaN, in its row", partial(is_nan, function)
    yield "rectified attention to nothing is 0, with finite gradients", partial(is_null, device)
    yield "dropout of rectified attention leaves its mean", partial(keeps_mean, device)


def is_null(device: str) -> bool:
    """Return whether rectified attention is 0 if no score is above 0, with finite gradients."""
    import torch

    from fairseq_sparse.ops import attend
    from fairseq_sparse.ops.attention_weights import relu

    key = torch.rand(1, 2, 70, 32, device=device, requires_grad=True)
    query = (-torch.rand(1, 2, 70, 32, device=device)).requires_grad_()
    result, _ = attend(query, key, key, relu, sums_to_one=False)
    result.sum().backward()
    return not result.any().item() and bool(
        key.grad.isfinite().all() and query.grad.isfinite().all()
    )


def keeps_mean(device: str) -> bool:
    """Return whether dropout keeps the mean, and a seed always gives the same draw."""
    import torch

    from fairseq_sparse.ops import attend
    from fairseq_sparse.ops.attention_weights import relu

    query, key, value = torch.rand(3, 1, 2, 70, 32, device=device)

    def draw(seed: int, dropout: float = 0.5):
        torch.manual_seed(seed)
        return attend(query, key, value, relu, dropout=dropout, sums_to_one=False)[0]

    full = draw(0, dropout=0.0)
    mean = torch.stack([draw(seed) for seed in range(200)]).mean(0)
    return torch.equal(draw(1), draw(1)) and float((mean - full).norm() / full.norm()) < 0.05


def results_of(check: Check, dtype_name: str, device: str) -> list[dict]:
    import torch

    what = {"part": "kernels", "dtype": dtype_name, "name": check[0]}
    try:
        found = errors(check, getattr(torch, dtype_name), device)
    except Exception as error:  # on any hardware
        return [{**what, **failure(error)}]
    bound = BOUNDS[dtype_name]
    return [
        {**what, "of": name, "error": error, "bound": bound, "passed": error <= bound}
        for name, error in found.items()
    ]


def result_of(name: str, holds: Callable[[], bool]) -> dict:
    what = {"part": "kernels", "dtype": "float32", "name": name}
    try:
        return {**what, "passed": holds()}
    except Exception as error:  # on any hardware
        return {**what, **failure(error)}


def failure(error: Exception) -> dict:
    return {"passed": False, "failed": f"{type(error).__name__}: {measure.one_line(error)}"}


def run(options: argparse.Namespace, record: measure.Record) -> int:
    checks = [check for size in options.rows for check in checks_of_rows(size)]
    checks += [*checks_of_layers(), *checks_of_attention()]
    for dtype in options.dtypes:
        for check in checks:
            record.add(results_of(check, dtype, options.device))
    record.add([result_of(*case) for case in edge_cases(options.device)])
    return int(bool(failures(record.content["results"])))


def failures(results: list[dict]) -> list[dict]:
    return [result for result in results if not result["passed"]]


def table(results: list[dict]) -> str:
    from fairseq_sparse.analysis.markdown import markdown_table

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
    return f"{text}\n\n{markdown_table(header, rows)}" if failed else text


if __name__ == "__main__":
    sys.exit(measure.main("check_kernels", parse_arguments(None), run, table))
