"""Compare the translations of several systems.

A SYSTEM is the output of fairseq-generate, a file with one translation per line, or the folder of a
recipe's run, whose hyp.detok.txt is read; NAME= before it gives it a name. Each system is scored
with sacreBLEU and tested against the first one by its approximate randomisation: a small p means
that the difference, in either direction, is more than chance.

With --sentences, sentences that one of two systems translates better are shown side by side (SUE,
Table 7). They come in two lists: those for which the second system is better by sacreBLEU's chrF,
and those for which the first is, with the largest differences first. Identical translations are
left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_sparse.commands.common import (
    add_by_frequency,
    add_format,
    add_json,
    add_scoring,
    check_outputs,
    check_tokenizer,
    command_parser,
    find_systems,
    print_tables,
    refuse_alone,
    refuse_overwriting,
)
from fairseq_sparse.commands.values import positive


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("compare", __doc__)
    parser.add_argument("systems", nargs="+", metavar="[NAME=]SYSTEM", help="file or folder")
    add_scoring(parser)
    add_by_frequency(parser)
    text = "show the N sentences with the largest differences, in each direction"
    parser.add_argument("--sentences", type=positive, metavar="N", help=text)
    text = "raw source, to be shown with --sentences"
    parser.add_argument("--source", type=Path, metavar="FILE", help=text)
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.sentences and len(options.systems) != 2:
        parser.error(f"--sentences compares two systems, not {len(options.systems)}")
    refuse_alone(parser, options, "source", "sentences")
    if len(options.systems) == 1 and options.trials != parser.get_default("trials"):
        parser.error("--trials has no effect without a second system")
    check_tokenizer(parser, options, options.metrics, options.by_frequency is not None)
    check_outputs(parser, options, "json")
    return options


def run(options: argparse.Namespace) -> None:
    from fairseq_sparse.commands.score import measure_frequencies
    from fairseq_sparse.measure.text import scores, word_frequency
    from fairseq_sparse.measure.text.fairseq_output import (
        check_subwords,
        read_parallel,
        read_translations,
    )
    from fairseq_sparse.sheets import side_by_side

    paths = find_systems(options.systems)
    if options.json:
        refuse_overwriting(options.json, paths.values())
    names, (first, *others) = list(paths), paths.values()
    texts = [read_translations(first)]
    count = len(texts[0])
    texts += [read_parallel(path, count, first) for path in others]
    references = [read_parallel(path, count, first) for path in options.reference]
    for path, system in zip(paths.values(), texts, strict=True):
        check_subwords(path, system, references[0])
    metrics = [scores.make_metric(name, options.tokenize) for name in options.metrics]
    found = scores.score_systems(texts, references, metrics, options.trials)
    result: dict[str, Any] = scores.as_json(names, found)
    tables, notes = [scores.score_table(names, found)], [scores.signatures(found)]
    if options.by_frequency:
        of_words = measure_frequencies(options.by_frequency, options.tokenize, references)
        result["by_frequency"] = dict(zip(names, map(of_words, texts), strict=True))
        tables.append(word_frequency.frequency_table(result["by_frequency"]))
    if options.sentences:
        source = read_parallel(options.source, count, first) if options.source else None
        pairs = side_by_side.compare(source, references, *texts)
        notes += side_by_side.as_lists(pairs, names, options.sentences)
        result |= {"systems": names, "metric": "chrF"}
        result["sentences"] = [side_by_side.as_row(pair) for pair in pairs]
    print_tables(tables, result, options, notes)
