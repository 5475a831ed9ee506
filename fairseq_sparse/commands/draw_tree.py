"""Draw all translations of nonzero probability of a sentence as a tree (S2S, Fig. 1).

The tree is printed with one token per line; --plots draws it as a picture, too. A sparse model may
have few translations; the tree of another ends at a limit.
"""

from __future__ import annotations

import argparse
import os

from fairseq_sparse.commands.common import (
    add_json,
    add_plots,
    check_outputs,
    command_parser,
    prepare_plots,
    write_plots,
)
from fairseq_sparse.commands.models import (
    add_max_tokens,
    add_model_arguments,
    add_sentences,
    check_typed,
    describe,
    name_models,
    sentence_batches,
)
from fairseq_sparse.commands.values import positive, share
from fairseq_sparse.files import write_json


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("draw tree", __doc__)
    add_model_arguments(parser, several=True, subsets=True)
    add_sentences(parser, translated=False)
    parser.add_argument(
        "--nodes", type=positive, default=1000, metavar="N", help="limit of a tree (default: 1000)"
    )
    parser.add_argument(
        "--min-prob",
        type=share,
        default=0.01,
        metavar="P",
        help="show the nodes with at least this total probability (default: 0.01)",
    )
    add_max_tokens(parser)
    add_json(parser)
    add_plots(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    check_typed(parser, options)
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.output.alternatives import source_texts
    from fairseq_sparse.measure.output.support_tree import trees_of
    from fairseq_sparse.tables.sentences import tree_text

    prepare_plots(options)
    trees = []
    for translator, subset, batches in sentence_batches(options):
        # 1.5-ReLU gives weights; divided by their sum they are probabilities.
        translator = translator.normalised()
        model = describe(translator, subset)
        found = [
            {
                **model,
                "sentence": number,
                "source": source_texts(translator, sample)[number],
                **tree,
            }
            for sample in batches
            for number, tree in trees_of(translator, sample, options.nodes)
        ]
        trees += sorted(found, key=lambda tree: tree["sentence"])
    if options.json:
        write_json(options.json, {"data": options.data, "trees": trees})
    print("\n\n".join(f"{title(tree)}\n{tree_text(tree, options.min_prob)}" for tree in trees))
    if options.plots:
        from fairseq_sparse.plots.support_tree import draw_tree

        figures = {}
        for tree in trees:
            name = f"{tree['name']}-" if len(options.path) > 1 else ""
            name = f"{name}{tree['subset']}-{tree['sentence']}".replace(os.sep, "_")
            seeds = sum(key == name or key.startswith(f"{name}-seed-") for key in figures)
            name += f"-seed-{seeds + 1}" if seeds else ""
            figures[name] = draw_tree(tree, options.min_prob, tree["source"])
        write_plots(figures, options)


def title(tree: dict) -> str:
    """Return two lines about a tree: its sentence and size, and the source."""
    whole = "all" if tree["complete"] else "only some of the"
    return (
        f"{tree['name']}, {tree['subset']} {tree['sentence']}: {whole} translations, "
        f"{tree['translations']} with total probability {tree['mass']:.4g}\n"
        f"source: {tree['source']}"
    )
