#!/usr/bin/env python3
"""Speed and memory of each kind of attention, beside stock softmax attention.

attend  attention between the projections alone, forward and backward; stock is
        F.scaled_dot_product_attention, on a GPU adasplash takes part where it is installed, and of
        kinds that differ in the norm alone the first stands for all
module  one attention module over whole sentences, forward and backward
step    a training step of a whole Transformer: forward, loss, backward, no optimizer
decode  beam search of a whole Transformer, every translation of --max-len tokens

Each kind is measured beside stock (fairseq's module, its `transformer` in the last two) in the same
rounds. The speed is stock's time by the kind's time in the same round, so 2 is twice as fast; the
table has the median over the rounds, and the quartiles.

A kind is a value of --attention, or "entmax_learned" for entmax with its alpha learned for each
head (not in attend); with ":enc", ":dec" or ":cross" behind it, it is in that place alone (step and
decode).

Models have random weights, the same in all. Their scores lie evenly around 0, so about half of the
weights of rectified attention are 0; in a trained model more are. Sentences have no padding.

Memory, of all but decode, is the peak of what PyTorch allocated between start and end of a pass,
beyond parameters and inputs, gradients included. On a GPU it is that of the CUDA allocator; on a
CPU all allocations that PyTorch's profiler reports are added up, which gives the same in each run,
but leaves out what BLAS libraries allocate by themselves. The profiler itself needs up to 4 GB, for
the slowest kind and the length 4000.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

# As in every script: what is imported lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import measure
from benchmark.measure import Jobs, numbers, positive

PARTS = ("attend", "module", "step", "decode")
STOCK = "stock"
# `entmax` with its alpha learned for each head.
LEARNED = "entmax_learned"
DEFAULT_KINDS = f"rela_g,rela_i,relu,sparsemax,entmax15,{LEARNED}"


def parse_arguments(arguments: list[str] | None) -> Namespace:
    parser = measure.argument_parser(__doc__)

    def add(flag, default, help, type=positive):
        parser.add_argument(flag, default=default, type=type, help=f"{help} (default: {default})")

    add("--parts", ",".join(PARTS), "what to measure", measure.one_of(*PARTS))
    add("--kinds", DEFAULT_KINDS, f"values of --attention, or {LEARNED}", names)
    add("--lengths", "25,1000,2000,4000", "of sentences in all but decode", numbers)
    add("--decode-lengths", "25", "of the source sentences in decode", numbers)
    add("--tokens", 2000, "in a batch, on each side")
    add("--max-len", 25, "length of every translation")
    add("--beam", 5, "of the search")
    add("--model-dim", 256, "width of the module and of the Transformer")
    add("--heads", 4, "attention heads")
    add("--layers", 3, "of encoder and of decoder")
    add("--vocabulary", 8000, "entries, in common to source and target")
    add("--attention-dropout", 0.0, "in module and step", float)
    parser.add_argument("--causal", action="store_true", help="in attend, hide the keys ahead")
    measure.add_dtypes(parser)
    measure.add_arguments(parser, rounds=5, least_seconds=0.3)
    options = parser.parse_args(arguments)
    if options.model_dim % options.heads:
        parser.error(f"--heads {options.heads} does not divide --model-dim {options.model_dim}")
    if not 0 <= options.attention_dropout < 1:
        parser.error(f"--attention-dropout {options.attention_dropout}: must be in [0, 1)")
    return options


def names(text: str) -> list[str]:
    return list(dict.fromkeys(text.split(",")))


def check_kinds(kinds: list[str]) -> None:
    """Refuse what only the package can tell."""
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

    places: tuple[str, ...] = ()
    if any(":" in name for name in kinds):  # the parts that need fairseq
        from fairseq_sparse.modules.attention_config import PLACES as places
    for name in kinds:
        kind, colon, place = name.partition(":")
        if kind not in (*ATTENTION_KINDS, LEARNED) or (colon and place not in places):
            choices = ", ".join([*ATTENTION_KINDS, LEARNED])
            raise ValueError(
                f"--kinds: no {name}; choose from {choices}, for one place + :enc, :dec or :cross"
            )


# What is measured


def attend_jobs(options: Namespace, length: int, batch: int, dtype) -> Jobs:
    """Make jobs: forward and backward of the function between the projections."""
    import torch
    import torch.nn.functional as F

    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
    from fairseq_sparse.ops import attend

    head_dim = options.model_dim // options.heads
    shape = (batch, options.heads, length, head_dim)
    drawn = torch.randn(4, *shape, device=options.device)
    drawn[0] /= head_dim**0.5
    query, key, value, gradient = drawn.to(dtype)
    inputs = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    bias = None
    if options.causal:  # cut from a mask that is kept, as fairseq does it
        ahead = torch.full((length, length), -float("inf"), device=options.device).triu(1)
        bias = ahead.to(dtype)[:length, :length]

    def sparse(kind):
        weights = kind.weights.with_alpha(1.5) if kind.takes_alpha else kind.weights
        settings = {"bias": bias, "causal": bias is not None}
        return lambda q, k, v: attend(q, k, v, weights, **settings)[0]

    functions = {
        STOCK: lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=options.causal, scale=1.0
        )
    }
    weights = set()
    for name in options.kinds:
        kind = ATTENTION_KINDS.get(name)
        if kind is not None and kind.weights not in weights:  # else it differs in the norm alone
            weights.add(kind.weights)
            functions[name] = sparse(kind)
    if options.device != "cpu" and find_spec("adasplash"):
        from adasplash import adasplash

        # It scales the scores by itself.
        functions["adasplash"] = lambda q, k, v: adasplash(
            q * head_dim**0.5, k, v, alpha=1.5, is_causal=options.causal
        )

    def job(function):
        def run():
            output = function(*inputs)
            output.backward(gradient.to(output.dtype))
            for tensor in inputs:
                tensor.grad = None

        return run

    return {name: job(function) for name, function in functions.items()}


def module_jobs(options: Namespace, length: int, batch: int, dtype) -> Jobs:
    """Make jobs: forward and backward of one self-attention module, as in an encoder layer."""
    import torch
    from fairseq.modules import MultiheadAttention

    from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention

    def build(kind):
        sizes = (options.model_dim, options.heads)
        shared = {"self_attention": True, "dropout": options.attention_dropout}
        if kind == STOCK:
            return MultiheadAttention(*sizes, **shared)
        learned = kind == LEARNED
        attention = "entmax" if learned else kind
        return SparseMultiheadAttention(
            *sizes, attention=attention, alpha_learnable=learned, **shared
        )

    def job(module):
        def run():
            x = inputs.requires_grad_()
            output = module(query=x, key=x, value=x, need_weights=False)[0]
            output.backward(gradient)
            x.grad = None
            module.zero_grad(set_to_none=True)

        return run

    drawn = torch.randn(2, length, batch, options.model_dim, device=options.device)
    inputs, gradient = drawn.to(dtype)
    kinds = [kind for kind in options.kinds if ":" not in kind]
    modules = same_weights(options, kinds, build, dtype)
    return {name: job(module) for name, module in modules.items()}


def step_jobs(options: Namespace, length: int, batch: int, dtype) -> Jobs:
    """Make jobs: a training step of ``transformer_sparse`` without the optimizer."""
    import torch.nn.functional as F

    from fairseq_sparse.analysis.random_models import translation_task

    def job(model):
        def run():
            logits = model(**net_input)[0].float()
            F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
            model.zero_grad(set_to_none=True)

        return run

    task = translation_task(options.vocabulary)
    sample = random_sample(options, task, batch, length)
    net_input, target = sample["net_input"], sample["target"]
    models = same_weights(
        options, options.kinds, lambda kind: build_transformer(options, kind, task), dtype
    )
    return {name: job(model.train()) for name, model in models.items()}


def decode_jobs(options: Namespace, length: int, batch: int, dtype) -> Jobs:
    """Make jobs of beam search, each sentence to the same length; they return the hypotheses."""
    from fairseq_sparse.analysis.random_models import translation_task

    def job(model):
        model.make_generation_fast_(beamable_mm_beam_size=options.beam, need_attn=False)
        generator = task.build_generator([model], search)
        return lambda: generator.generate([model], sample)

    limits = {"max_len_a": 0, "max_len_b": options.max_len, "min_len": options.max_len}
    search = Namespace(beam=options.beam, **limits)
    task = translation_task(options.vocabulary)
    sample = random_sample(options, task, batch, length)
    models = same_weights(
        options, options.kinds, lambda kind: build_transformer(options, kind, task), dtype
    )
    return {name: job(model) for name, model in models.items()}


def random_sample(options: Namespace, task, batch: int, length: int) -> dict:
    from fairseq import utils

    from fairseq_sparse.analysis.random_models import random_batch

    sample = random_batch(task, batch, length)
    return utils.apply_to_sample(lambda tensor: tensor.to(options.device), sample)


def build_transformer(options: Namespace, kind: str, task):
    from fairseq_sparse.analysis.random_models import build_model

    flags = ["--share-all-embeddings", "--attention-dropout", options.attention_dropout]
    for part in ("encoder", "decoder"):
        flags += [f"--{part}-layers", options.layers, f"--{part}-embed-dim", options.model_dim]
        flags += [f"--{part}-attention-heads", options.heads]
        flags += [f"--{part}-ffn-embed-dim", 4 * options.model_dim]
    if kind == STOCK:
        return build_model("transformer", flags, task)
    kind, colon, place = kind.partition(":")
    flags += [f"--attention-{place}" if colon else "--attention"]
    flags += ["entmax", "--attention-alpha-learnable"] if kind == LEARNED else [kind]
    return build_model("transformer_sparse", flags, task)


def same_weights(options: Namespace, kinds: list[str], build: Callable, dtype) -> dict:
    """Return modules of stock attention and of each kind, with stock's parameters where it has
    them."""
    modules = {STOCK: build(STOCK)}
    for kind in kinds:
        modules[kind] = build(kind)
        modules[kind].load_state_dict(modules[STOCK].state_dict(), strict=False)
    return {name: module.to(options.device, dtype) for name, module in modules.items()}


JOBS = {"attend": attend_jobs, "module": module_jobs, "step": step_jobs, "decode": decode_jobs}


def results_of(part: str, dtype: str, length: int, options: Namespace) -> list[dict]:
    """Measure everything about one part and length: one result for each kind, stock first."""
    import torch

    batch = max(1, options.tokens // length)
    jobs = JOBS[part](options, length, batch, getattr(torch, dtype))
    what = {"part": part, "dtype": dtype, "length": length, "batch": batch}
    results = measure.compare(jobs, options, key="attention", **what)
    if part == "decode":
        for result in results:
            if "seconds" in result:
                result["sentences_per_second"] = batch / statistics.median(result["seconds"])
    if part != "decode":
        measure.add_memory(results, jobs, options.device)
    return results


def run(options: argparse.Namespace, record: measure.Record) -> None:
    check_kinds(options.kinds)
    for part in options.parts:
        for dtype in options.dtypes:
            for length in options.decode_lengths if part == "decode" else options.lengths:
                record.add(results_of(part, dtype, length, options))


def table(results: list[dict]) -> str:
    from fairseq_sparse.analysis.markdown import markdown_table

    rows = []
    for result in results:
        row = [result[name] for name in ("part", "dtype", "length", "batch", "attention")]
        rate = result.get("sentences_per_second")
        row += [measure.milliseconds(result), "-" if rate is None else f"{rate:.1f}"]
        rows.append(row + measure.ratio_cells(result, "speed") + measure.memory_cells(result))
    header = ["part", "dtype", "length", "batch", "attention", "ms", "sentences/s", "speed"]
    return markdown_table([*header, "quartiles", "peak MiB", "memory"], rows)


if __name__ == "__main__":
    measure.keep_freed_memory()
    sys.exit(measure.main("attention", parse_arguments(None), run, table))
