#!/usr/bin/env python3
"""How sparse, and how diverse, the attention of trained translation models is, on prepared data.

The model reads each source sentence and its reference (no search). For the encoder, the decoder
and cross-attention, for each layer, the table has

- the sparsity rate: the share of attention weights that are exactly 0, among the keys that a query
  may see;
- the nonzeros: how many weights of a query are not 0, in the mean;
- the null rate: the share of queries whose weights are all 0, and its variance over the heads;
- the diversity of the heads, if there are several: their generalised Jensen-Shannon divergence in
  nats, 0 where all heads are the same. Weights that do not sum to 1 are made distributions by a
  softmax with temperature 1, in which a query without any weight attends to a dummy; a second table
  has other temperatures.

An LSTM has one place of attention, cross, with one layer and one head.

With --shuffled each source is also read with the reference of another sentence. The rates are means
over the heads of a layer, and over the layers; the JSON file has the heads too. With several models
it has the numbers of each under "models", by name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_line import (
    add_max_tokens,
    add_model_arguments,
    check_outputs,
    exit_status,
    load_one_model,
    name_models,
    one_line,
    output_file,
    seed,
    tell_left_out,
    with_progress,
    with_references,
)

if TYPE_CHECKING:
    from fairseq_sparse.analysis.attention_statistics import AttentionStatistics
    from fairseq_sparse.analysis.decoding import Translator


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_arguments(parser, several=True)
    parser.add_argument(
        "--shuffled",
        type=seed,
        metavar="SEED",
        help="measure also with references that are exchanged at random",
    )
    add_max_tokens(parser)
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all numbers to this file"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw PNG and SVG pictures")
    options = parser.parse_args(arguments)
    name_models(parser, options)
    if len(set(options.names)) < len(options.names):
        parser.error("--names: two models have the same")
    check_outputs(parser, options, "json")
    return options


def table(result: dict[str, Any]) -> str:
    """The measures of a model, first the means of each place and then its layers."""
    from fairseq_sparse.analysis.reports import markdown_table

    header = ["place", "layer", "attention", "sparsity rate (%)", "nonzeros"]
    header += ["null rate (%)", "variance"]
    header += ["shuffled: null rate (%)", "variance"] if "shuffled" in result else []
    header += ["diversity (nats)"]

    def rates(part: dict[str, Any]) -> list[str]:
        return [f"{100 * part['null']:.2f}", f"{part['null_variance']:.4f}"]

    def row(place: str, name: object, kind: str, part: dict, shuffled: dict | None) -> list:
        cells = [place, name, kind, f"{100 * part['sparsity']:.2f}", f"{part['nonzeros']:.2f}"]
        cells += [*rates(part), *(rates(shuffled) if shuffled else [])]
        return [*cells, f"{part['diversity']:.3f}" if "diversity" in part else "-"]

    means, layers = [], []
    for place, part in result["attention"].items():
        shuffled = result.get("shuffled", {}).get(place)
        kinds = ", ".join(dict.fromkeys(layer["attention"] for layer in part["layers"]))
        means.append(row(place, "mean", kinds, part, shuffled))
        for number, layer in enumerate(part["layers"]):
            other = shuffled and shuffled["layers"][number]
            layers.append(row(place, number + 1, layer["attention"], layer, other))
    return markdown_table(header, means + layers)


def temperature_table(result: dict[str, Any]) -> str:
    """The diversities of weights that do not sum to 1; empty if there are none."""
    from fairseq_sparse.analysis.reports import markdown_table

    rows, header = [], []
    for place, part in result["attention"].items():
        for name, layer in [("mean", part), *enumerate(part["layers"], start=1)]:
            values = layer.get("diversity_by_temperature")
            if values:
                header = ["place", "layer", *(f"diversity, τ = {value}" for value in values)]
                rows.append([place, name, *(f"{value:.3f}" for value in values.values())])
    return markdown_table(header, rows) if rows else ""


def measure(
    translator: Translator, options: argparse.Namespace, label: str, diversity: bool
) -> AttentionStatistics:
    """Read all the sentences with the first model of a translator."""
    from fairseq_sparse.analysis.attention_statistics import AttentionStatistics

    padding = translator.task.source_dictionary.pad()
    statistics = AttentionStatistics(translator.models[0], padding, diversity)
    batches = translator.batches(options.subset, options.max_tokens)
    for sample in with_references(with_progress(batches, label), options.subset):
        statistics.add_batch(sample["net_input"])
    tell_left_out(translator, options.subset, statistics.sentences)
    return statistics


def analyze(path: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All the numbers of a model."""
    from fairseq_sparse.analysis.shuffled_references import derange, with_reordered_references

    translator = load_one_model(path, options, name=name)
    label = f"{name}, {options.subset}" if len(options.path) > 1 else options.subset
    statistics = measure(translator, options, label, diversity=True)
    result = {
        "checkpoint": path,
        "data": options.data,
        "subset": options.subset,
        "sentences": statistics.sentences,
        "left_out": len(translator.task.dataset(options.subset)) - statistics.sentences,
        "attention": statistics.rates(),
    }
    if options.shuffled is not None:
        order = derange(len(translator.task.dataset(options.subset)), options.shuffled)
        shuffled = with_reordered_references(translator, order)
        statistics = measure(shuffled, options, f"{label}, shuffled", diversity=False)
        result["shuffled_seed"] = options.shuffled
        result["shuffled_sentences"] = statistics.sentences
        result["shuffled"] = statistics.rates()
    return result


def save_plots(folder: Path, results: dict[str, dict[str, Any]]) -> list[Path]:
    from fairseq_sparse.analysis.attention_curves import save_curves

    folder.mkdir(parents=True, exist_ok=True)
    return save_curves(folder, results)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    from fairseq_sparse.analysis.pictures import require_matplotlib
    from fairseq_sparse.analysis.reports import write_json
    from fairseq_sparse.analysis.trained_models import AnalysisError
    from fairseq_sparse.checkpoint_safety import CheckpointError

    try:
        if options.plots:
            require_matplotlib()
        results = {
            name: analyze(path, name, options)
            for path, name in zip(options.path, options.names, strict=True)
        }
        if options.json:
            one = len(results) == 1
            write_json(options.json, *results.values() if one else [{"models": results}])
        pictures = save_plots(options.plots, results) if options.plots else []
    except (AnalysisError, CheckpointError, OSError, ValueError) as error:
        print(f"analyze_attention: error: {one_line(error)}", file=sys.stderr)
        return 1
    for result in results.values():
        print(table(result))
        if temperature_table(result):
            print(f"\n{temperature_table(result)}")
        print(f"\n{result['sentences']} sentences of {options.subset}, {result['checkpoint']}\n")
    for path in pictures:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, quiet=["fairseq", "matplotlib"]))
