#!/usr/bin/env python3
"""Prepare the text of a language model for fairseq-preprocess: tokens, or BPE units of tokens.

Reads the files --train, --valid and --test, or splits --single: the last twentieth of its lines is
for the test, the one before for validation. A place is FILE, FILE.gz or ARCHIVE!MEMBER below --raw.
Writes OUTPUT/text/{train,valid,test}, and OUTPUT/bpe.codes with --bpe-merges.

Each line stays a line, even if empty. With --paragraphs, the lines between two empty ones are
joined with <nl>, so that a language model, for which the end of a line is the end of a text, can
learn and write several lines.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from command_line import exit_status, positive, script_parser
from corpus_files import CorpusError, add_fetched, decode, log, open_atomically, read_lines, run
from corpus_tokens import Tokenize, tokenizer

SPLITS = ("train", "valid", "test")
HELD_OUT = 20  # a twentieth of a single text is for validation, and one for the test
LINE_BREAK = "<nl>"


def lines_of(raw: Path, place: str) -> Iterator[str]:
    """Return the lines of a text, without their line ends."""
    if not (raw / place).is_file() and (raw / f"{place}.gz").is_file():
        place += ".gz"
    return (line.rstrip("\r\n") for line in decode(read_lines(raw, place), place))


def paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the groups of lines between empty lines."""
    found: list[str] = []
    for line in lines:
        if line.strip():
            found.append(line)
        elif found:
            yield found
            found = []
    if found:
        yield found


def units(lines: Iterable[str], tokens: Tokenize, join: bool) -> Iterator[str]:
    """Return the tokenised texts, one per line."""
    if not join:
        return map(tokens, lines)
    return (f" {LINE_BREAK} ".join(map(tokens, part)) for part in paragraphs(lines))


def split_text(texts: list[str]) -> dict[str, list[str]]:
    """Split a single text into training, validation and test."""
    held_out = len(texts) // HELD_OUT
    if not held_out:
        raise CorpusError(f"a text of {len(texts)} lines is too short to be split")
    first, second = len(texts) - 2 * held_out, len(texts) - held_out
    return dict(zip(SPLITS, (texts[:first], texts[first:second], texts[second:]), strict=True))


def write(path: Path, lines: Iterable[str]) -> None:
    with open_atomically(path) as handle:
        count = 0
        for line in lines:
            handle.write(line + "\n")
            count += bool(line)
        if not count:
            raise CorpusError(f"no text for {path.name}")


def split_into_units(args: argparse.Namespace) -> None:
    """Learn merges on the training text and apply them to all three."""
    counts: Counter[str] = Counter()
    with open(args.output / "tokens" / "train", encoding="utf-8") as handle:
        for line in handle:
            counts.update(line.split())
    del counts[LINE_BREAK]
    codes = args.output / "bpe.codes"
    with open_atomically(codes) as handle:
        words = (f"{word} {count}" for word, count in counts.items())
        learn_bpe(words, handle, args.bpe_merges, is_dict=True)
    with open(codes, encoding="utf-8") as handle:
        bpe = BPE(handle, glossaries=[LINE_BREAK])
    for split in SPLITS:
        with open(args.output / "tokens" / split, encoding="utf-8") as handle:
            write(
                args.output / "text" / split,
                (bpe.process_line(line.rstrip("\n")) for line in handle),
            )


def prepare(args: argparse.Namespace) -> None:
    tokens = tokenizer(args.language, args.tokens, strip_diacritics=False)
    folder = args.output / ("tokens" if args.bpe_merges else "text")
    if args.single is not None:
        texts = list(units(lines_of(args.raw, args.single), tokens, args.paragraphs))
        for split, part in split_text(texts).items():
            write(folder / split, part)
    else:
        for split in SPLITS:
            lines = lines_of(args.raw, getattr(args, split))
            write(folder / split, units(lines, tokens, args.paragraphs))
    log(f"tokens: {folder}")
    if args.bpe_merges:
        log(f"BPE: {args.bpe_merges:,} merges")
        split_into_units(args)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--raw", type=Path, required=True, metavar="DIR")
    parser.add_argument("--single", metavar="PLACE", help="one text, to be split")
    for split in SPLITS:
        parser.add_argument(f"--{split}", metavar="PLACE")
    parser.add_argument("--language", default="en", metavar="LANG")
    parser.add_argument("--tokens", choices=("moses", "space"), default="moses")
    parser.add_argument("--paragraphs", action="store_true")
    parser.add_argument("--bpe-merges", type=positive, metavar="N", help="default: whole tokens")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    add_fetched(parser)
    args = parser.parse_args(argv)
    given = [getattr(args, split) is not None for split in SPLITS]
    if args.single is not None and any(given) or args.single is None and not all(given):
        parser.error("give --single, or --train, --valid and --test")
    return args


def main(argv: list[str] | None = None) -> int:
    return run("prepare_language_model", prepare, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
