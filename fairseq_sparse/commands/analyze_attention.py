"""Measure how sparse, and how diverse, the attention of trained translation models is.

The model reads each source sentence and its reference (no search). For the encoder, the decoder
and cross-attention, for each layer, the table has

- the sparsity rate: the share of attention weights that are exactly 0, among the keys that a query
  may see;
- the nonzeros: the mean number of nonzero weights of a query;
- attention sinks: the shares of a query's weights on the first key, and on EOS, which is the first
  key in the decoder; averaged over the queries that have any weight;
- the null rate: the share of queries whose weights are all 0, averaged over the heads; its variance
  over the heads (with n - 1 in the denominator); and the null rate of layer attention, the mean of
  the heads' weights;
- the diversity of the heads, if there are several: their generalised Jensen-Shannon divergence in
  nats, 0 if all heads are the same. Weights that do not sum to 1 are turned into distributions by a
  softmax, in which a query without any weight attends to a dummy key. For a second table, they are
  first raised to the power of a temperature τ, as in ReLA's Table 6; the lower τ, the smoother.
  GELU and leaky ReLU give negative weights, which have no fractional powers, so they are measured
  at τ = 1 only.

ReLA measures attention between words: --subwords sums the weights over the subwords of a word that
is attended to, and averages them over those of a word that attends (Zenkel et al. 2019); EOS is a
word of its own. Without it, tokens are counted. An LSTM has only cross-attention, with one layer
and one head.

With --shuffled, each source is also read with the reference of another sentence. Models with the
same NAME are seeds of one model: means over them are shown, with standard deviations. In
the pictures, a band is one standard deviation over the heads to either side, a bar one over the
seeds.

--by-previous N adds a table of cross-attention: the null rate of each head after the N most
frequent target words, or after the N most frequent tags of --tags.

The rates are means over the heads of a layer, and over the layers; the JSON file has the heads too.
With several models it has the numbers of each under "models", by name.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
    add_json,
    add_max_tokens,
    add_model_arguments,
    add_subwords,
    check_outputs,
    command_parser,
    count_left_out,
    finish,
    load_one_model,
    name_models,
    positive,
    print_left_out,
    seed,
    with_progress,
    with_references,
)
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of, write_json

if TYPE_CHECKING:
    from fairseq_sparse.measure.attention.attention_statistics import AttentionStatistics
    from fairseq_sparse.measure.attention.null_by_previous import NullByPrevious
    from fairseq_sparse.measure.translator import Translator


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze attention", __doc__)
    add_model_arguments(parser, several=True)
    parser.add_argument(
        "--shuffled",
        type=seed,
        metavar="SEED",
        help="measure also with references that are shuffled at random",
    )
    add_subwords(parser)
    parser.add_argument(
        "--by-previous",
        type=positive,
        metavar="N",
        help="null rate of each cross-attention head after the N most frequent target words",
    )
    parser.add_argument(
        "--tags",
        type=Path,
        metavar="FILE",
        help="one line per sentence, with a tag for each target word: --by-previous uses the tags",
    )
    add_max_tokens(parser)
    add_json(parser)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw PNG and SVG pictures")
    options = parser.parse_args(arguments)
    name_models(parser, options)
    if options.tags and not options.by_previous:
        parser.error("--tags: say with --by-previous how many of the tags to show")
    check_outputs(parser, options, "json")
    return options


def table(result: dict[str, Any]) -> str:
    """Return the measures of a model, first the means of each place and then its layers."""
    from fairseq_sparse.measure.attention.attention_seeds import with_deviation
    from fairseq_sparse.tables.formats import format_table

    header = ["place", "layer", "attention", "sparsity rate (%)", "nonzeros"]
    header += ["null rate (%)", "variance", "of layer attention (%)"]
    header += ["shuffled: null rate (%)", "variance"] if "shuffled" in result else []
    header += ["diversity (nats)", "on the first (%)", "on EOS (%)"]

    def rates(part: dict[str, Any]) -> list[str]:
        return [with_deviation(part, "null", 2, 100), with_deviation(part, "null_variance", 4)]

    def row(place: str, name: object, kind: str, part: dict, shuffled: dict | None) -> list:
        cells = [place, name, kind]
        cells += [with_deviation(part, "sparsity", 2, 100), with_deviation(part, "nonzeros", 2)]
        cells += [*rates(part), with_deviation(part, "layer_null", 2, 100)]
        cells += [*(rates(shuffled) if shuffled else []), with_deviation(part, "diversity", 3)]
        return [*cells, with_deviation(part, "first", 2, 100), with_deviation(part, "eos", 2, 100)]

    means, layers = [], []
    for place, part in result["attention"].items():
        shuffled = result.get("shuffled", {}).get(place)
        kinds = ", ".join(dict.fromkeys(layer["attention"] for layer in part["layers"]))
        means.append(row(place, "mean", kinds, part, shuffled))
        for number, layer in enumerate(part["layers"]):
            other = shuffled and shuffled["layers"][number]
            layers.append(row(place, number + 1, layer["attention"], layer, other))
    return format_table(header, means + layers)


def temperature_table(result: dict[str, Any]) -> str:
    """Return the diversities of weights that do not sum to 1; empty if there are none."""
    from fairseq_sparse.measure.attention.attention_seeds import with_deviation
    from fairseq_sparse.tables.formats import format_table

    rows, temperatures = [], []
    for place, part in result["attention"].items():
        for name, layer in [("mean", part), *enumerate(part["layers"], start=1)]:
            values = layer.get("diversity_by_temperature")
            if values:
                rows.append((place, name, values))
                names = [key for key in values if key != "deviation"]
                temperatures = max(temperatures, names, key=len)
    header = ["place", "layer", *(f"diversity, τ = {value}" for value in temperatures)]
    cells = [
        [place, name, *(with_deviation(values, value, 3) for value in temperatures)]
        for place, name, values in rows
    ]
    return format_table(header, cells) if rows else ""


def previous_table(measured: dict[str, Any]) -> str:
    """Tabulate the null rate of each cross-attention head after each word or tag."""
    from fairseq_sparse.tables.formats import format_table

    names = [entry["name"] for entry in measured["previous"]]
    rows = [
        [layer_number, head_number]
        + [f"{100 * rate:.2f}" for rate in (head["null"], *map(head["null_after"].get, names))]
        for layer_number, layer in enumerate(measured["layers"], start=1)
        for head_number, head in enumerate(layer["heads"], start=1)
    ]
    header = ["layer", "head", "null rate (%)", *(f"after {name}" for name in names)]
    queries = [measured["queries"], *(entry["queries"] for entry in measured["previous"])]
    return format_table(header, [["", "queries", *queries], *rows])


def previous_counter(
    translator: Translator, options: argparse.Namespace, sentences: int
) -> NullByPrevious:
    """Return a counter of the null queries of cross-attention by the previous word, or its tag."""
    from fairseq_sparse.measure.attention.null_by_previous import NullByPrevious
    from fairseq_sparse.measure.attention.subword_merging import SubwordMerger

    tags = None
    if options.tags:
        tags = [line.split() for line in lines_of(options.tags)]
        if len(tags) != sentences:
            raise AnalysisError(f"{options.tags} has {len(tags)} lines for {sentences} sentences")
    task = translator.task
    merger = SubwordMerger(task.source_dictionary, task.target_dictionary, options.subwords)
    return NullByPrevious(translator.models[0], merger, tags)


def measure(
    translator: Translator, options: argparse.Namespace, label: str, diversity: bool
) -> AttentionStatistics:
    """Measure the attention of a translator's first model over all sentences."""
    from fairseq_sparse.measure.attention.attention_statistics import AttentionStatistics
    from fairseq_sparse.measure.attention.subword_merging import subword_merger

    padding = translator.task.source_dictionary.pad()
    merger = subword_merger(translator.task, options.subwords)
    statistics = AttentionStatistics(translator.models[0], padding, diversity, merger=merger)
    batches = translator.batches(options.subset, options.max_tokens)
    for sample in with_references(with_progress(batches, label), options.subset):
        statistics.add_batch(sample["net_input"])
    print_left_out(count_left_out(translator, options.subset, statistics.sentences))
    return statistics


def analyze(path: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return all the numbers of a model."""
    from fairseq_sparse.measure.attention.shuffled_references import (
        derange,
        with_reordered_references,
    )
    from fairseq_sparse.measure.model_loading import load_subset

    translator = load_one_model(path, options, name=name)
    label = f"{name}, {options.subset}" if len(options.path) > 1 else options.subset
    # What can be refused is refused before the measurements.
    sentences = len(load_subset(translator.task, options.subset))
    order = None if options.shuffled is None else derange(sentences, options.shuffled)
    counter = previous_counter(translator, options, sentences) if options.by_previous else None
    statistics = measure(translator, options, label, diversity=True)
    result = {
        "checkpoint": path,
        "data": options.data,
        "subset": options.subset,
        "subwords": options.subwords,
        "sentences": statistics.sentences,
        "left_out": count_left_out(translator, options.subset, statistics.sentences),
        "attention": statistics.rates(),
    }
    if order is not None:
        shuffled = with_reordered_references(translator, order)
        statistics = measure(shuffled, options, f"{label}, shuffled", diversity=False)
        result["shuffled_seed"] = options.shuffled
        result["shuffled_sentences"] = statistics.sentences
        result["shuffled"] = statistics.rates()
    if counter is not None:
        batches = translator.batches(options.subset, options.max_tokens)
        for sample in with_progress(batches, f"{label}, by the previous word"):
            counter.add_batch(sample)
        result["by_previous"] = counter.rates(options.by_previous)
    return result


def average_seeds(results: list[dict[str, Any]], names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the numbers of each model by its name; models with one name are averaged."""
    from fairseq_sparse.measure.attention.attention_seeds import group_by_name, mean_over_seeds

    return {
        name: group[0] if len(group) == 1 else mean_over_seeds(group)
        for name, group in group_by_name(results, names).items()
    }


def run(options: argparse.Namespace) -> None:
    if options.plots:
        from fairseq_sparse.plots.pictures import prepare_plots

        prepare_plots(options.plots)
    pairs = zip(options.path, options.names, strict=True)
    results = average_seeds([analyze(path, name, options) for path, name in pairs], options.names)
    if options.json:
        one = len(results) == 1
        write_json(options.json, *results.values() if one else [{"models": results}])
    pictures = []
    if options.plots:
        from fairseq_sparse.plots.attention_curves import save_curves

        pictures = save_curves(options.plots, results)
    for name, result in results.items():
        seeds = result.get("seeds", [result])
        paths = " ".join(model["checkpoint"] for model in seeds)
        print(f"{name}: {result['sentences']} sentences of {options.subset}, {paths}\n")
        print(table(result))
        if temperature_table(result):
            print(f"\n{temperature_table(result)}")
        for model in seeds:
            if "by_previous" in model:
                print(f"\n{model['checkpoint']}\n{previous_table(model['by_previous'])}")
        print()
    for path in pictures:
        print(path)


def main(arguments: list[str] | None = None) -> int:
    return finish("analyze attention", run, parse_arguments(arguments))
