#!/usr/bin/env python3
"""Speed and memory of each kind of attention, as a ratio to fairseq's own softmax attention.

module  one attention module over whole sentences: forward and backward
step    a training step of a whole Transformer: forward, loss, backward, no optimizer
decode  beam search of a whole Transformer, every translation of --max-len tokens

Each kind is measured beside the stock module (`transformer` for the last two) in the same run: in
every round stock first, then each kind. The speed is stock's time by the kind's time in the same
round, so 2 is twice as fast; the table has the median over the rounds and, as the spread, the least
and the greatest.

A kind is a value of --attention, or "entmax_learned" for entmax with its alpha learned for each
head; with ":enc", ":dec" or ":cross" behind it, it is in that place alone (step and decode).

Models have random weights, the same in all. Their scores lie evenly around 0, so about half of the
weights of rectified attention are 0; in a trained model more are. Sentences have no padding.

Memory, of the module only, is the peak of what PyTorch allocated between start and end of a pass,
beyond parameters and inputs, gradients of the parameters included. On a GPU it is that of the CUDA
allocator (torch.cuda.max_memory_allocated); on a CPU all allocations that PyTorch's profiler
reports are added up, which gives the same in each run, but leaves out what BLAS libraries allocate
by themselves. The profiler itself needs up to 4 GB, for the slowest kind and the length 4000.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from command_line import output_file, positive

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# glibc gives every freed tensor back to the system and asks for it again, which costs a fifth of
# the time on a CPU; these two make it keep them, as the recipes do.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
PARTS = ("module", "step", "decode")
STOCK = "stock"
# `entmax` with its alpha learned for each head.
LEARNED = "entmax_learned"
DEFAULT_KINDS = f"rela_g,rela_i,relu,sparsemax,entmax15,{LEARNED}"

Jobs = dict[str, Callable[[], object]]


def comma_list(convert: Callable[[str], object]) -> Callable[[str], list]:
    def parse(text: str) -> list:
        return list(dict.fromkeys(convert(part) for part in text.split(",")))

    return parse


def parse_arguments(arguments: list[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(flag, default, help, type=positive):
        parser.add_argument(flag, default=default, type=type, help=f"{help} (default: {default})")

    add("--parts", "module,step,decode", "what to measure", comma_list(str))
    add("--kinds", DEFAULT_KINDS, f"values of --attention, or {LEARNED}", comma_list(str))
    add("--lengths", "25,1000,2000,4000", "of sentences in module and step", comma_list(positive))
    add("--decode-lengths", "25", "of the source sentences in decode", comma_list(positive))
    add("--tokens", 2000, "in a batch, on each side")
    add("--max-len", 25, "length of every translation")
    add("--beam", 5, "of the search")
    add("--model-dim", 256, "width of the module and of the Transformer")
    add("--heads", 4, "attention heads")
    add("--layers", 3, "of encoder and of decoder")
    add("--vocabulary", 8000, "entries, in common to source and target")
    add("--attention-dropout", 0.0, "in module and step", float)
    add("--rounds", 5, "how often each kind is measured")
    add("--least-seconds", 0.3, "a quick pass is repeated for so long in a round", float)
    add("--device", "cpu", "cpu or cuda", str)
    parser.add_argument("--threads", type=positive, help="of PyTorch (default: its own choice)")
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"--parts: no {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    if options.model_dim % options.heads:
        parser.error(f"--heads {options.heads} does not divide --model-dim {options.model_dim}")
    if not 0 <= options.attention_dropout < 1:
        parser.error(f"--attention-dropout {options.attention_dropout}: must be in [0, 1)")
    return options


def check(options: Namespace) -> None:
    """Refuse what only PyTorch and the package can tell."""
    import torch

    from fairseq_sparse.modules.attention_config import PLACES
    from fairseq_sparse.modules.attention_weights import ATTENTION_KINDS

    for name in options.kinds:
        kind, colon, place = name.partition(":")
        if kind not in (*ATTENTION_KINDS, LEARNED) or (colon and place not in PLACES):
            choices = ", ".join([*ATTENTION_KINDS, LEARNED])
            places = ", ".join(f":{place}" for place in PLACES)
            raise ValueError(f"--kinds: no {name}; choose from {choices}, for one place + {places}")
    try:
        torch.empty(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {options.device}: {str(error).splitlines()[0]}") from error


# What is measured


def module_jobs(options: Namespace, length: int, batch: int) -> Jobs:
    """Forward and backward of one self-attention module, as in an encoder layer."""
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

    inputs, gradient = torch.randn(2, length, batch, options.model_dim, device=options.device)
    kinds = [kind for kind in options.kinds if ":" not in kind]
    return {name: job(m) for name, m in same_weights(options, kinds, build).items()}


def step_jobs(options: Namespace, length: int, batch: int) -> Jobs:
    """A training step of ``transformer_sparse`` without the optimizer."""
    import torch.nn.functional as F

    from fairseq_sparse.analysis.random_models import translation_task

    def job(model):
        def run():
            logits = model(**net_input)[0]
            F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
            model.zero_grad(set_to_none=True)

        return run

    task = translation_task(options.vocabulary)
    sample = random_sample(options, task, batch, length)
    net_input, target = sample["net_input"], sample["target"]
    models = same_weights(
        options, options.kinds, lambda kind: build_transformer(options, kind, task)
    )
    return {name: job(model.train()) for name, model in models.items()}


def decode_jobs(options: Namespace, length: int, batch: int) -> Jobs:
    """Beam search, each sentence to the same length; the jobs return the hypotheses."""
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
        options, options.kinds, lambda kind: build_transformer(options, kind, task)
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


def same_weights(options: Namespace, kinds: list[str], build: Callable) -> dict:
    """Modules of stock attention and of each kind, with stock's parameters where it has them."""
    modules = {STOCK: build(STOCK)}
    for kind in kinds:
        modules[kind] = build(kind)
        modules[kind].load_state_dict(modules[STOCK].state_dict(), strict=False)
    return {name: module.to(options.device) for name, module in modules.items()}


JOBS = {"module": module_jobs, "step": step_jobs, "decode": decode_jobs}


def results_of(part: str, length: int, options: Namespace) -> list[dict]:
    """Everything about one part and length: one dictionary for each kind, stock first."""
    from fairseq_sparse.analysis.measuring import measure, peak_memory

    batch = max(1, options.tokens // length)
    jobs = JOBS[part](options, length, batch)
    seconds = measure(jobs, options.rounds, options.least_seconds, options.device)
    results = []
    for name, run in jobs.items():
        speed = [a / b for a, b in zip(seconds[STOCK], seconds[name], strict=True)]
        result = {
            "part": part,
            "length": length,
            "batch": batch,
            "attention": name,
            "seconds": seconds[name],
            "speed": statistics.median(speed),
            "speed_least": min(speed),
            "speed_greatest": max(speed),
        }
        if part == "decode":
            result["sentences_per_second"] = batch / statistics.median(seconds[name])
        if part == "module":
            result["peak_bytes"] = peak_memory(run, options.device)
            result["memory"] = result["peak_bytes"] / (results or [result])[0]["peak_bytes"]
        results.append(result)
        print(f"{part} {length} {name}: speed {result['speed']:.2f}", file=sys.stderr)
    return results


# How it is reported


def table(results: list[dict]) -> str:
    from fairseq_sparse.analysis.reports import markdown_table

    rows = []
    for result in results:
        row = [result[name] for name in ("part", "length", "batch", "attention")]
        row += [f"{1000 * statistics.median(result['seconds']):.1f}"]
        rate = result.get("sentences_per_second")
        row += ["-" if rate is None else f"{rate:.1f}", f"{result['speed']:.2f}"]
        row += [f"{result['speed_least']:.2f}-{result['speed_greatest']:.2f}"]
        if "memory" in result:
            row += [f"{result['peak_bytes'] / 2**20:.1f}", f"{result['memory']:.2f}"]
        else:
            row += ["-", "-"]
        rows.append(row)
    header = ["part", "length", "batch", "attention", "ms", "sentences/s", "speed", "spread"]
    return markdown_table([*header, "peak MiB", "memory"], rows)


def footnote(options: Namespace, machine: dict) -> str:
    return (
        f"\nspeed and memory: ratios to stock in the same run, median and spread of "
        f"{options.rounds} rounds. Random weights: about half of the weights of rectified "
        f"attention are 0.\n\n{machine['hardware']}, {machine['cores']} cores, "
        f"{machine['threads']} threads, torch {machine['torch']}, fairseq {machine['fairseq']}; "
        f"width {options.model_dim}, {options.heads} heads, {options.layers}+{options.layers} "
        f"layers, vocabulary {options.vocabulary}, attention dropout "
        f"{options.attention_dropout}, beam {options.beam}"
    )


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.device == "cpu" and platform.libc_ver()[0] == "glibc":
        missing = {name: value for name, value in MALLOC.items() if name not in os.environ}
        if missing:  # glibc reads them when a process starts
            arguments = sys.argv[1:] if arguments is None else arguments
            command = [sys.executable, os.path.abspath(__file__), *arguments]
            os.execve(sys.executable, command, {**os.environ, **missing})
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler tells of each start
    import torch

    from fairseq_sparse.analysis.reports import describe_machine, write_json

    torch.manual_seed(1)
    if options.threads:
        torch.set_num_threads(options.threads)
    chosen = {name: value for name, value in vars(options).items() if name != "json"}
    malloc = {name: os.environ.get(name) for name in MALLOC}
    results: list[dict] = []
    try:
        check(options)
        machine = describe_machine(options.device)
        for part in options.parts:
            for length in options.decode_lengths if part == "decode" else options.lengths:
                results += results_of(part, length, options)
                if options.json:  # also of a run that does not come to its end
                    content = {"machine": machine, "malloc": malloc, "options": chosen}
                    write_json(options.json, {**content, "results": results})
    except (ValueError, OSError) as error:
        print(f"benchmark_attention: error: {error}", file=sys.stderr)
        return 1
    print(table(results))
    print(footnote(options, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
