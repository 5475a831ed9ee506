#!/usr/bin/env python3
"""Speed, memory and error of the output layer: projection, loss and all gradients.

Time and memory are ratios to F.linear and F.cross_entropy in the same round: the time of a forward
and a backward pass, and the peak of PyTorch's allocations during both, gradients included (on a
CPU, only PyTorch's own allocations are counted).

linear_...   projection and loss fused; the logits are never all in memory
..._loss     the same loss on the logits of F.linear
products     with --bounds, one and three matrix products of the layer alone: exact cross-entropy
             needs at least three, a sparse loss at least one

States of the layer:

untrained    logits drawn from N(0, 1)
trained      the same logits, scaled until 1.5-entmax has the density TRAINED_DENSITY
like_model   made like our trained model, 1.5-entmax on Multi30k (docs/results.md), which gives 72.8
             tokens a nonzero probability on average, and in 8.4 % of the steps none to the target:
             targets follow Zipf's law; the logits of a row are draws from N(0, 1), plus a constant
             for the target, times a scale per row, log-normal with sigma 0.5. The scale and the
             constant are fitted to these two figures, for any vocabulary

tau of alpha-ReLU is the mean threshold of 1.5-entmax over the logits. The table has the density,
the share of the vocabulary with a probability above 0 under the row's transform; the record also
has the share of targets with probability 0.

With --errors, the loss and the gradients of that many rows are compared with fp64: the error is the
norm of the difference over the norm of the exact value, the largest of the three. --body-layers N
adds the share of a training step that each function takes, if the rest of the step is N Transformer
layers (d / 64 heads, inner width 4 d) on sentences of 64 tokens, without the update.

For the other packages see peers.py; the table marks those that are not installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import harness, peers, random_data
from command_line import script_parser

STATES = ("untrained", "trained", "like_model")
# Share of nonzeros of 1.5-entmax in the state trained.
TRAINED_DENSITY = 0.005
# Figures of the trained model, see above: support size, share of targets outside of it.
MODEL_SUPPORT, MODEL_MISSES = 72.8, 0.084
ROW_SIGMA = 0.5
ONE_PRODUCT, THREE_PRODUCTS, BODY = "one product", "three products", "body of the model"
PRODUCTS = (ONE_PRODUCT, THREE_PRODUCTS)
# Number of rows from which density and tau are estimated.
SAMPLE = 64
BASELINE = "cross_entropy"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--sizes",
        type=harness.sizes(3),
        default=harness.sizes(3)("2048x512x10000,1024x512x40000,1024x512x60000"),
        metavar="NxDxV,...",
        help="tokens, width and vocabulary (default: 2048x512x10000,1024x512x40000,1024x512x60000)",
    )
    parser.add_argument(
        "--states",
        type=harness.one_of(*STATES),
        default=list(STATES[:2]),
        metavar="NAME,...",
        help=f"among {', '.join(STATES)} (default: untrained,trained)",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only names with TEXT in them")
    parser.add_argument("--bounds", action="store_true", help="measure matrix products as well")
    parser.add_argument(
        "--errors", type=int, default=0, metavar="N", help="rows to compare with fp64 (default: 0)"
    )
    parser.add_argument(
        "--body-layers",
        type=int,
        default=0,
        metavar="N",
        help="Transformer layers of the rest of a model (default: 0)",
    )
    harness.add_dtypes(parser)
    harness.add_arguments(parser, rounds=5, least_seconds=0.2)
    return parser.parse_args(arguments)


def density(p) -> float:
    return float((p > 0).double().mean())


def scale_to_density(logits, wanted: float) -> float:
    """Return the factor of the logits at which the density of 1.5-entmax is closest to the wanted
    one."""
    from fairseq_sparse.ops import entmax15

    low, high = 1e-3, 1e3  # the larger the factor, the lower the density
    for _ in range(25):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if density(entmax15(middle * logits)) > wanted else (low, middle)
    return high


def layer_of(tokens: int, width: int, vocabulary: int, state: str, options: argparse.Namespace):
    """Return features, weight and targets; a sample of the logits in fp32, with its targets."""
    import torch

    device = options.device
    features = torch.randn(tokens, width, device=device)
    weight = torch.randn(vocabulary, width, device=device) / width**0.5
    target = torch.randint(vocabulary, (tokens,), device=device)
    if state == "like_model":
        target = zipf(tokens, vocabulary).to(device)
        features = features_like_model(features, weight, target)
    sample = features[:SAMPLE] @ weight.T
    if state == "trained":
        scale = scale_to_density(sample, TRAINED_DENSITY)
        weight, sample = scale * weight, scale * sample
    return features, weight, target, sample


def zipf(count: int, vocabulary: int):
    """Draw classes with the frequencies of words."""
    import torch

    frequency = 1 / (torch.arange(vocabulary, dtype=torch.float64) + random_data.SHIFT)
    classes = torch.multinomial(frequency, count, replacement=True)
    return torch.randperm(vocabulary)[classes]  # so that frequent classes are not adjacent


def features_like_model(features, weight, target):
    """Return features whose logits have support and misses of the trained model, see above."""
    import torch

    from fairseq_sparse.ops import entmax15

    spread = torch.randn(features.size(0), 1, device=features.device).mul(ROW_SIGMA).exp()
    directions = weight[target] / weight[target].square().sum(1, keepdim=True)
    noise, gain = (spread * x for x in (features, directions))
    label = target[:SAMPLE].unsqueeze(1)
    wanted = min(MODEL_SUPPORT / weight.size(0), 0.5)
    constant = 3.0
    for _ in range(3):  # scale and constant depend on each other a little
        logits = (noise[:SAMPLE] + constant * gain[:SAMPLE]) @ weight.T
        scale = scale_to_density(logits, wanted)
        low, high = 0.0, 50.0
        for _ in range(20):
            constant = (low + high) / 2
            logits = scale * (noise[:SAMPLE] + constant * gain[:SAMPLE]) @ weight.T
            misses = float((entmax15(logits).gather(1, label) == 0).double().mean())
            low, high = (constant, high) if misses > MODEL_MISSES else (low, constant)
    return scale * (noise + constant * gain)


def functions(tau, dtype, device: str) -> dict[str, tuple[str, Callable]]:
    """Return transform and loss (of features, weight and targets) by name, the baseline first."""
    import torch.nn.functional as F

    from fairseq_sparse.ops import (
        alpha_relu_loss,
        entmax_loss,
        linear_alpha_relu_loss,
        linear_entmax_loss,
    )

    def unfused(loss: Callable, *arguments) -> Callable:
        return lambda x, w, y: loss(F.linear(x, w), y, *arguments)

    def fused(loss: Callable, *arguments) -> Callable:
        return lambda x, w, y: loss(x, w, None, y, *arguments)

    found = {
        BASELINE: ("softmax", unfused(F.cross_entropy)),
        "linear_alpha_relu_loss": ("alpha_relu", fused(linear_alpha_relu_loss, tau)),
        "alpha_relu_loss": ("alpha_relu", unfused(alpha_relu_loss, tau)),
        "linear_entmax_loss, 1.5": ("entmax15", fused(linear_entmax_loss, 1.5)),
        "entmax_loss, 1.5": ("entmax15", unfused(entmax_loss, 1.5)),
        "linear_entmax_loss, 2": ("sparsemax", fused(linear_entmax_loss, 2.0)),
    }
    layers = peers.cross_entropy_layers(dtype, device)
    found |= {name: ("softmax", layer) for name, layer in layers.items()}
    layers = peers.entmax_layers(device)
    return found | {name: ("entmax15", layer) for name, layer in layers.items()}


def exact_loss(transform: str, logits, target, tau):
    """Return the loss of the reference backend."""
    import torch.nn.functional as F

    from fairseq_sparse import ops

    with ops.backends.use("reference"):
        if transform == "alpha_relu":
            return ops.alpha_relu_loss(logits, target, tau)
        alpha = {"entmax15": 1.5, "sparsemax": 2.0}.get(transform)
        return ops.entmax_loss(logits, target, alpha) if alpha else F.cross_entropy(logits, target)


def bounds(x, w) -> harness.Jobs:
    """Return jobs of the layer's matrix products alone."""
    import torch

    logits = torch.empty(x.size(0), w.size(0), dtype=x.dtype, device=x.device)
    x, w = x.detach(), w.detach()
    of_x, of_w = torch.empty_like(x), torch.empty_like(w)

    def three() -> None:
        torch.mm(x, w.t(), out=logits)
        torch.mm(logits, w, out=of_x)
        torch.mm(logits.t(), x, out=of_w)

    return {ONE_PRODUCT: lambda: torch.mm(x, w.t(), out=logits), THREE_PRODUCTS: three}


def body(tokens: int, width: int, dtype, options: argparse.Namespace) -> Callable[[], None]:
    """Return a job: forward and backward of the Transformer layers of a model."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    layers = torch.nn.TransformerEncoder(layer, options.body_layers, enable_nested_tensor=False)
    layers = layers.to(options.device, dtype)
    x = torch.randn(-(-tokens // 64), 64, width, device=options.device).to(dtype)

    def run() -> None:
        layers(x).sum().backward()
        layers.zero_grad(set_to_none=True)

    return run


def results_of(size: tuple[int, ...], state: str, dtype_name: str, options) -> list[dict]:
    """Measure everything about one layer."""
    import torch

    from fairseq_sparse import ops

    dtype = getattr(torch, dtype_name)
    features, weight, target, sample = layer_of(*size, state, options)
    tau = ops.tau_from_logits(sample)
    p = {
        "softmax": sample.softmax(-1),
        "alpha_relu": ops.alpha_relu(sample, tau),
        "entmax15": ops.entmax15(sample),
        "sparsemax": ops.sparsemax(sample),
    }
    label = target[:SAMPLE].unsqueeze(1)
    x, w = (tensor.to(dtype).requires_grad_() for tensor in (features, weight))
    del features, weight

    def job(loss: Callable):
        def run():
            try:
                loss(x, w, target).backward()
            finally:
                x.grad = w.grad = None

        return run

    chosen = functions(tau, dtype, options.device)
    chosen = {
        name: both for name, both in chosen.items() if name == BASELINE or options.only in name
    }
    jobs = {name: job(loss) for name, (_, loss) in chosen.items()}
    if options.bounds:
        jobs |= bounds(x, w)
    if options.body_layers:
        jobs[BODY] = body(size[0], size[1], dtype, options)
    tokens, width, vocabulary = size
    what = {"tokens": tokens, "width": width, "vocabulary": vocabulary}
    results = harness.compare(jobs, options, state=state, dtype=dtype_name, **what)
    for result, (transform, loss) in zip(results, chosen.values(), strict=False):
        result["density"] = density(p[transform])
        result["gold_at_0"] = float((p[transform].gather(1, label) == 0).double().mean())
        if options.errors and "failed" not in result:
            some = slice(options.errors)
            add_error(result, transform, loss, x[some], w, target[some], tau)
    harness.add_memory(results, jobs, options.device)
    add_shares(results, 2.0 * tokens * width * vocabulary)
    return [result for result in results if result["name"] != BODY]


def add_error(result: dict, transform: str, loss: Callable, x, w, target, tau) -> None:
    """Add the error, or why there is none."""
    import torch.nn.functional as F

    def ours(x, w):
        return loss(x, w, target)

    def exact(x, w):
        return exact_loss(transform, F.linear(x, w), target, tau)

    try:
        result["error"] = harness.error_of(ours, exact, [x, w])
    except Exception as error:  # fp64 may not fit, and third-party code can fail
        result["no_error"] = f"{type(error).__name__}: {harness.one_line(error)}"


def add_shares(results: list[dict], product: float) -> None:
    """Add TFLOP/s (counting three products), and ratios to other measurements.

    Args:
        product: floating-point operations of one product of the layer.
    """
    seconds = {result["name"]: result["seconds"] for result in results if "seconds" in result}
    for result in results:
        own = seconds.get(result["name"])
        if own is None:
            continue
        count = 1 if result["name"] == ONE_PRODUCT else 3
        result["tflops"] = count * product / statistics.median(own) / 1e12
        for name, key in ((ONE_PRODUCT, "by_one_product"), (THREE_PRODUCTS, "by_three_products")):
            if name in seconds:
                result |= harness.summary(key, harness.ratios(own, seconds[name]))
        if BODY in seconds:
            steps = [a + b for a, b in zip(own, seconds[BODY], strict=True)]
            result |= harness.summary("share_of_step", harness.ratios(own, steps))


def run(options: argparse.Namespace, record: harness.Record) -> None:
    for dtype in options.dtypes:
        for size in options.sizes:
            for state in options.states:
                record.add(results_of(size, state, dtype, options))


def table(results: list[dict]) -> str:
    from fairseq_sparse.tables.formats import format_table

    # Quantities that were not measured in any row have no column.
    more = {
        "by_one_product": ("by 1 product", "{:.2f}"),
        "by_three_products": ("by 3 products", "{:.2f}"),
        "share_of_step": ("share of step", "{:.2f}"),
        "error": ("error", "{:.1e}"),
    }
    more = {key: column for key, column in more.items() if any(key in row for row in results)}
    rows = []
    for result in results:
        size = " x ".join(str(result[name]) for name in ("tokens", "width", "vocabulary"))
        row = [result["dtype"], size, result["state"], result["name"]]
        row.append(f"{100 * result['density']:.2f}" if "density" in result else "-")
        row.append(harness.milliseconds(result))
        row += [*harness.ratio_cells(result, "time"), *harness.memory_cells(result)]
        row.append(f"{result['tflops']:.2f}" if "tflops" in result else "-")
        rows.append(
            row + [f.format(result[k]) if k in result else "-" for k, (_, f) in more.items()]
        )
    header = ["dtype", "layer", "state", "function", "density (%)", "ms", "time", "quartiles"]
    header += ["peak MiB", "memory", "TFLOP/s", *(title for title, _ in more.values())]
    return format_table(header, rows)


if __name__ == "__main__":
    harness.keep_freed_memory()
    sys.exit(harness.main("linear_loss", parse_arguments(None), run, table))
