"""Draw the attention of a trained translation model in one sentence of a prepared data set.

The model reads the source sentence and its reference, or its own translation. Rows are queries,
labelled by the target token that is predicted next (cross-attention, decoder) or by the source
token (encoder). Columns are keys. A weight that is exactly 0 is a white cell without an outline,
and a query whose weights are all 0 is a hatched row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_sparse.commands.common import check_outputs, command_parser
from fairseq_sparse.commands.models import (
    add_model_arguments,
    add_sentences,
    add_steps,
    check_steps,
    check_typed,
    name_models,
    sentence_batches,
)
from fairseq_sparse.commands.values import PICTURES, numbers, picture_file, positive
from fairseq_sparse.errors import AnalysisError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_sparse.measure.attention.forced_attention import SentenceAttention
    from fairseq_sparse.measure.translator import Translator
    from fairseq_sparse.tasks.translation_sparse import TranslationSparseTask

Labels = tuple[list[str], list[str], str, str]


def choice_of_heads(text: str) -> str | list[int]:
    """Parse `all`, `mean`, or numbers of heads from 1, for argparse."""
    return text if text in ("all", "mean") else numbers(text)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("draw attention", __doc__)
    add_model_arguments(parser)
    add_sentences(parser)
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
    if options.sentence and len(options.sentence) > 1:
        parser.error("--sentence: draw one sentence at a time")
    options.path = [options.path]
    options.max_tokens = 100_000
    name_models(parser, options)
    check_typed(parser, options)
    check_steps(parser, options)
    check_outputs(parser, options, "output")
    return options


def attention_of(
    translator: Translator, subset: str, batches: list[dict], options: argparse.Namespace
) -> SentenceAttention:
    """Return the attention in the only sentence of the batches, in the chosen place."""
    from fairseq_sparse.measure.attention.forced_attention import forced_attention
    from fairseq_sparse.measure.translator import with_best_translations, with_references

    if options.beam:
        samples = with_best_translations(translator, batches, options.beam)
    else:
        samples = with_references(batches, subset)
    (sample,) = samples
    padding = translator.task.source_dictionary.pad()
    return next(forced_attention(translator.model, sample, padding, [options.place]))


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


def labels(task: TranslationSparseTask, pair: SentenceAttention, place: str, text: str) -> Labels:
    """Return the labels of the queries and of the keys, and the titles of both axes."""
    from fairseq_sparse.plots.pictures import unescaped

    source, target = (
        unescaped([words[token] for token in tokens.tolist()])
        for words, tokens in (
            (task.source_dictionary, pair.source),
            (task.target_dictionary, pair.target),
        )
    )
    if place == "encoder":
        return source, source, "source", "source"
    if place == "cross":
        return target, source, text, "source"
    # The first input is EOS.
    return target, [target[-1], *target[:-1]], f"{text}: next token", f"{text}: tokens so far"


def run(options: argparse.Namespace) -> None:
    import numpy as np

    from fairseq_sparse.measure.attention.attention_statistics import (
        attention_kind,
        attention_modules,
    )
    from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
    from fairseq_sparse.plots.attention_plots import draw_attention
    from fairseq_sparse.plots.pictures import save_figure

    ((translator, subset, batches),) = sentence_batches(options)
    modules = attention_modules(translator.model)[options.place]
    place = f"{options.place} self-attention" if options.place != "cross" else "cross-attention"
    if not modules:
        raise AnalysisError(f"--place {options.place}: the model has no {place}")
    layer = choose(options.layer, len(modules), "--layer", f"layers of {place}")
    kind = attention_kind(modules[layer])
    pair = attention_of(translator, subset, batches, options)
    weights = pair.weights[options.place][layer].numpy()
    panels, titles = panels_of(weights, options.heads)
    text = "the model's translation" if options.beam else "reference"
    queries, keys, query_label, key_label = labels(translator.task, pair, options.place, text)
    future = np.triu(np.ones(weights.shape[1:], dtype=bool), 1)
    name = "/".join(Path(options.names[0]).parts[-2:])
    figure = draw_attention(
        panels,
        queries,
        keys,
        titles,
        masked=future & (options.place == "decoder"),
        sums_to_one=ATTENTION_KINDS[kind].sums_to_one,
        query_label=query_label,
        key_label=key_label,
        title=f"{name}: output {translator.describe_output()}\n"
        f"{place} {kind}, layer {layer + 1} of {len(modules)}, "
        + (f"sentence {options.sentence[0]} of {subset}" if options.sentence else "typed"),
    )
    save_figure(figure, options.output)
    print(f"wrote {options.output}")
