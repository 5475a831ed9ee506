"""Score inflected forms as in CoNLL-SIGMORPHON 2018, task 1: word accuracy and edit distance.

Reads the output of fairseq-generate --post-process sentencepiece (lines T-ID and D-ID) on the data
of fairseq-sparse corpus inflection. An item without a guess counts as an empty guess. The same
lemma and tags in a language are one item, even if repeated, and the last form counts. The figures
for all languages are the means over them.

Prints a Markdown table, and writes the figures as JSON and, in a folder, the guesses in the shared
task's own format: LANG-out, with lemma, guess and tags.
"""

from __future__ import annotations

from pathlib import Path

from fairseq_sparse.commands.common import check_outputs, command_parser, finish, output_file
from fairseq_sparse.recipes.corpora.inflection_score import score_files


def main(arguments: list[str] | None = None) -> int:
    parser = command_parser("score-inflection", __doc__)
    text = "output of fairseq-generate"
    parser.add_argument("generated", type=Path, metavar="GENERATED", help=text)
    parser.add_argument("--reference", type=Path, required=True, metavar="TSV", help="test.tsv")
    parser.add_argument("--guesses", type=Path, required=True, metavar="DIR", help="for LANG-out")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE", help="figures")
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "json")
    return finish("score-inflection", lambda: print(score_files(**vars(options))))
