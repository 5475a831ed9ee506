"""Score inflected forms as in CoNLL-SIGMORPHON 2018, task 1: word accuracy and edit distance.

Reads the output of fairseq-generate --post-process sentencepiece (lines T-ID and D-ID) on the data
of fairseq-sparse corpus inflection. An item without a guess counts as an empty guess. The same
lemma and tags in a language are one item, even if repeated, and the last form counts. The figures
for all languages are the means over them. --guesses writes the guesses to a folder in the shared
task's own format: LANG-out, with lemma, guess and tags. Such a folder, also with LANG-out.gz, can
be scored in place of fairseq-generate's output, and be the --baseline, against which McNemar's
exact test over all items is made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands import common
from fairseq_sparse.recipes.corpora.inflection_score import (
    baseline_table,
    figures_table,
    score_files,
)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = common.command_parser("score-inflection", __doc__)
    add = parser.add_argument
    text = "output of fairseq-generate, or a folder of guesses"
    add("generated", type=Path, metavar="GENERATED", help=text)
    add("--reference", type=Path, required=True, metavar="TSV", help="test.tsv")
    add("--guesses", type=Path, metavar="FOLDER", help="write LANG-out files into FOLDER")
    text = "the output or the guesses of another system, to be tested against"
    add("--baseline", type=Path, metavar="GENERATED", help=text)
    common.add_format(parser)
    common.add_json(parser)
    options = parser.parse_args(arguments)
    common.check_outputs(parser, options, "json")
    read = [path.resolve() for path in (options.generated, options.baseline) if path]
    if options.guesses and options.guesses.resolve() in read:
        parser.error(f"--guesses: {options.guesses} is read; name another folder")
    return options


def run(options: argparse.Namespace) -> None:
    result = score_files(options.generated, options.reference, options.guesses, options.baseline)
    tables = [figures_table(result)]
    if options.baseline:
        tables.append(baseline_table(result))
    common.print_tables(tables, result, options)
