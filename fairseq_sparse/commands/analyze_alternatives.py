"""List the tokens of nonzero probability at each step of a sentence.

The model is given a translation token by token: the reference, or its own best translation. ">"
marks the given token among the alternatives at its step, "!" a given token with p = 0.
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import add_json, check_outputs, command_parser
from fairseq_sparse.commands.models import (
    add_max_tokens,
    add_model_arguments,
    add_sentences,
    add_steps,
    check_steps,
    check_typed,
    name_models,
    sentence_batches,
)
from fairseq_sparse.commands.values import positive
from fairseq_sparse.files import write_json


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze alternatives", __doc__)
    add_model_arguments(parser, several=True, subsets=True)
    add_sentences(parser)
    add_steps(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=10,
        metavar="N",
        help="tokens listed for each step, the most probable ones (default: 10)",
    )
    add_max_tokens(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    name_models(parser, options)
    check_typed(parser, options)
    check_steps(parser, options)
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.output.alternatives import find_alternatives
    from fairseq_sparse.measure.translator import with_best_translations
    from fairseq_sparse.tables.sentences import alternatives_text

    sentences = []
    for translator, subset, batches in sentence_batches(options):
        given = "reference"
        if options.beam:
            batches = with_best_translations(translator, batches, options.beam)
            given = f"best translation, beam {options.beam}"
        sentences += find_alternatives(translator, batches, subset, options.top, given)
    # Group the results of all models by sentence.
    order = {subset: place for place, subset in enumerate(options.subset)}
    sentences.sort(key=lambda found: (order[found["subset"]], found["sentence"]))
    if options.json:
        write_json(options.json, {"data": options.data, "sentences": sentences})
    print("\n\n\n".join(map(alternatives_text, sentences)))
