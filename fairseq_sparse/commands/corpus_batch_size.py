"""Find the --max-tokens and --update-freq for a given number of target tokens in an update.

fairseq's --max-tokens counts the longer side of each sentence pair, padding included; papers count
target tokens. Batches are formed as fairseq does, from the lengths in the training data (or in a
random part of it). Prints one number, and on standard error the mean number of target tokens in an
update, with EOS and without padding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import command_parser, finish, positive
from fairseq_sparse.recipes.corpora.batch_size import find_batch_size, read_lengths
from fairseq_sparse.recipes.corpora.reading import log


def run(options: argparse.Namespace) -> None:
    lengths = read_lengths(options.data, options.source_lang, options.target_lang)
    wanted = (options.target_tokens, options.devices, options.device_tokens)
    max_tokens, update_freq, mean = find_batch_size(lengths, *wanted)
    log(f"{max_tokens} x {update_freq}: {mean:.0f} target tokens per update on average")
    print(max_tokens if options.print == "max-tokens" else update_freq)


def main(arguments: list[str] | None = None) -> int:
    parser = command_parser("corpus batch-size", __doc__)
    add = parser.add_argument
    add("data", metavar="BIN", type=Path, help="folder of fairseq-preprocess")
    add("--source-lang", required=True, metavar="LANG")
    add("--target-lang", required=True, metavar="LANG")
    number = {"type": positive, "required": True, "metavar": "N"}
    add("--target-tokens", help="target tokens per update", **number)
    add("--device-tokens", help="largest --max-tokens of a device", **number)
    add("--devices", help="number of devices", **number)
    add("--print", choices=("max-tokens", "update-freq"), required=True)
    return finish("corpus batch-size", run, parser.parse_args(arguments))
