"""Measure precision, recall and error rate (AER, Och & Ney 2000) of word alignments.

GOLD has one line per sentence pair, with sure links such as 3-2 and possible links such as 3p2 or
3?2; an empty line has no links. A HYPOTHESIS is a file of links in Pharaoh form, such as 3-2, or a
folder made by "fairseq-sparse align". Words are numbered from 1 in *.talp, and from 0 in any other
file. For a folder, the table has, for normal and for shifted attention, the error rate of each
layer's best head and of the mean of its heads, and the means of both over the layers, AoH and AoL
(ReLA, Fig. 4 and Table 5). The JSON file has every head.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
    Table,
    add_format,
    add_json,
    check_outputs,
    command_parser,
    print_tables,
)
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.tables.output import percent

if TYPE_CHECKING:
    from fairseq_sparse.measure.alignment.alignment_error_rate import GoldLinks

MEASURES = ("precision", "recall", "aer")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze alignment", __doc__)
    parser.add_argument("gold", metavar="GOLD", type=Path, help="links made by hand")
    parser.add_argument(
        "hypotheses", metavar="HYPOTHESIS", nargs="+", type=Path, help="file or folder"
    )
    parser.add_argument(
        "--gold-base",
        type=int,
        choices=(0, 1),
        help="number of the first word in GOLD (default: 1 for *.talp, else 0)",
    )
    parser.add_argument(
        "--reverse-gold",
        action="store_true",
        help="GOLD was made for the other direction of translation: its links begin with the "
        "target word",
    )
    parser.add_argument(
        "--words",
        nargs=2,
        type=Path,
        metavar=("SOURCE", "TARGET"),
        help="the tokenised sentences that the links in GOLD refer to: they must have as many "
        "words as those of the folders",
    )
    add_format(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.words and not any(path.is_dir() for path in options.hypotheses):
        parser.error("--words: only folders have words to compare with")
    check_outputs(parser, options, "json")
    return options


def count_words(path: Path) -> list[int]:
    """Count how many words each line of a file has."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import read_lines

    return [len(line.split()) for line in read_lines(path)]


def check_words(folder: Path, gold: list[GoldLinks], options: argparse.Namespace) -> None:
    """Refuse a folder whose sentences differ in length from those of --words, or end before the
    last word that GOLD links."""
    from fairseq_sparse.measure.alignment.alignment_folder import WORDS

    for side, name in enumerate(WORDS):
        lengths = count_words(folder / name)
        if options.words:
            text = options.words[side]
            expected = count_words(text)
            check_length(text, len(expected), folder / name, len(lengths))
            for number, (here, there) in enumerate(zip(lengths, expected, strict=True), start=1):
                if here != there:
                    raise ValueError(
                        f"{folder / name}, line {number}: {here} words, but {there} in {text}: the "
                        f"links of {options.gold} are for other words (tokenised differently? "
                        "subwords unknown?)"
                    )
        for number, (links, length) in enumerate(zip(gold, lengths, strict=True), start=1):
            last = max((link[side] for link in links.possible), default=-1)
            if last >= length:
                raise ValueError(
                    f"{options.gold}, line {number}: a link with word {last + 1}, but {name} in "
                    f"{folder} has {length}: another tokenisation, or another --gold-base?"
                )


def score_file(path: Path, gold: list[GoldLinks], options: argparse.Namespace) -> dict[str, Any]:
    """Compute precision, recall and error rate of the links in a file."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import (
        alignment_score,
        read_alignment,
    )

    proposed = read_alignment(path)
    check_length(options.gold, len(gold), path, len(proposed))
    return {"hypothesis": str(path), **asdict(alignment_score(gold, proposed))}


def score_folder(path: Path, gold: list[GoldLinks], options: argparse.Namespace) -> dict[str, Any]:
    """Compute the error rates of a model for each head and for the mean of heads, with normal and
    with shifted attention."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import (
        alignment_score,
        read_alignment,
        summarize_rates,
    )
    from fairseq_sparse.measure.alignment.alignment_folder import link_files, read_manifest

    manifest = read_manifest(path)
    if manifest["hypothesis"]:
        raise ValueError(
            f"{path} was made with --steps translations: its words are not those of the gold"
        )
    check_length(options.gold, len(gold), path, manifest["sentences"])
    if manifest["too_long"]:
        raise ValueError(
            f"{path}: {len(manifest['too_long'])} sentences are too long for the model and have no "
            "links, so all of their gold links would count as missed"
        )
    check_words(path, gold, options)
    rates = [
        alignment_score(gold, read_alignment(path / name)).aer for name in link_files(manifest)
    ]
    summaries = summarize_rates(rates, len(manifest["layers"]))
    return {"hypothesis": str(path), "head_numbers": manifest["heads"][:-1], **summaries}


def check_length(expected_in: Path, expected: int, path: Path, found: int) -> None:
    if expected != found:
        raise ValueError(f"{expected_in} has {expected} lines, but {path} has {found}")


def score(options: argparse.Namespace) -> dict[str, Any]:
    from fairseq_sparse.measure.alignment.alignment_error_rate import default_base, read_gold

    gold = read_gold(options.gold, options.gold_base, options.reverse_gold)
    named = {number for links in gold for link in links.possible for number in link}
    if options.gold_base is None and default_base(options.gold) == 0 and 0 not in named:
        text = "if its first word has number 1, give --gold-base 1"
        print(f"no link of {options.gold} names word 0; {text}", file=sys.stderr)
    sure = sum(len(links.sure) for links in gold)
    possible = sum(len(links.possible) for links in gold) - sure
    folders = [path for path in options.hypotheses if path.is_dir()]
    files = [path for path in options.hypotheses if not path.is_dir()]
    return {
        "gold": {"path": str(options.gold), "sure": sure, "possible": possible},
        "sentences": len(gold),
        "files": [score_file(path, gold, options) for path in files],
        "folders": [score_folder(path, gold, options) for path in folders],
    }


def file_table(files: list[dict[str, Any]]) -> Table:
    """Return header and rows of the scores of files."""
    rows = [
        [row["hypothesis"], row["links"], *(percent(row[name]) for name in MEASURES)]
        for row in files
    ]
    return ["hypothesis", "links", "precision (%)", "recall (%)", "AER (%)"], rows


def folder_table(folders: list[dict[str, Any]]) -> Table:
    """Return header and rows of the error rates of folders, by layer and kind of attention."""
    rows: list[list[object]] = []
    for folder in folders:
        for kind in ALIGNMENT_KINDS:
            place = [folder["hypothesis"], kind]
            for layer in folder[kind]["layers"]:
                numbers = (percent(layer[name]) for name in ("best", "average"))
                rows.append([*place, layer["layer"], layer["best_head"], *numbers])
            means = (percent(folder[kind][name]) for name in ("aoh", "aol"))
            rows.append([*place, "average: AoH, AoL", "", *means])
    header = ["folder", "attention", "layer", "best head", "its AER (%)", "AER of the mean (%)"]
    return header, rows


def run(options: argparse.Namespace) -> None:
    result = score(options)
    tables = [folder_table(result["folders"])] if result["folders"] else []
    if result["files"]:
        tables.append(file_table(result["files"]))
    gold = result["gold"]
    counts = f"{gold['sure']} sure and {gold['possible']} possible links of {gold['path']}"
    note = f"{result['sentences']} sentences; {counts}"
    print_tables(tables, result, options, [note])
