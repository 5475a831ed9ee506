"""Show sentences that one system translates better than another, side by side (SUE, Table 7).

A SYSTEM is a file with one translation per line, or the folder of a recipe's run, whose
hyp.detok.txt is read; NAME= before it gives it a name. The sentences come in two lists: those for
which the second system is better by sacreBLEU's chrF, and those for which the first is, with the
largest differences first. Sentences with identical translations are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_sparse.commands.common import (
    check_outputs,
    command_parser,
    find_systems,
    finish,
    output_file,
    positive,
    refuse_overwriting,
)
from fairseq_sparse.files import lines_of, write_json


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("compare", __doc__)
    parser.add_argument("systems", nargs=2, metavar="[NAME=]SYSTEM", help="file or folder")
    parser.add_argument("--source", required=True, type=Path, help="raw source of the test set")
    parser.add_argument("--reference", required=True, type=Path, help="raw reference translations")
    parser.add_argument(
        "--most", type=positive, default=10, metavar="N", help="length of each list (default: 10)"
    )
    parser.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all differing sentences to this file"
    )
    options = parser.parse_args(arguments)
    check_outputs(parser, options, "json")
    return options


def compare(options: argparse.Namespace) -> str:
    """Return both lists as text, and write the JSON."""
    from dataclasses import asdict

    from fairseq_sparse.sheets.side_by_side import as_text, compare

    systems = find_systems(options.systems)
    if options.json:
        refuse_overwriting(options.json, systems.values())
    paths = [options.source, options.reference, *systems.values()]
    pairs = compare(*(lines_of(path) for path in paths))
    names = list(systems)
    if options.json:
        rows = [{**asdict(pair), "difference": pair.difference} for pair in pairs]
        write_json(options.json, {"systems": names, "metric": "chrF", "sentences": rows})
    better = [pair for pair in pairs if pair.difference > 0]
    worse = [pair for pair in reversed(pairs) if pair.difference < 0]
    parts = [f"{len(pairs)} sentences differ"]
    for first, second, found in ((names[1], names[0], better), (names[0], names[1], worse)):
        parts.append(f"{first} is better than {second} in {len(found)}:")
        parts.append(as_text(found[: options.most], names) or "(none)")
    return "\n\n".join(parts)


def run(options: argparse.Namespace) -> None:
    print(compare(options))


def main(arguments: list[str] | None = None) -> int:
    return finish("compare", run, parse_arguments(arguments))
