"""Split pairs of which many share a sentence, so that no test sentence is in the training text.

Reads INPUT/train.LANG and writes OUTPUT/{train,valid,test}.LANG. Pairs that share a sentence in
either language, directly or through others, are a group, and go into one split together. The
translations of a group are the references of the test set: test.LANG, test.LANG.2 and so on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser, finish, positive
from fairseq_sparse.recipes.corpora.groups import split_groups


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser("corpus split", __doc__)
    parser.add_argument("--input", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--languages", nargs=2, required=True, metavar="LANG")
    parser.add_argument("--valid", type=positive, required=True, metavar="N", help="groups")
    parser.add_argument("--test", type=positive, required=True, metavar="N", help="groups")
    parser.add_argument(
        "--references",
        type=positive,
        default=1,
        metavar="N",
        help="of a test sentence (default: 1)",
    )
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    sizes = options.valid, options.test, options.references
    split_groups(options.input, options.output, options.languages, *sizes)


def main(arguments: list[str] | None = None) -> int:
    return finish("corpus split", run, parse_arguments(arguments))
