"""The subcommands of "analyze output" that look at single sentences: alternatives, tree."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fairseq_sparse.commands.common import (
    add_hypothesis,
    batches,
    describe,
    positive,
    translators,
)
from fairseq_sparse.errors import AnalysisError


def add_alternatives(parser: argparse.ArgumentParser) -> None:
    add_sentence(parser)
    add_hypothesis(parser, "give the model its own best translation instead of the reference")
    parser.add_argument(
        "--most",
        type=positive,
        default=10,
        metavar="N",
        help="tokens listed for each step (default: 10)",
    )


def add_tree(parser: argparse.ArgumentParser) -> None:
    add_sentence(parser)
    parser.add_argument(
        "--nodes", type=positive, default=1000, metavar="N", help="limit of a tree (default: 1000)"
    )
    parser.add_argument(
        "--least",
        type=float,
        default=0.01,
        metavar="P",
        help="show the nodes with at least this total probability (default: 0.01)",
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw PNG and SVG pictures")


def add_sentence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sentence",
        type=sentence_numbers,
        required=True,
        metavar="N,M,FROM-TO",
        help="sentence numbers as fairseq-generate prints them, from 0",
    )


def sentence_numbers(text: str) -> list[int]:
    """Parse ``3,7-9`` as 3, 7, 8, 9, for argparse."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"{text}: no sentence")
    return sorted(set(numbers))


def run_alternatives(options: argparse.Namespace) -> tuple[dict, str]:
    from fairseq_sparse.measure.output.alternatives import as_text, find_alternatives

    sentences = []
    for translator in translators(options, options.sentence):
        for subset in options.subset:
            found = find_alternatives(
                translator,
                batches(translator, subset, options, "teacher-forced"),
                subset,
                options.most,
                options.beam,
            )
            check_found(options, subset, {sentence["sentence"] for sentence in found})
            sentences += found
    # Group the results of all models by sentence.
    order = {subset: place for place, subset in enumerate(options.subset)}
    sentences.sort(key=lambda found: (order[found["subset"]], found["sentence"]))
    result = {"data": options.data, "sentences": sentences}
    return result, "\n\n\n".join(map(as_text, sentences))


def run_tree(options: argparse.Namespace) -> tuple[dict, str]:
    from fairseq_sparse.measure.output.alternatives import source_texts
    from fairseq_sparse.measure.output.support_tree import (
        as_json,
        as_text,
        draw,
        title_of,
        trees_of,
    )
    from fairseq_sparse.plots.pictures import prepare_plots, save_png_and_svg

    if options.plots:
        prepare_plots(options.plots)
    texts, rows = [], []
    for translator in translators(options, options.sentence):
        words = translator.task.target_dictionary
        for subset in options.subset:
            data = batches(translator, subset, options, "tree")
            found, sources = {}, {}
            for sample in data:
                found.update(trees_of(translator, sample, options.nodes))
                sources.update(source_texts(translator, sample))
            check_found(options, subset, set(found))
            for number, tree in sorted(found.items()):
                title = title_of(tree, f"{translator.name}, {subset} {number}", sources[number])
                texts.append(f"{title}\n{as_text(tree, words.__getitem__, options.least)}")
                place = {**describe(translator, subset), "sentence": number}
                place["source"] = sources[number]
                rows.append({**place, **as_json(tree, words.__getitem__)})
                if options.plots:
                    name = f"{translator.name}_" if len(options.path) > 1 else ""
                    stem = f"tree_{name}{subset}_{number}".replace(os.sep, "_")
                    figure = draw(tree, words.__getitem__, options.least, sources[number])
                    texts += map(str, save_png_and_svg(figure, options.plots, stem))
    return {"data": options.data, "trees": rows}, "\n\n".join(texts)


def check_found(options: argparse.Namespace, subset: str, found: set[int]) -> None:
    missing = set(options.sentence) - found
    if missing:
        raise AnalysisError(f"--sentence {min(missing)}: no such sentence in {subset}, or too long")
