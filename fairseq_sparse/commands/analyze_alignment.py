"""Measure precision, recall and error rate (AER, Och & Ney 2000) of word alignments.

GOLD has one line per sentence pair, with sure links such as 3-2 and possible links such as 3p2 or
3?2; an empty line has no links. A HYPOTHESIS is a file of links in Pharaoh form, such as 3-2, or a
folder made by "fairseq-sparse align". For a folder, the table has, for normal and for shifted
attention, the error rate of each layer's best head and of the mean of its heads, and the means of
both over the layers, AoH and AoL (ReLA, Fig. 4 and Table 5). The JSON file has every head.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.commands.common import (
    Table,
    add_format,
    add_json,
    check_outputs,
    command_parser,
    finish,
    print_tables,
)
from fairseq_sparse.files import write_json
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS

if TYPE_CHECKING:
    from fairseq_sparse.measure.alignment.alignment_error_rate import GoldLinks
    from fairseq_sparse.measure.alignment.word_alignment import Link

SIDES = ("source", "target")
MEASURES = ("precision", "recall", "aer")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("analyze alignment", __doc__)
    parser.add_argument("gold", metavar="GOLD", type=Path, help="links made by hand")
    parser.add_argument(
        "hypotheses", metavar="HYPOTHESIS", nargs="+", type=Path, help="file or folder"
    )
    for name, flag in (("GOLD", "--gold-base"), ("a HYPOTHESIS file", "--hypothesis-base")):
        parser.add_argument(
            flag,
            type=int,
            choices=(0, 1),
            help=f"number of the first word in {name} (default: 1 for *.talp, else 0)",
        )
    parser.add_argument(
        "--reverse-gold",
        action="store_true",
        help="GOLD was made for the other direction of translation: its links begin with the "
        "target word",
    )
    parser.add_argument(
        "--encoding", metavar="NAME", help="of all files read (default: UTF-8, else Latin-1)"
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


def count_words(paths: Sequence[Path], encoding: str | None) -> list[list[int]]:
    """Count how many words each line of each file has."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import read_lines

    return [[len(line.split()) for line in read_lines(path, encoding)] for path in paths]


def compare_words(folder: Path, options: argparse.Namespace) -> None:
    """Refuse a folder whose sentences differ in length from those that GOLD refers to."""
    from fairseq_sparse.measure.alignment.alignment_folder import WORDS

    names = [folder / name for name in WORDS]
    for name, found, text, expected in zip(
        names,
        count_words(names, "utf-8"),
        options.words,
        count_words(options.words, options.encoding),
        strict=True,
    ):
        if len(found) != len(expected):
            raise ValueError(f"{name} has {len(found)} lines, but {text} has {len(expected)}")
        for number, (here, there) in enumerate(zip(found, expected, strict=True), start=1):
            if here != there:
                raise ValueError(
                    f"{name}, line {number}: {here} words, but {there} in {text}: the links of "
                    f"{options.gold} are for other words (tokenised differently? subwords unknown?)"
                )


def check_positions(gold: list[GoldLinks], folder: Path, path: Path) -> None:
    """Refuse a gold alignment with links beyond the words of a folder."""
    from fairseq_sparse.measure.alignment.alignment_folder import WORDS

    lengths = zip(*count_words([folder / name for name in WORDS], "utf-8"), strict=True)
    for number, (links, sentence) in enumerate(zip(gold, lengths, strict=True), start=1):
        for link in sorted(links.possible):
            for side, position, length in zip(SIDES, link, sentence, strict=True):
                if position >= length:
                    raise ValueError(
                        f"{path}, line {number}: a link with {side} word {position + 1}, but there "
                        f"are {length} in {folder}: another tokenisation, or another --gold-base?"
                    )


def score_file(path: Path, gold: list[GoldLinks], options: argparse.Namespace) -> dict[str, Any]:
    """Compute precision, recall and error rate of the links in a file."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import (
        alignment_score,
        read_alignment,
    )

    proposed = read_alignment(path, options.hypothesis_base, options.encoding)
    hint_at_base(path, proposed, options.hypothesis_base, "--hypothesis-base")
    check_length(options.gold, gold, path, len(proposed))
    return {"hypothesis": str(path), **asdict(alignment_score(gold, proposed))}


def score_folder(path: Path, gold: list[GoldLinks], options: argparse.Namespace) -> dict[str, Any]:
    """Compute the error rates of a model for each head and for the mean of heads, with normal and
    with shifted attention."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import (
        alignment_score,
        read_alignment,
        summarize_readings,
    )
    from fairseq_sparse.measure.alignment.alignment_folder import MEAN, link_files, read_manifest

    manifest = read_manifest(path)
    if manifest["hypothesis"]:
        raise ValueError(
            f"{path} was made with --steps translations: its words are not those of the gold"
        )
    check_length(options.gold, gold, path, manifest["sentences"])
    if manifest["too_long"]:
        raise ValueError(
            f"{path}: {len(manifest['too_long'])} sentences are too long for the model and have no "
            "links, so all of their gold links would count as missed"
        )
    if options.words:
        compare_words(path, options)
    check_positions(gold, path, options.gold)
    rates = {
        reading: alignment_score(gold, read_alignment(path / name)).aer
        for reading, name in link_files(manifest).items()
    }
    numbers = [head for head in manifest["heads"] if head != MEAN]
    summaries = summarize_readings(rates, manifest)
    return {"hypothesis": str(path), "head_numbers": numbers, **summaries}


def hint_at_base(path: Path, links: list[set[Link]], base: int | None, flag: str) -> None:
    """Print a hint if no base was given and no link names word 0: words may be numbered from 1."""
    from fairseq_sparse.measure.alignment.alignment_error_rate import default_base

    named = {number for sentence in links for link in sentence for number in link}
    if base is None and default_base(path) == 0 and named and 0 not in named:
        hint = f"no link of {path} names word 0; if its first word has number 1, give {flag} 1"
        print(hint, file=sys.stderr)


def check_length(gold_path: Path, gold: list[GoldLinks], path: Path, sentences: int) -> None:
    if len(gold) != sentences:
        raise ValueError(f"{gold_path} has {len(gold)} lines, but {path} has {sentences}")


def score(options: argparse.Namespace) -> dict[str, Any]:
    from fairseq_sparse.measure.alignment.alignment_error_rate import read_gold

    gold = read_gold(options.gold, options.gold_base, options.encoding, options.reverse_gold)
    hint_at_base(options.gold, [x.possible for x in gold], options.gold_base, "--gold-base")
    sure = sum(len(links.sure) for links in gold)
    possible = sum(len(links.possible) for links in gold) - sure
    result: dict[str, Any] = {
        "gold": {"path": str(options.gold), "sure": sure, "possible": possible},
        "sentences": len(gold),
        "files": [],
        "folders": [],
    }
    for path in options.hypotheses:
        if path.is_dir():
            result["folders"].append(score_folder(path, gold, options))
        else:
            result["files"].append(score_file(path, gold, options))
    return result


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def file_table(files: list[dict[str, Any]]) -> Table:
    """Return header and rows of the scores of files."""
    rows = [
        [row["hypothesis"], row["links"], *(percent(row[name]) for name in MEASURES)]
        for row in files
    ]
    return ["hypothesis", "links", "precision (%)", "recall (%)", "AER (%)"], rows


def folder_table(folders: list[dict[str, Any]]) -> Table:
    """Return header and rows of the error rates of folders, by layer and kind of attention."""
    rows = []
    for folder in folders:
        for kind in filter(folder.__contains__, ALIGNMENT_KINDS):
            place = [folder["hypothesis"], kind]
            for layer in folder[kind]["layers"]:
                numbers = (percent(layer[name]) for name in ("best", "average"))
                rows.append([*place, layer["layer"], layer["best_head"] or "-", *numbers])
            means = (percent(folder[kind][name]) for name in ("aoh", "aol"))
            rows.append([*place, "average: AoH, AoL", "", *means])
    header = ["folder", "attention", "layer", "best head", "its AER (%)", "AER of the mean (%)"]
    return header, rows


def run(options: argparse.Namespace) -> None:
    result = score(options)
    if options.json:
        write_json(options.json, result)
    tables = [folder_table(result["folders"])] if result["folders"] else []
    if result["files"]:
        tables.append(file_table(result["files"]))
    gold = result["gold"]
    counts = f"{gold['sure']} sure and {gold['possible']} possible links of {gold['path']}"
    note = f"{result['sentences']} sentences; {counts}"
    print_tables(tables, result, options.format, [note])


def main(arguments: list[str] | None = None) -> int:
    return finish("analyze alignment", run, parse_arguments(arguments))
