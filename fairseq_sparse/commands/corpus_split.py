"""Split pairs of which many share a sentence, so that no test sentence is in the training text.

Reads INPUT/train.LANG and writes OUTPUT/{train,valid,test}.LANG. Pairs that share a sentence in
either language, directly or through others, are a group, and go into one split together. The
translations of a group are the references of the test set: test.LANG, test.LANG.2 and so on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.commands.values import positive
from fairseq_sparse.recipes.corpora.groups import split_groups


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("corpus split", __doc__)
    add = parser.add_argument
    add("--input", dest="source", type=Path, required=True, metavar="DIR")
    add("--output", type=Path, required=True, metavar="DIR")
    add("--languages", nargs=2, required=True, metavar="LANG")
    add("--valid", type=positive, required=True, metavar="N", help="groups")
    add("--test", type=positive, required=True, metavar="N", help="groups")
    text = "of a test sentence (default: 1)"
    add("--references", type=positive, default=1, metavar="N", help=text)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    split_groups(**vars(options))
