"""Extract the sentences of a corpus from its files and archives, one per line.

Each --take adds the sentences of a file, or of a pair of parallel files, to a split, in the order
given:

    --take train text europarl.tgz!training/europarl-v8.ro-en.ro europarl.tgz!training/europarl...

A PLACE is FILE or ARCHIVE!MEMBER below --raw; an archive is a tar or a zip, and anything may be
compressed (gzip, bzip2, xz). If there is no FILE, FILE.gz will do, and the other way round. FORMAT
is one of

{formats}

Writes FOLDER/{{train,valid,test}}.LANG, in UTF-8. Any run of white space becomes one space. Pairs
with an empty side are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.recipes.corpora import extract, formats


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    listed = formats.__doc__.partition("\n\n")[2].rstrip()
    parser = command_parser("corpus extract", __doc__.format(formats=listed))
    add = parser.add_argument
    add("--raw", type=Path, required=True, metavar="DIR", help="with the files")
    add("--output-folder", dest="output", type=Path, required=True, metavar="FOLDER")
    add("--languages", nargs="+", required=True, metavar="LANG")
    takes = {"action": "append", "nargs": "+", "metavar": ("SPLIT", "FORMAT PLACE")}
    text = "train, valid or test; the format; a place for each of --languages"
    add("--take", required=True, help=text, **takes)
    text = "languages whose Romanian diacritics are removed"
    add("--remove-diacritics", nargs="+", default=[], metavar="LANG", help=text)
    options = parser.parse_args(arguments)
    if unknown := set(options.remove_diacritics) - set(options.languages):
        parser.error(f"--remove-diacritics {unknown.pop()}: not one of --languages")
    return options


def run(options: argparse.Namespace) -> None:
    extract.extract(**vars(options))
