"""Make one multilingual corpus of characters from CoNLL-SIGMORPHON 2018, task 1.

Reads LANG-train-SETTING, LANG-dev and LANG-test (lemma, form and tags, separated by tabs) from a
copy of the shared task's repository, from its archive conll2018.tar.gz in a folder, or from a
folder with these files. Writes

    FOLDER/characters/{train,valid,test}.lemma   lang=turkish tag=N tag=PL e v
    FOLDER/characters/{train,valid,test}.form    e v l e r
    FOLDER/text/test.tsv                         language, lemma, tags, form

A space is written ▁, so that fairseq-generate --post-process sentencepiece restores words; what
would be ambiguous is written as its code point, such as U+00A0, which score-inflection decodes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.commands.values import positive
from fairseq_sparse.recipes.corpora.inflection import SETTINGS, prepare


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("corpus inflection", __doc__)
    add = parser.add_argument
    add("--raw", type=Path, required=True, metavar="DIR")
    add("--output-folder", dest="output", type=Path, required=True, metavar="FOLDER")
    add("--setting", required=True, choices=SETTINGS, help="of the training data")
    text = "default: all that have training data of the setting"
    add("--languages", nargs="+", default=[], metavar="LANG", help=text)
    text = "fail if there are fewer languages"
    add("--language-count", type=positive, default=0, metavar="N", help=text)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    prepare(**vars(options))
