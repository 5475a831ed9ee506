"""Benchmark of attention without the projections: the part ``attend`` of attention.py."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable

from benchmark import harness, peers

STOCK = "stock"
# `entmax` with its alpha learned for each head.
LEARNED = "entmax_learned"
# Up to this length, a causal mask is a tensor, cut from a stored one, as in fairseq.
LONGEST_MASK = 4096
QUERIES_OF_ZEROS = 64

# By name: the kind of attention, and a function of query (scaled), key and value.
Functions = dict[str, tuple[str, Callable]]


def attend_jobs(options: Namespace, length: int, batch: int, dtype) -> harness.Jobs:
    """Make jobs: forward and backward of attention without the projections."""
    *inputs, gradient, masked = drawn_heads(options, length, batch)
    inputs = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    gradient = gradient.to(dtype)

    def job(function):
        def run():
            try:
                output = function(*inputs)
                output.backward(gradient.to(output.dtype))
            finally:
                for tensor in inputs:
                    tensor.grad = None

        return run

    functions = attend_functions(options, length, dtype, masked)
    return {name: job(function) for name, (_, function) in functions.items()}


def drawn_heads(options: Namespace, length: int, batch: int) -> tuple:
    """Return query, key, value and the gradient of the result in fp32, and the padding or None."""
    import torch

    head_dim = options.model_dim // options.heads
    drawn = torch.randn(4, batch, options.heads, length, head_dim, device=options.device)
    drawn[0] *= options.spread / head_dim**0.5
    if not options.padded:
        return *drawn, None
    lengths = torch.randint(-(-length // 2), length + 1, (batch, 1))
    return *drawn, (torch.arange(length) >= lengths).to(options.device)


def attend_functions(options: Namespace, length: int, dtype, masked) -> Functions:
    """Return attention of query, key and value, stock first."""
    import torch
    import torch.nn.functional as F

    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
    from fairseq_sparse.ops.masks import causal_mask

    device, causal, dropout = options.device, options.causal, options.attention_dropout
    head_dim = options.model_dim // options.heads
    bias = None
    if causal and length <= LONGEST_MASK:
        like = torch.empty(0, dtype=dtype, device=device)
        bias = causal_mask(length, length, like)[:length, :length]
    settings = {"masked": masked, "bias": bias, "causal": causal, "dropout": dropout}
    seen = None if masked is None else ~masked[:, None, None]
    found: Functions = {
        STOCK: (
            "softmax",
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, is_causal=causal, dropout_p=dropout, scale=1.0
            ),
        )
    }
    weights = set()
    for name in options.kinds:
        kind = ATTENTION_KINDS.get(name)
        if name == LEARNED:
            alpha = torch.full((options.heads, 1, 1), 1.5, device=device, requires_grad=True)
            found[name] = ("entmax15", sparse("entmax", alpha=alpha, **settings))
        elif kind is not None and kind.weights not in weights:  # otherwise only the norm differs
            weights.add(kind.weights)
            found[name] = (name, sparse(name, **settings))
    others = peers.softmax_attentions(dtype, device, causal, dropout, masked is not None)
    found |= {name: ("softmax", function) for name, function in others.items()}
    if masked is None and dropout == 0:
        others = peers.entmax_attentions(device, causal, head_dim)
        found |= {name: ("entmax15", function) for name, function in others.items()}
    return found


def sparse(name: str, **settings) -> Callable:
    """Return a kind of attention as a function of query, key and value."""
    from fairseq_sparse import ops
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

    kind = ATTENTION_KINDS[name]
    fixed = kind.takes_alpha and settings.get("alpha") is None
    weights = kind.weights.with_alpha(1.5) if fixed else kind.weights
    return lambda q, k, v: ops.attend(q, k, v, weights, **settings)[0]


def add_attend_figures(
    results: list[dict], options: Namespace, length: int, batch: int, dtype
) -> None:
    """Add TFLOP/s, the share of weights that are 0, and errors."""
    products = 7.0 * 2 * batch * length**2 * options.model_dim
    for result in results:
        if "seconds" in result:
            work = products / (2 if options.causal else 1)
            result["tflops"] = work / statistics.median(result["seconds"]) / 1e12
    *inputs, masked = drawn_heads(options, length, 1)
    without_dropout = Namespace(**{**vars(options), "attention_dropout": 0.0})
    functions = attend_functions(without_dropout, length, dtype, masked)
    for result in results:
        kind, function = functions.get(result["attention"], (None, None))
        if kind is None or "failed" in result:
            continue
        if kind != "softmax":
            result["zeros"] = share_of_zeros(kind, inputs[0], inputs[1], masked)
        if length <= options.errors:
            exact = sparse(kind, masked=masked, causal=options.causal)
            *given, gradient = (tensor.to(dtype) for tensor in inputs)
            try:
                result["error"] = harness.error_of(function, exact, given, gradient)
            except Exception as error:  # third-party code can fail in any way
                result["no_error"] = f"{type(error).__name__}: {harness.one_line(error)}"


def share_of_zeros(kind: str, query, key, masked) -> float:
    """Return the share of zero weights, for the last queries and all keys except padding."""
    from fairseq_sparse import ops
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

    kind = ATTENTION_KINDS[kind]
    weights = kind.weights.with_alpha(1.5) if kind.takes_alpha else kind.weights
    last = query[:, :, -QUERIES_OF_ZEROS:]
    found = ops.attend(last, key, key, weights, masked=masked, need_weights=True)[1]
    if masked is not None:
        found = found[..., ~masked[0]]
    return float((found == 0).double().mean())
