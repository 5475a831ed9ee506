"""Send inputs of every awkward size through every CPU kernel, for sanitizers.py.

Prints the number of calls of ops, by group. Each tensor has its exact size, so that reading or
writing beyond its end is detected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Optional
from unittest import mock

# The imported modules are in scripts/.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from fairseq_sparse import ops
from fairseq_sparse.ops.cpu import attention, boundary, build, linear_loss
from fairseq_sparse.ops.reference import attention as reference
from numerics import patterns

ALPHAS = (1.05, 1.3, 1.5, 1.75, 2.0)
TAU = 0.3
SIZES = (0, 1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 512, 4096, 4097, 5001)
ROWS = (0, 1, 2, 9, 40)
WIDTHS = (1, 7, 16, 100, 513)
HEADS = (16, 32, 48, 64, 80, 128)
KEYS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 256, 300)
QUERIES = (1, 2, 5, 6, 7, 8, 9, 48, 64, 65, 130)
ATTENTIONS = 150


def backwards(*outputs: Tensor) -> None:
    """Run the backward pass of all outputs, with a random gradient of 1 and -1."""
    for output in outputs:
        if output.requires_grad:
            grad = torch.where(torch.rand(output.shape) < 0.5, 1.0, -1.0)
            torch.autograd.backward(output, grad, retain_graph=True)


def through_rows(z: Tensor, alpha: float) -> int:
    """Run every mapping and loss of rows, with gradients; return the number of calls."""
    z = z.contiguous().requires_grad_()
    count, size = z.shape
    backwards(ops.entmax(z, alpha), ops.alpha_relu(z, TAU, alpha))
    if not size:
        return 2
    learned = torch.full((count, 1), alpha, requires_grad=True)
    backwards(ops.entmax(z, learned) if alpha > 1.1 else z)
    target = torch.randint(size, (count,))
    target[::3] = -100
    options = {"label_smoothing": 0.1, "reduction": "none"}
    backwards(ops.entmax_loss(z, target, alpha, **options))
    backwards(ops.alpha_relu_loss(z, target, TAU, alpha, **options))
    backwards(ops.log_entmax(z, alpha), ops.log_alpha_relu(z, TAU, alpha))
    return 7


def patterns_of_the_sweep(most: int, seed: int) -> Iterator[int]:
    for alpha in ALPHAS:
        for batch in patterns.batches(most, alpha, seed):
            yield through_rows(batch.logits.float(), alpha)


def sizes_of_rows(most: int, seed: int) -> Iterator[int]:
    for size in SIZES:
        for count in ROWS:
            yield through_rows(torch.randn(count, size) * 3, ALPHAS[(size + count) % len(ALPHAS)])


def linear_losses(most: int, seed: int) -> Iterator[int]:
    """Run with bfloat16 screening, with few and with all candidates, and without it."""
    for size in SIZES[1:]:
        for count in ROWS:
            width = WIDTHS[(size + count) % len(WIDTHS)]
            x, w = torch.randn(count, width), torch.randn(size, width) * 3 / width**0.5
            x, w = x.requires_grad_(), w.requires_grad_()
            target = torch.randint(size, (count,))
            for screens, share in ((True, 1.0), (True, 0.05), (False, 0.0)):
                with ExitStack() as changed:
                    for name, value in (("_SCREENED_SHARE", share), ("_DENSE_SHARE", 1 - share)):
                        changed.enter_context(mock.patch.object(linear_loss, name, value))
                    patched = mock.patch.object(linear_loss, "_should_screen", return_value=screens)
                    changed.enter_context(patched)
                    alpha = choice(ALPHAS)
                    options = {"label_smoothing": 0.1, "reduction": "sum"}
                    backwards(ops.linear_entmax_loss(x, w, None, target, alpha, **options))
                    backwards(ops.linear_alpha_relu_loss(x, w, None, target, TAU, alpha))
                yield 2


def choice(choices: tuple) -> int:
    return choices[int(torch.randint(len(choices), ()))]


def heads(batch: int, number: int, time: int, width: int) -> Tensor:
    """Make ``[batch, number, time, width]``, contiguous or with the strides of a projection."""
    if torch.rand(()) < 0.5:
        return torch.randn(batch, number, time, width).requires_grad_()
    x = torch.randn(time, batch, number * width).requires_grad_()
    return x.view(time, batch, number, width).permute(1, 2, 0, 3)


def masks(batch: int, queries: int, keys: int) -> tuple:
    """Make masks of keys, for each sentence or for each query."""
    masked = bias = None
    if torch.rand(()) < 0.5:
        masked = torch.rand(batch, keys) < choice((0.1, 0.9, 1.0))
    if torch.rand(()) < 0.5:
        future = torch.full((queries, keys), choice((-1e4, float("-inf")))).triu(1)
        bias = future if torch.rand(()) < 0.7 else torch.randn(queries, keys)
    return masked, bias


def attend(
    tensors: list[Tensor],
    alpha: float,
    masked: Optional[Tensor],
    bias: Optional[Tensor],
    dropout: float,
) -> Tensor:
    """Run the operator of attention, whose kernel takes any size here if nothing is empty."""
    seed = torch.randint(1 << 62, ()) if dropout > 0 else None
    return reference.attention(*tensors, masked, bias, seed, alpha, 0.3, False, dropout)[0]


def attentions(most: int, seed: int) -> Iterator[int]:
    for number in range(ATTENTIONS):
        batch, of_each, width = choice((0, 1, 2, 3)), choice((1, 2, 5)), choice(HEADS)
        keys = KEYS[number % len(KEYS)]
        queries = choice((*QUERIES, keys))
        query, *both = (heads(batch, of_each, time, width) for time in (queries, keys, keys))
        alpha = choice((reference.RECTIFIED, *ALPHAS))
        masked, bias = masks(batch, queries, keys)
        dropout = choice((0.0, 0.3, 0.99))
        backwards(attend([query, *both], alpha, masked, bias, dropout))
        query = torch.randn(batch, of_each, 1, width)
        both = [x.detach() for x in both]
        for need_weights in (False, True):
            reference.attention_step(query, *both, masked, alpha, 0.3, need_weights)
        yield 3


def dropouts(most: int, seed: int) -> Iterator[int]:
    from fairseq_sparse.ops.dropout import dropout

    for size in (*SIZES, *range(250, 520, 7), 70000):
        for p in (0.0, 0.3, 1 - 2.0**-53):
            backwards(dropout(torch.randn(size, requires_grad=True), p))
            yield 1


GROUPS = {
    f.__name__: f
    for f in (
        *(patterns_of_the_sweep, sizes_of_rows, linear_losses, attentions),
        dropouts,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200, help="rows of patterns, for each alpha")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    if build.library() is None:
        sys.exit("there are no kernels to test")
    calls = dict.fromkeys(args.groups, 0)
    limits = {"_LEAST_SCORES": 0, "_LEAST_RECTIFIED": 0, "_LEAST_LANES": 0}
    # Use several threads even for the smallest inputs.
    with (
        mock.patch.object(boundary, "_WORK_OF_A_THREAD", -1),
        mock.patch.multiple(attention, **limits),
    ):
        for group in args.groups:
            for number, done in enumerate(GROUPS[group](args.rows, args.seed)):
                calls[group] += done
                torch.set_num_threads(number % 2 + 1)
    print(json.dumps(calls))


if __name__ == "__main__":
    main()
