"""Clean and split tokenised text, before BPE.

Reads INPUT/{train,valid,test}.LANG and writes the same files into FOLDER.

With two languages, a training pair is left out, and counted, if a side is empty, has more than
--max-tokens tokens, or more than --max-ratio times as many as the other; validation and test pairs
are never left out. With --hold-out N, every N-th remaining training pair becomes a validation pair.
With --long-test TEXT, the pairs that --max-tokens leaves out become a test set: FOLDER/long.LANG,
and TEXT/long.LANG from the text before tokenisation.

With one language, nothing is left out. With --hold-out N, the last N-th of the training text is for
the test, and the N-th before it for validation. With --paragraphs, the lines between two empty ones
are joined with <nl>.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import add_output_folder, command_parser, refuse_alone
from fairseq_sparse.commands.values import positive
from fairseq_sparse.recipes.corpora.clean import clean_pairs, split_text


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser("corpus clean", __doc__)
    add = parser.add_argument
    add("--input", type=Path, required=True, metavar="DIR")
    add_output_folder(parser)
    add("--languages", nargs="+", required=True, metavar="LANG", help="one or two")
    add("--hold-out", type=positive, default=0, metavar="N")
    add = parser.add_argument_group("for two languages").add_argument
    add("--max-tokens", type=positive, default=0, metavar="N")
    add("--max-ratio", type=float, default=0.0, metavar="X")
    add("--long-test", type=Path, metavar="TEXT", help="folder with train.LANG")
    add = parser.add_argument_group("for one language").add_argument
    add("--paragraphs", action="store_true")
    options = parser.parse_args(arguments)
    refuse_alone(parser, options, "long_test", "max_tokens")
    of_pairs = options.max_tokens or options.max_ratio or options.long_test
    wrong = of_pairs if len(options.languages) == 1 else options.paragraphs
    if wrong or len(options.languages) > 2:
        parser.error(f"--languages: these flags are not for {len(options.languages)} languages")
    return options


def run(options: argparse.Namespace) -> None:
    places, hold_out = (options.input, options.output_folder), options.hold_out
    if len(options.languages) == 1:
        split_text(*places, options.languages[0], hold_out, options.paragraphs)
    else:
        limits = (options.max_tokens, options.max_ratio)
        clean_pairs(*places, options.languages, *limits, hold_out, options.long_test)
