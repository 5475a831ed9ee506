"""Measure how much samples repeat themselves, and how varied they are.

Reads the tokens (lines `H-ID`) of the outputs of `fairseq-generate --sampling`; NAME= before a file
gives it a name. --text adds plain text with one sample per line and tokens separated by spaces,
such as the test set itself, whose figures are the target.

  repetition    share of tokens that are among the L tokens before them, mean over L = 16, 32, 128
                and 512; Welleck et al. (2020) and Martins et al. (2020) measure it on predictions
  seq-rep-4     share of 4-grams that occur earlier in the sample (Welleck et al. 2020)
  distinct-n    distinct n-grams per token, mean over the samples (Martins et al. 2020)
"""

from __future__ import annotations

import argparse

from fairseq_sparse.commands.common import (
    add_format,
    add_json,
    check_outputs,
    command_parser,
    find_systems,
    print_tables,
    refuse_overwriting,
)
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze samples", __doc__)
    parser.add_argument(
        "samples", nargs="*", metavar="[NAME=]SAMPLES", help="output of fairseq-generate"
    )
    parser.add_argument(
        "--text", nargs="+", default=[], metavar="[NAME=]FILE", help="plain text, a sample a line"
    )
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    if not options.samples and not options.text:
        parser.error("give SAMPLES or --text")
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.measure.text.diversity import summarize, table
    from fairseq_sparse.measure.text.fairseq_output import sort_hypotheses

    paths = list(find_systems([*options.samples, *options.text], reference=False).items())
    if options.json:
        refuse_overwriting(options.json, [path for _, path in paths])
    rows = []
    for index, (name, path) in enumerate(paths):
        if index < len(options.samples):
            texts = [
                text for sentence in sort_hypotheses(path, lines_of(path), "H") for text in sentence
            ]
        else:
            texts = lines_of(path)
        if not texts:
            raise AnalysisError(f"{path} is empty")
        rows.append({"name": name, **summarize([text.split() for text in texts])})
    print_tables([table(rows)], {"rows": rows}, options)
