#!/usr/bin/env python3
"""How well a fixed tangent kernel predicts the training of logits: SUE, section 4.6 and Eq. 5.

For softmax, 1.5-entmax and 1.5-ReLU alike the gradient of the loss is p - e_y, so under gradient
flow the logits of the training set follow

    dz/dt = -K(t) (p(z) - y) / n,        K(t) = J(t) J(t)^T,

and the paper argues that in the limit of infinite width K stays at its initial value. It gives no
experiment; this is one. Networks with a hidden layer of ReLUs, f(x) = A relu(B x / sqrt(d)) /
sqrt(width) with standard normal A and B, are trained by small full-batch steps on the same points
from the same weights for each output. For each width the table has

    drift       |K(T) - K(0)| / |K(0)| at the end of the training
    derivative  the mean of |dz/dt + K(0) (p - y) / n| over the training, divided by that of |dz/dt|
    logits      |z(T) - z'(T)| / |z(T) - z(0)|, z' the solution of the equation with K(0) fixed
    loss        at the end, divided by that of the untrained network

The paper's claim is that the first three vanish with the width, for each output. OUT.json has all
numbers, OUT.png and OUT.svg the first two by width.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

# scripts/ is the import path of the helpers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from command_line import exit_status, numbers, positive, report_errors, script_parser  # noqa: E402
from fairseq_sparse.files import write_json  # noqa: E402
from fairseq_sparse.ops import alpha_relu, alpha_relu_loss, entmax15, entmax_loss, tau_from_logits  # noqa: E402
from fairseq_sparse.plots.pictures import colours_of, require_matplotlib, save_figure  # noqa: E402
from fairseq_sparse.tables.formats import format_table  # noqa: E402

OUTPUTS = ("softmax", "1.5-entmax", "1.5-ReLU")
MEASURES = ("drift", "derivative", "logits", "loss")
INPUTS, CLASSES, POINTS = 16, 10, 32
# The largest step of Euler's method, times the largest eigenvalue of K(0) / n.
STEP = 0.05


def probabilities(output: str, z: Tensor, tau: Tensor) -> Tensor:
    """Return p ``[points, classes]``; ``tau`` is the threshold of 1.5-ReLU."""
    if output == "softmax":
        return z.softmax(-1)
    return entmax15(z) if output == "1.5-entmax" else alpha_relu(z, tau, 1.5)


def loss_of(output: str, z: Tensor, target: Tensor, tau: Tensor) -> float:
    """Return the mean loss of the training set."""
    if output == "softmax":
        return F.cross_entropy(z, target).item()
    if output == "1.5-entmax":
        return entmax_loss(z, target).item()
    return alpha_relu_loss(z, target, tau).item()


class Network:
    """A network with one hidden layer in the parametrisation of the tangent kernel.

    Args:
        x: the inputs ``[points, d]``, of length sqrt(d).
        width: of the hidden layer.
    """

    def __init__(self, x: Tensor, width: int, generator: torch.Generator):
        self.x = x / x.size(1) ** 0.5
        draw = {"generator": generator, "dtype": x.dtype}
        self.inner = torch.randn(width, x.size(1), **draw)
        self.outer = torch.randn(CLASSES, width, **draw) / width**0.5

    def hidden(self) -> Tensor:
        return self.x @ self.inner.T

    def logits(self) -> Tensor:
        return self.hidden().relu() @ self.outer.T

    def kernel(self) -> Tensor:
        """Return K ``[points * classes, points * classes]``, the sum over both layers."""
        hidden = self.hidden()
        features = hidden.relu()  # [points, width]
        width = features.size(1)
        of_outer = torch.einsum("iw,jw->ij", features, features) / width
        # d z_ik / d hidden_iw: [points, classes, width], without the 1 / sqrt(width) of the step
        slopes = (hidden > 0).to(features).unsqueeze(1) * self.outer
        of_inner = torch.einsum("ikw,jlw->ikjl", slopes, slopes)
        of_inner *= (self.x @ self.x.T)[:, None, :, None]
        eye = torch.eye(CLASSES, dtype=features.dtype)
        kernel = of_outer[:, None, :, None] * eye[:, None, :] + of_inner
        size = kernel.size(0) * kernel.size(1)
        return kernel.reshape(size, size)

    def step(self, residual: Tensor, size: float) -> None:
        """Take a step down the gradient whose part at the logits is ``residual``."""
        hidden = self.hidden()
        width = hidden.size(1)
        slopes = (residual @ self.outer) * (hidden > 0)
        self.outer -= size / width * residual.T @ hidden.relu()
        self.inner -= size * slopes.T @ self.x


def train(output: str, width: int, steps: int, seed: int) -> dict[str, float]:
    """Train one network, and return its measures."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(POINTS, INPUTS, generator=generator, dtype=torch.float64)
    x *= INPUTS**0.5 / x.norm(dim=1, keepdim=True)
    target = torch.randint(CLASSES, (POINTS,), generator=generator)
    gold = F.one_hot(target, CLASSES).to(x)
    network = Network(x, width, generator)
    start, kernel = network.logits(), network.kernel()
    tau = tau_from_logits(start, 1.5)
    size = STEP * POINTS / torch.linalg.eigvalsh(kernel)[-1].item()
    z, linear = start, start.clone()
    moved = missed = 0.0
    for _ in range(steps):
        residual = (probabilities(output, z, tau) - gold) / POINTS
        network.step(residual, size)
        after = network.logits()
        predicted = -size * (kernel @ residual.flatten()).view_as(z)
        moved += (after - z).norm().item()
        missed += (after - z - predicted).norm().item()
        fixed = (probabilities(output, linear, tau) - gold) / POINTS
        linear = linear - size * (kernel @ fixed.flatten()).view_as(z)
        z = after
    return {
        "drift": ((network.kernel() - kernel).norm() / kernel.norm()).item(),
        "derivative": missed / moved,
        "logits": ((z - linear).norm() / (z - start).norm()).item(),
        "loss": loss_of(output, z, target, tau) / loss_of(output, start, target, tau),
    }


def measure(options: argparse.Namespace) -> list[dict]:
    """Return the means over the seeds for each output and width."""
    results = []
    for width in options.widths:
        for output in OUTPUTS:
            runs = [
                train(output, width, options.steps, seed) for seed in range(1, options.seeds + 1)
            ]
            means = {name: fmean(run[name] for run in runs) for name in MEASURES}
            results.append({"output": output, "width": width, **means})
            print(f"width {width}, {output}: drift {means['drift']:.3f}", file=sys.stderr)
    return results


def draw(results: list[dict], path: Path) -> None:
    """Draw the drift of the kernel, and the error of its prediction, by the width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    titles = ("drift of the kernel", "error of dz/dt as the first kernel predicts it")
    colours = colours_of(OUTPUTS)
    for axes, name, title in zip(figure.subplots(1, 2), MEASURES, titles, strict=False):
        for output in OUTPUTS:
            points = [row for row in results if row["output"] == output]
            widths, values = zip(*((row["width"], row[name]) for row in points), strict=True)
            axes.loglog(widths, values, "o-", color=colours[output], label=output)
        first = max(row[name] for row in results if row["width"] == widths[0])
        slope = [1.5 * first * (widths[0] / width) ** 0.5 for width in widths]
        axes.loglog(widths, slope, color="grey", linestyle="dotted", label="1 / √width")
        axes.set(xlabel="width of the hidden layer", title=title)
        axes.legend(fontsize="small")
    for kind in ("png", "svg"):
        save_figure(figure, path.with_name(f"{path.name}.{kind}"))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="without suffix")
    parser.add_argument(
        "--widths",
        type=lambda text: sorted({int(width) for width in numbers(text)}),
        default=[64, 256, 1024, 4096, 16384],
        metavar="N,...",
        help="(default: 64,256,1024,4096,16384)",
    )
    parser.add_argument("--steps", type=positive, default=2000, help="of training (default: 2000)")
    parser.add_argument("--seeds", type=positive, default=3, help="(default: 3)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    require_matplotlib()
    results = measure(options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    facts = {"steps": options.steps, "seeds": options.seeds, "results": results}
    write_json(options.output.with_name(f"{options.output.name}.json"), facts)
    draw(results, options.output)
    rows = [
        [row["output"], f"{row['width']:,}", *(f"{row[name]:.3f}" for name in MEASURES)]
        for row in results
    ]
    print(format_table(["output", "width", *MEASURES], rows))


def main(arguments: list[str] | None = None) -> int:
    return report_errors("tangent_kernel", run, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["matplotlib"]))
