#!/usr/bin/env python3
"""Tokenise a parallel corpus and split it into joint BPE units, ready for fairseq-preprocess.

Reads PREFIX.LANG or PREFIX.LANG.gz (one sentence a line, UTF-8) for train, valid and test and
writes into the output folder:

    tokenized/{train,valid,test}.LANG   Moses tokens, cased
    bpe.codes                           the merges, learned on both sides of the training text
    bpe/{train,valid,test}.LANG         BPE units
    reference/test.LANG                 the raw test text, byte for byte, for scoring

Tokens are those of fairseq's own `--tokenizer moses`, so fairseq-interactive can read raw text.
A training pair with an empty side is dropped and counted; validation and test lines never are.
A file that is already there is kept: delete it, or the folder, to make it again.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import multiprocessing
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

SPLITS = ("train", "valid", "test")
LINES_PER_TASK = 500
LINES_PER_REPORT = 100_000


class CorpusError(Exception):
    """The corpus cannot be used as it is; the message says what to do."""


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing that appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8", newline="\n") as handle:
        yield handle
    os.replace(partial, path)


def find_raw(prefix: str, language: str) -> Path:
    """The file PREFIX.LANG or PREFIX.LANG.gz."""
    candidates = [Path(f"{prefix}.{language}{suffix}") for suffix in ("", ".gz")]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise CorpusError(f"no such file: {candidates[0]} (nor with .gz)")
    if len(found) > 1:
        raise CorpusError(f"both {found[0]} and {found[1]} are there: remove one of them")
    return found[0]


def open_raw(path: Path):
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into an error that names it."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path} is not a complete gzip archive ({error}): delete it and fetch it again"
        ) from error


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or gzip. Only a line feed ends a line."""
    with damage_named(path), open_raw(path) as handle:
        for number, line in enumerate(handle, start=1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise CorpusError(f"{path}, line {number}: not UTF-8 ({error})") from error


_worker: Callable[[str], str] | None = None


def _start_tokenizer(language: str) -> None:
    global _worker
    tokenizer = MosesTokenizer(language)

    def tokenize(line: str) -> str:
        return tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True)

    _worker = tokenize


def _start_bpe(codes: str) -> None:
    global _worker
    with open(codes, encoding="utf-8") as handle:
        _worker = BPE(handle).process_line


def _work(line: str) -> str:
    assert _worker is not None
    return _worker(line)


def map_lines(
    lines: Iterable[str], start: Callable[[str], None], argument: str, workers: int, label: str
) -> Iterator[str]:
    """Send each line through the function that `start(argument)` sets up in every worker."""
    with multiprocessing.Pool(workers, start, (argument,)) as pool:
        for number, line in enumerate(pool.imap(_work, lines, LINES_PER_TASK), start=1):
            if number % LINES_PER_REPORT == 0:
                log(f"{label}: {number:,} lines")
            yield line


def tokenize_split(
    split: str, prefix: str, languages: tuple[str, str], output: Path, workers: int
) -> None:
    """Tokenise both sides of one split, and drop training pairs with an empty side."""
    paths = [output / "tokenized" / f"{split}.{language}" for language in languages]
    if all(path.is_file() for path in paths):
        log(f"tokenize {split}: done already")
        return
    sides = []
    for language in languages:
        raw = find_raw(prefix, language)
        log(f"tokenize {split}.{language}: {raw.name}")
        lines = map_lines(
            read_lines(raw), _start_tokenizer, language, workers, f"tokenize {split}.{language}"
        )
        sides.append(list(lines))
    if len(sides[0]) != len(sides[1]):
        raise CorpusError(
            f"{prefix}: {len(sides[0]):,} lines of {languages[0]} but {len(sides[1]):,} of "
            f"{languages[1]}; the two sides must have the same number of lines"
        )
    pairs = list(zip(*sides, strict=True))
    if split == "train":
        kept = [pair for pair in pairs if pair[0] and pair[1]]
        log(f"tokenize train: dropped {len(pairs) - len(kept):,} pairs with an empty side")
        pairs = kept
    if not pairs:
        raise CorpusError(f"{prefix}: no sentence pairs")
    for side, path in enumerate(paths):
        with open_atomically(path) as handle:
            handle.writelines(pair[side] + "\n" for pair in pairs)
    log(f"tokenize {split}: {len(pairs):,} pairs")


def learn_codes(output: Path, languages: tuple[str, str], merges: int) -> None:
    """Learn the merges on both sides of the training text together."""
    codes = output / "bpe.codes"
    if codes.is_file():
        log("learn BPE: done already")
        return
    log(f"learn BPE: {merges:,} merges")
    text = itertools.chain.from_iterable(
        read_lines(output / "tokenized" / f"train.{language}") for language in languages
    )
    with open_atomically(codes) as handle:
        learn_bpe(text, handle, merges)


def apply_codes(split: str, language: str, output: Path, workers: int) -> None:
    """Split one tokenised file into BPE units; the number of lines must not change."""
    source = output / "tokenized" / f"{split}.{language}"
    target = output / "bpe" / f"{split}.{language}"
    if target.is_file():
        log(f"apply BPE to {split}.{language}: done already")
        return
    label = f"apply BPE to {split}.{language}"
    lines = tokens = 0
    with open_atomically(target) as handle:
        codes = str(output / "bpe.codes")
        for line in map_lines(read_lines(source), _start_bpe, codes, workers, label):
            handle.write(line + "\n")
            lines += 1
            tokens += len(line.split())
    expected = sum(1 for _ in read_lines(source))
    if lines != expected:
        target.unlink()
        raise CorpusError(f"{target}: {lines:,} lines, but {source} has {expected:,}")
    log(f"{label}: {lines:,} lines, {tokens:,} units")


def copy_reference(prefix: str, language: str, output: Path) -> None:
    """Keep the raw test text, uncompressed but otherwise untouched."""
    target = output / "reference" / f"test.{language}"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    raw = find_raw(prefix, language)
    with damage_named(raw), open_raw(raw) as source, open(partial, "wb") as handle:
        shutil.copyfileobj(source, handle)
    os.replace(partial, target)


def prepare(args: argparse.Namespace) -> None:
    languages = (args.source_lang, args.target_lang)
    prefixes = dict(zip(SPLITS, (args.train, args.valid, args.test), strict=True))
    for language in languages:
        copy_reference(args.test, language, args.output)
    for split, prefix in prefixes.items():
        tokenize_split(split, prefix, languages, args.output, args.workers)
    learn_codes(args.output, languages, args.bpe_merges)
    for split, language in itertools.product(SPLITS, languages):
        apply_codes(split, language, args.output, args.workers)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    for split in SPLITS:
        parser.add_argument(f"--{split}", required=True, metavar="PREFIX", help="PREFIX.LANG[.gz]")
    parser.add_argument("--bpe-merges", type=int, required=True, metavar="N")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), metavar="N", help="processes (default: all)"
    )
    args = parser.parse_args(argv)
    if args.bpe_merges < 1 or args.workers < 1:
        parser.error("--bpe-merges and --workers must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    try:
        prepare(parse_args(argv))
    except (CorpusError, OSError) as error:
        log(f"prepare_text: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
