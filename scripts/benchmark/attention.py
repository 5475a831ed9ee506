#!/usr/bin/env python3
"""Speed and memory of each kind of attention, compared with stock softmax attention.

attend  attention without the projections, forward and backward; stock is
        F.scaled_dot_product_attention with PyTorch's choice of a backend; on a GPU the packages of
        peers.py take part; of kinds that differ only in the norm, only the first is measured
module  one attention module over whole sentences, forward and backward
step    a training step of a whole Transformer: forward, loss, backward, no optimizer
decode  beam search of a whole Transformer; every translation has --max-len tokens

Each kind is measured in the same rounds as stock (fairseq's module, its `transformer` in the last
two). The speed is stock's time divided by the kind's time in the same round, so 2 is twice as fast;
the table has the median over the rounds, and the quartiles.

A kind is a value of --attention, or "entmax_learned" for entmax with its alpha learned for each
head; with ":enc", ":dec" or ":cross" behind it, only that place has it (step and decode).

In attend, --causal masks future keys, and --padded makes it cross-attention in which each sentence
has a random number of keys, from half the length to all of it, and padding. --spread S multiplies
the scores, which are drawn from N(0, 1): a trained model's are wider, and its attention sparser. In
our models on Multi30k (docs/results.md) 46 to 76 % of 1.5-entmax's weights are 0 and 49 to 76 % of
ReLA-g's after 20 epochs, more after 3; the table has the share over the last 64 queries. With
--errors, the output and the gradients of one sentence of at most that many tokens are compared with
the same kind's in fp64: the error is the norm of the difference over the norm of the exact value,
the largest of the four.
TFLOP/s count seven products of queries and keys, half of them under --causal.

All models have the same random weights. Their scores are symmetric around 0, so about half of the
weights of rectified attention are 0; a trained model has more zeros. Sentences have no padding.

Memory (not for decode) is the peak of PyTorch's allocations during a pass, beyond parameters and
inputs, gradients included. On a GPU it is that of the CUDA allocator; on a CPU it is computed from
all allocations that PyTorch's profiler reports, which gives the same result in each run, but leaves
out what BLAS libraries allocate by themselves. The profiler itself needs up to 4 GB, for the
slowest kind and the length 4000.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

# The imported modules are in scripts/.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import harness
from benchmark.attention_core import LEARNED, STOCK, add_attend_figures, attend_jobs
from benchmark.harness import Jobs, positive
from command_line import numbers, script_parser, words

PARTS = ("attend", "module", "step", "decode")
DEFAULT_KINDS = f"rela_g,rela_i,relu,sparsemax,entmax15,{LEARNED}"


def parse_arguments(arguments: list[str] | None) -> Namespace:
    parser = script_parser(__doc__)

    def add(flag, default, help, type=positive):
        parser.add_argument(flag, default=default, type=type, help=f"{help} (default: {default})")

    add("--parts", ",".join(PARTS), "what to measure", harness.one_of(*PARTS))
    add("--kinds", DEFAULT_KINDS, f"values of --attention, or {LEARNED}", words)
    add("--lengths", "25,1000,2000,4000", "sentence lengths, except in decode", numbers)
    add("--decode-lengths", "25", "source lengths in decode", numbers)
    add("--tokens", 2000, "in a batch, on each side")
    add("--max-len", 25, "length of every translation")
    add("--beam", 5, "beam size")
    add("--model-dim", 256, "width of the module and of the Transformer")
    add("--heads", 4, "attention heads")
    add("--layers", 3, "layers of the encoder and of the decoder")
    add("--vocabulary", 8000, "entries, shared by source and target")
    add("--attention-dropout", 0.0, "dropout of the weights, except in decode", float)
    parser.add_argument("--causal", action="store_true", help="in attend, mask future keys")
    parser.add_argument("--padded", action="store_true", help="in attend, cross-attention, padded")
    add("--spread", 1.0, "standard deviation of the scores in attend", float)
    parser.add_argument(
        "--errors", type=int, default=0, metavar="N", help="tokens up to which attend is checked"
    )
    harness.add_dtypes(parser)
    harness.add_arguments(parser, rounds=5, least_seconds=0.3)
    options = parser.parse_args(arguments)
    if options.model_dim % options.heads:
        parser.error(f"--heads {options.heads} does not divide --model-dim {options.model_dim}")
    if not 0 <= options.attention_dropout < 1:
        parser.error(f"--attention-dropout {options.attention_dropout}: must be in [0, 1)")
    if options.causal and options.padded:
        parser.error("--padded is for cross-attention, --causal for self-attention")
    return options


def check_kinds(kinds: list[str]) -> None:
    """Raise ValueError for kinds that the package does not have."""
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

    places: tuple[str, ...] = ()
    if any(":" in name for name in kinds):  # the parts that need fairseq
        from fairseq_sparse.modules.attention_config import FLAG_PLACES as places
    for name in kinds:
        kind, colon, place = name.partition(":")
        if kind not in (*ATTENTION_KINDS, LEARNED) or (colon and place not in places):
            choices = ", ".join([*ATTENTION_KINDS, LEARNED])
            raise ValueError(
                f"--kinds: no {name}; choose from {choices}, for one place + :enc, :dec or :cross"
            )


# What is measured


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

    from random_models import translation_task

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
    from random_models import translation_task

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

    from random_models import random_batch

    sample = random_batch(task, batch, length)
    return utils.apply_to_sample(lambda tensor: tensor.to(options.device), sample)


def build_transformer(options: Namespace, kind: str, task):
    from random_models import build_model

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
    """Return modules of stock attention and of each kind, sharing stock's parameters where
    possible."""
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
    results = harness.compare(jobs, options, key="attention", **what)
    if part == "decode":
        for result in results:
            if "seconds" in result:
                result["sentences_per_second"] = batch / statistics.median(result["seconds"])
    else:
        harness.add_memory(results, jobs, options.device)
    if part == "attend":
        add_attend_figures(results, options, length, batch, getattr(torch, dtype))
    return results


def run(options: argparse.Namespace, record: harness.Record) -> None:
    check_kinds(options.kinds)
    for part in options.parts:
        for dtype in options.dtypes:
            for length in options.decode_lengths if part == "decode" else options.lengths:
                record.add(results_of(part, dtype, length, options))


def table(results: list[dict]) -> str:
    from fairseq_sparse.tables.formats import format_table

    # Quantities that were not measured in any row have no column.
    more = {"tflops": "{:.2f}", "zeros": "{:.2f}", "error": "{:.1e}"}
    titles = {"tflops": "TFLOP/s", "zeros": "zeros", "error": "error"}
    more = {key: form for key, form in more.items() if any(key in row for row in results)}
    rows = []
    for result in results:
        row = [result[name] for name in ("part", "dtype", "length", "batch", "attention")]
        rate = result.get("sentences_per_second")
        row += [harness.milliseconds(result), "-" if rate is None else f"{rate:.1f}"]
        row += harness.ratio_cells(result, "speed") + harness.memory_cells(result)
        rows.append(row + [f.format(result[k]) if k in result else "-" for k, f in more.items()])
    header = ["part", "dtype", "length", "batch", "attention", "ms", "sentences/s", "speed"]
    header += ["quartiles", "peak MiB", "memory", *(titles[key] for key in more)]
    return format_table(header, rows)


if __name__ == "__main__":
    harness.keep_freed_memory()
    sys.exit(harness.main("attention", parse_arguments(None), run, table))
