#!/usr/bin/env python3
"""Count parameters and floating-point operations of a Transformer, by kind of attention.

Both are counted on modules that are built and run, not by formulas.

Parameters are those that get a gradient in a training step. The defaults are the base Transformer
of ReLA (Zhang, Titov, Sennrich 2021) for WMT14 English-German: separate vocabularies, the target's
embeddings shared with the output. Any two vocabularies with 55,013 to 55,032 entries in total give
the paper's 72.31 million for softmax attention; ReLA-g adds a gain and a gate of 512 numbers to
each of 18 attentions, 18,432 in all, which gives 72.33 million (the paper: 72.34).

Operations are those of one forward pass: of one self-attention module, and of the model on one
sentence pair, both of --length tokens. A multiplication with addition in a matrix product counts as
two. Any other operation (exp, sqrt, a comparison, ...) counts as one per output number or, for sums
and maxima, per input number; softmax counts as five per score (maximum, difference, exp, sum,
division), layer normalisation as eight per number. Reading, copying and masking are free. The
search for a threshold (sparsemax, entmax) takes as many steps as random weights need.

A second table is ReLA's Table 4, for T tokens: the operations from the attention scores of H heads
to their weights, and those of norm and gate, with d numbers per token. Beside our counts, it has
the paper's closed forms, 3HT² - HT for softmax and HT² + 10Td + T for ReLA-g, and the length up to
which softmax needs no more operations than ReLA-g.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

# scripts/ is the import path of the helpers
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import exit_status, output_file, positive, report_errors, script_parser  # noqa: E402
from fairseq_sparse.files import write_json  # noqa: E402
from fairseq_sparse.tables.formats import format_table  # noqa: E402

BASELINE = "softmax"
# `entmax` with its alpha learned for each head.
LEARNED = "entmax_learned"
EMBEDDINGS = "--share-decoder-input-output-embed"

# ReLA, Table 4: operations for H heads, T tokens and width d.
CLOSED_FORMS = {
    "softmax": lambda heads, tokens, width: 3 * heads * tokens**2 - heads * tokens,
    "rela_g": lambda heads, tokens, width: heads * tokens**2 + 10 * tokens * width + tokens,
}

# Rules for counting operations, by function name. POINTWISE lists the functions that work number by
# number, but are not tagged so by PyTorch.
POINTWISE = {"leaky_relu"}
FREE = {"clone", "masked_fill", "fill", "zero", "copy", "alias"}
REDUCTIONS = {"sum", "mean", "amax", "amin", "max", "min", "any", "all", "prod", "norm"}
FUSED = {"_softmax": 5, "_log_softmax": 5, "native_layer_norm": 8}
FUSED_ATTENTION = "_scaled_dot_product_flash_attention"


def parse_arguments(arguments: list[str] | None = None) -> Namespace:
    parser = script_parser(__doc__)

    def add(flag, default, help, **options):
        parser.add_argument(flag, default=default, help=f"{help} (default: {default})", **options)

    add("--arch", "transformer_sparse_wmt_en_de", "of transformer_sparse or transformer")
    add("--source-vocabulary", 27510, "entries of the source's", type=positive, metavar="N")
    add("--target-vocabulary", 27510, "entries of the target's", type=positive, metavar="N")
    add("--length", 25, "tokens per sentence", type=positive, metavar="N")
    parser.add_argument(
        "--activation-lengths",
        type=positive,
        nargs="+",
        default=[100, 1000],
        metavar="T",
        help="sequence lengths of the second table (default: 100 1000)",
    )
    parser.add_argument(
        "--kinds", help=f"values of --attention, or {LEARNED}, comma-separated (default: all)"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="for all numbers")
    return parser.parse_args(arguments)


def chosen_kinds(options: Namespace) -> list[str]:
    """Return the kinds of attention to compare, softmax first."""
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

    known = [*ATTENTION_KINDS, LEARNED]
    kinds = options.kinds.split(",") if options.kinds else known
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"--kinds: no {kind}; choose from {', '.join(known)}")
    return list(dict.fromkeys([BASELINE, *kinds]))


def build(options: Namespace, kind: str, task):
    from random_models import build_model

    flags = [EMBEDDINGS, "--attention", "entmax" if kind == LEARNED else kind]
    flags += ["--attention-alpha-learnable"] if kind == LEARNED else []
    return build_model(options.arch, flags, task)


def trained_parameters(model, net_input: dict) -> int:
    """Return how many numbers get a gradient; fairseq 0.12.2 holds copies that never do."""
    model.train()(**net_input)[0].sum().backward()
    count = sum(x.numel() for x in model.parameters() if x.grad is not None)
    model.zero_grad(set_to_none=True)
    return count


def operations(run) -> dict[str, int]:
    """Return the operations of one call, in matrix products and in all others."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def attention(query, key, value, *arguments, out_shape=None, **options):
        return 2 * query[:3].numel() * key[2] * (key[3] + value[3])

    # From 2.3 on, PyTorch uses another function on a CPU, whose operations it does not count.
    on_cpu = getattr(torch.ops.aten, f"{FUSED_ATTENTION}_for_cpu", None)
    entries = {} if on_cpu is None else {on_cpu: attention}
    with torch.no_grad():
        with FlopCounterMode(display=False, custom_mapping=entries) as products, references():
            run()
        with elementwise_counter() as others, references():
            run()
    return {"products": products.get_total_flops(), "others": sum(others.counts.values())}


def references():
    """Return a context that computes the operators of this package by their references, so that a
    counter around it sees the functions of PyTorch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from fairseq_sparse.ops.operators import reference_of

    class References(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace != "fairseq_sparse":
                return function(*args, **(kwargs or {}))
            with self:  # a reference may call other operators
                return reference_of(function)(*args, **(kwargs or {}))

    return References()


def elementwise_counter():
    """Return a context that counts all operations except matrix products, by function name."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.counts: dict[str, int] = {}

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            name = function.overloadpacket.__name__
            count = operations_of(name.rstrip("_"), function, args, result)
            if count:
                self.counts[name] = self.counts.get(name, 0) + count
            return result

    return Counter()


def operations_of(name: str, function, args, result) -> int:
    """Return the operations of one call of a function of PyTorch."""
    import torch

    if name.startswith(FUSED_ATTENTION):
        query, key = args[:2]
        return FUSED["_softmax"] * query.shape[:3].numel() * key.size(2) + query.numel()
    if name in FUSED:
        return FUSED[name] * args[0].numel()
    if name in REDUCTIONS:
        return args[0].numel()
    pointwise = torch.Tag.pointwise in function.tags or name in POINTWISE
    return result.numel() if pointwise and name not in FREE else 0


def activation_operations(kind: str, heads: int, tokens: int, width: int) -> int:
    """Count the operations of self-attention between its products, except scaling the scores."""
    import torch
    from fairseq.modules import MultiheadAttention

    from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention

    if kind == BASELINE:  # a model with softmax everywhere has fairseq's module
        module = MultiheadAttention(width, heads, self_attention=True).eval()
    else:
        module = SparseMultiheadAttention(width, heads, self_attention=True, attention=kind).eval()
    x = torch.randn(tokens, 1, width)
    with torch.no_grad(), elementwise_counter() as others, references():
        module(x, x, x, need_weights=False)
    return sum(others.counts.values()) - x.numel()


def activations(options: Namespace, heads: int, width: int) -> dict:
    """Compute ReLA's Table 4: the operations by length, and the largest length at which softmax
    has no more than ReLA-g."""
    methods = {"formula": lambda kind, *sizes: CLOSED_FORMS[kind](*sizes)}
    methods["counted"] = activation_operations
    result: dict = {"heads": heads, "width": width, "operations": [], "softmax_up_to": {}}
    for tokens in options.activation_lengths:
        counts = {
            kind: {name: count(kind, heads, tokens, width) for name, count in methods.items()}
            for kind in CLOSED_FORMS
        }
        result["operations"].append({"tokens": tokens, **counts})
    for name, count in methods.items():

        def fewer(tokens: int, count=count) -> bool:
            softmax, rela = (count(kind, heads, tokens, width) for kind in CLOSED_FORMS)
            return softmax <= rela

        longest = 1
        while fewer(2 * longest):
            longest *= 2
        low, high = longest, 2 * longest
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fewer(middle) else (low, middle)
        result["softmax_up_to"][name] = low
    return result


def results_of(options: Namespace) -> list[dict]:
    """Return the results of each kind of attention, softmax first."""
    import torch

    from random_models import random_batch, translation_task

    kinds = chosen_kinds(options)
    task = translation_task(options.source_vocabulary, options.target_vocabulary)
    results = []
    for kind in kinds:
        torch.manual_seed(1)
        model = build(options, kind, task)
        net_input = random_batch(task, 1, options.length)["net_input"]
        parameters = trained_parameters(model, net_input)
        module = model.eval().encoder.layers[0].self_attn
        x = torch.randn(options.length, 1, module.embed_dim)
        parts = {
            "module": operations(lambda m=module, x=x: m(x, x, x, need_weights=False)),
            "sentence": operations(lambda m=model, batch=net_input: m(**batch)),
        }
        result = {"attention": kind, "parameters": parameters}
        result |= {"heads": module.num_heads, "width": module.embed_dim}
        for part, counted in parts.items():
            result[part] = {**counted, "total": sum(counted.values())}
        results.append(result)
        print(f"{kind}: {parameters:,} parameters", file=sys.stderr)
    for result in results:
        result["added_parameters"] = result["parameters"] - results[0]["parameters"]
        for part in parts:
            result[part]["ratio"] = result[part]["total"] / results[0][part]["total"]
    return results


def table(results: list[dict]) -> str:
    header = ["attention", "parameters", "million", "added"]
    header += ["module: products (M)", "others (M)", "ratio"]
    header += ["sentence: products (M)", "others (M)", "ratio"]
    rows = []
    for result in results:
        count = result["parameters"]
        row = [result["attention"], f"{count:,}", f"{count / 1e6:.2f}"]
        row += [f"{result['added_parameters']:,}"]
        for part in ("module", "sentence"):
            numbers = result[part]
            row += [f"{numbers['products'] / 1e6:.3f}", f"{numbers['others'] / 1e6:.3f}"]
            row += [f"{numbers['ratio']:.4f}"]
        rows.append(row)
    return format_table(header, rows)


def activation_table(found: dict) -> str:
    header = ["activation", "closed form"]
    for counts in found["operations"]:
        header += [f"T = {counts['tokens']}: formula", "counted"]
    formulas = {"softmax": "3HT² - HT", "rela_g": "HT² + 10Td + T"}
    rows = []
    for kind, formula in formulas.items():
        cells = [counts[kind] for counts in found["operations"]]
        rows.append([kind, formula, *(f"{cell[way]:,}" for cell in cells for way in cell)])
    up_to = found["softmax_up_to"]
    return (
        f"{format_table(header, rows)}\n\nOperations of an attention activation (ReLA, Table 4), "
        f"H = {found['heads']}, d = {found['width']}; softmax has no more than rela_g up to "
        f"T = {up_to['formula']} by the formulas, T = {up_to['counted']} as counted"
    )


def run(options: Namespace) -> None:
    from fairseq_sparse.measure.machine import describe_machine

    results = results_of(options)
    found = activations(options, results[0]["heads"], results[0]["width"])
    if options.json:
        chosen = {name: value for name, value in vars(options).items() if name != "json"}
        content = {"machine": describe_machine(), "options": chosen, "results": results}
        write_json(options.json, {**content, "activations": found})
    print(table(results))
    print(
        f"\n{options.arch} {EMBEDDINGS}; "
        f"vocabularies of {options.source_vocabulary:,} and {options.target_vocabulary:,} entries; "
        f"sentences of {options.length} tokens; ratios to {BASELINE}"
    )
    print(f"\n{activation_table(found)}")


def main(arguments: list[str] | None = None) -> int:
    return report_errors("sizes", run, parse_arguments(arguments))


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["fairseq", "fairseq_sparse"]))
