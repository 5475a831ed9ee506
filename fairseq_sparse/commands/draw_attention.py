"""Draw the attention of a trained translation model in one sentence of a prepared data set.

The model reads the source sentence and its reference, or its own translation. Rows are queries,
labelled by the target token that is predicted next (cross-attention, decoder) or by the source
token (encoder). Columns are keys. A weight that is exactly 0 is a white cell without an outline,
and a query whose weights are all 0 is a hatched row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
    PICTURES,
    check_outputs,
    command_parser,
    finish,
    not_negative,
    numbers,
    picture_file,
    positive,
)
from fairseq_sparse.commands.models import (
    add_model_arguments,
    add_steps,
    check_steps,
    load_one_model,
    name_models,
)
from fairseq_sparse.errors import AnalysisError

if TYPE_CHECKING:
    import numpy as np
    from fairseq.data import Dictionary
    from torch import Tensor

    from fairseq_sparse.measure.translator import Translator
    from fairseq_sparse.tasks.translation_sparse import TranslationSparseTask


def choice_of_heads(text: str) -> str | list[int]:
    """Parse `all`, `mean`, or numbers of heads from 1, for argparse."""
    return text if text in ("all", "mean") else numbers(text)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("draw attention", __doc__)
    add_model_arguments(parser)
    parser.add_argument(
        "--sentence",
        required=True,
        type=not_negative,
        metavar="N",
        help="number of the sentence, from 0, as fairseq-generate prints it: S-N",
    )
    parser.add_argument(
        "--place",
        choices=("cross", "encoder", "decoder"),
        default="cross",
        help="cross-attention, or self-attention of the encoder or decoder (default: cross)",
    )
    parser.add_argument(
        "--layer", type=positive, metavar="N", help="layer number, from 1 (default: the last)"
    )
    parser.add_argument(
        "--heads",
        type=choice_of_heads,
        default="all",
        metavar="all|mean|N,...",
        help="draw a panel for each head, for their mean, or for these, from 1 (default: all)",
    )
    add_steps(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=picture_file,
        metavar="FILE",
        help=f"picture ({', '.join(PICTURES)})",
    )
    options = parser.parse_args(arguments)
    check_steps(parser, options)
    options.path, options.names = [options.path], None
    name_models(parser, options)
    check_outputs(parser, options, "output")
    return options


def read_sentence(translator: Translator, options: argparse.Namespace) -> dict[str, Any]:
    """Return a fairseq batch with only the chosen sentence."""
    from fairseq_sparse.measure.translator import with_references

    batches = translator.batches(options.subset, 100_000, [options.sentence])
    samples = list(batches if options.beam else with_references(batches, options.subset))
    if not samples:
        raise AnalysisError(
            f"--sentence {options.sentence}: {options.subset} has no such sentence, or it is too "
            "long for the model"
        )
    return samples[0]


def collect_weights(
    model: Any, net_input: dict[str, Any], place: str, layer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Collect the weights `[heads, queries, keys]` of a layer, from 0, in a batch of one sentence,
    and a boolean array `[queries, keys]`, true for keys that a query may not see."""
    import torch

    from fairseq_sparse.measure.attention.attention_statistics import watch_attention

    found = {}

    def keep(where, number, weights, masked):
        found[where, number] = weights[:, 0], masked.expand(weights.shape[1:])[0]

    with torch.no_grad(), watch_attention(model, keep, [place]):
        model.extract_features(**net_input)
    weights, masked = found[place, layer]
    return weights.float().cpu().numpy(), masked.cpu().numpy()


def choose(number: int | None, count: int, flag: str, what: str) -> int:
    """Return the index, from 0, of a number from 1 that must exist; None means the last one."""

    if number is not None and number > count:
        raise AnalysisError(f"{flag} {number}: the model has {count} {what}")
    return (number or count) - 1


def panels_of(weights: np.ndarray, heads: str | list[int]) -> tuple[list[np.ndarray], list[str]]:
    """Return the weights and the title of each panel."""
    if heads == "mean":
        return [weights.mean(0)], [f"mean of {len(weights)} heads"]
    numbers = range(1, len(weights) + 1) if heads == "all" else heads
    chosen = [choose(number, len(weights), "--heads", "heads in this layer") for number in numbers]
    return [weights[number] for number in chosen], [f"head {number + 1}" for number in chosen]


def labels(
    task: TranslationSparseTask, net_input: dict[str, Tensor], target: Tensor, text: str
) -> dict[str, tuple[list[str], list[str], str, str]]:
    """Return, for each place, the labels of the queries and of the keys, and both axis titles."""
    from fairseq_sparse.plots.pictures import unescaped

    def names(tokens: Tensor, words: Dictionary) -> list[str]:
        return unescaped([words[token] for token in tokens.tolist()])

    source = names(net_input["src_tokens"][0], task.source_dictionary)
    previous = names(net_input["prev_output_tokens"][0], task.target_dictionary)
    following = names(target, task.target_dictionary)
    return {
        "cross": (following, source, text, "source"),
        "encoder": (source, source, "source", "source"),
        "decoder": (following, previous, f"{text}: next token", f"{text}: tokens so far"),
    }


def draw(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.attention.attention_statistics import (
        attention_kind,
        attention_modules,
    )
    from fairseq_sparse.measure.translator import with_best_translations
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
    from fairseq_sparse.plots.attention_plots import draw_attention
    from fairseq_sparse.plots.pictures import save_figure

    translator = load_one_model(options.path[0], options)
    (model,), task = translator.models, translator.task
    modules = attention_modules(model)[options.place]
    place = f"{options.place} self-attention" if options.place != "cross" else "cross-attention"
    if not modules:
        raise AnalysisError(f"--place {options.place}: the model has no {place}")
    layer = choose(options.layer, len(modules), "--layer", f"layers of {place}")
    kind = attention_kind(modules[layer])
    sample = read_sentence(translator, options)
    if options.beam:
        (sample,) = with_best_translations(translator, [sample], options.beam)
    net_input, target = sample["net_input"], sample["target"][0]
    weights, masked = collect_weights(model, net_input, options.place, layer)
    panels, titles = panels_of(weights, options.heads)
    text = "the model's translation" if options.beam else "reference"
    queries, keys, query_label, key_label = labels(task, net_input, target, text)[options.place]
    name = "/".join(Path(options.names[0]).parts[-2:])
    figure = draw_attention(
        panels,
        queries,
        keys,
        titles,
        masked=masked,
        sums_to_one=ATTENTION_KINDS[kind].sums_to_one,
        query_label=query_label,
        key_label=key_label,
        title=f"{name}: output {translator.describe_output()}\n"
        f"{place} {kind}, layer {layer + 1} of {len(modules)}, "
        f"sentence {options.sentence} of {options.subset}",
    )
    save_figure(figure, options.output)


def run(options: argparse.Namespace) -> None:
    draw(options)
    print(f"wrote {options.output}")


def main(arguments: list[str] | None = None) -> int:
    return finish("draw attention", run, parse_arguments(arguments))
