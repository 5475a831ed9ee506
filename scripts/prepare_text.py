#!/usr/bin/env python3
"""Tokenise a parallel corpus and split it into BPE units, ready for fairseq-preprocess.

Reads PREFIX.LANG or PREFIX.LANG.gz (one sentence a line, UTF-8) for train, valid and test and
writes into the output folder:

    tokenized/{train,valid,test}.LANG   Moses tokens, cased
    bpe.codes                           the merges, learned on both sides of the training text, or
    bpe.codes.LANG                      with --separate-bpe, on each side alone
    bpe/{train,valid,test}.LANG         BPE units
    reference/test.LANG                 the raw test text, byte for byte, for scoring

Tokens are those of fairseq's own `--tokenizer moses`, so fairseq-interactive can read raw text; of
the languages in --tokenized, they are what stands between spaces. With --remove-diacritics,
Romanian text loses its own first, the reference included.
A training pair with an empty side is dropped and counted; validation and test lines never are.
A file that is already there is kept: delete it, or the folder, to make it again.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from command_line import positive
from corpus_files import CorpusError, damage_named, decompressed, log, open_atomically, read_lines

SPLITS = ("train", "valid", "test")
ITEMS_PER_TASK = 500
TASKS_PER_WORKER = 4
ITEMS_PER_REPORT = 100_000
# subword_nmt remembers every word that it has split, which would grow with the corpus.
WORDS_REMEMBERED = 500_000

# With a comma or, as in older text, a cedilla below s and t; precomposed or combining.
DIACRITICS = str.maketrans("ĂăÂâÎîȘșŞşȚțŢţ", "AaAaIiSsSsTtTt")
COMBINING = re.compile("(?<=[Aa])[\u0302\u0306]|(?<=[Ii])\u0302|(?<=[SsTt])[\u0326\u0327]")


def remove_diacritics(text: str) -> str:
    """Romanian text without its diacritics: ă â î ș ț become a a i s t. Others are kept."""
    return COMBINING.sub("", text.translate(DIACRITICS))


def find_raw(prefix: str, language: str) -> Path:
    """The file PREFIX.LANG or PREFIX.LANG.gz."""
    candidates = [Path(f"{prefix}.{language}{suffix}") for suffix in ("", ".gz")]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise CorpusError(f"no such file: {candidates[0]} (nor with .gz)")
    if len(found) > 1:
        raise CorpusError(f"both {found[0]} and {found[1]} are there: remove one of them")
    return found[0]


def read_text(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or gzip. Only a line feed ends a line."""
    for number, line in enumerate(read_lines(path.parent, path.name), start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{path}, line {number}: not UTF-8 ({error})") from error


_worker: Callable | None = None


def _start_tokenizers(languages: Iterable[str], tokenized: set[str], stripped: set[str]) -> None:
    """Make the worker turn a tuple of sentences, one in each language, into tokens."""
    global _worker

    def tokenizer(language: str) -> Callable[[str], str]:
        if language in tokenized:
            tokens = lambda text: " ".join(text.split())  # noqa: E731
        else:
            moses = MosesTokenizer(language)
            tokens = lambda text: moses.tokenize(  # noqa: E731
                text, aggressive_dash_splits=True, return_str=True
            )
        if language in stripped:
            return lambda text: tokens(remove_diacritics(text))
        return tokens

    tokenizers = [tokenizer(language) for language in languages]

    def tokenize(sentences: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(split(text) for split, text in zip(tokenizers, sentences, strict=True))

    _worker = tokenize


def _start_bpe(codes: str) -> None:
    global _worker
    with open(codes, encoding="utf-8") as handle:
        bpe = BPE(handle)

    def split(line: str) -> str:
        if len(bpe.cache) > WORDS_REMEMBERED:
            bpe.cache.clear()
        return bpe.process_line(line)

    _worker = split


def _work(items: list) -> list:
    assert _worker is not None
    return [_worker(item) for item in items]


def map_items(
    items: Iterator, start: Callable[..., None], arguments: tuple, workers: int, label: str
) -> Iterator:
    """Send each item through the function that `start(*arguments)` sets up in every worker.

    Results come in the order of the items, of which only a few tasks are held at a time.
    """
    done = 0
    tasks: deque = deque()
    with multiprocessing.Pool(workers, start, arguments) as pool:
        while True:
            items_of_task = list(itertools.islice(items, ITEMS_PER_TASK))
            if items_of_task:
                tasks.append(pool.apply_async(_work, (items_of_task,)))
            if not tasks:
                return
            if items_of_task and len(tasks) < TASKS_PER_WORKER * workers:
                continue
            results = tasks.popleft().get()
            yield from results
            before, done = done, done + len(results)
            if done // ITEMS_PER_REPORT > before // ITEMS_PER_REPORT:
                log(f"{label}: {done:,} lines")


def read_pairs(prefix: str, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The lines of both sides, which must be as many."""
    counts = [0, 0]
    for pair in itertools.zip_longest(*(read_text(find_raw(prefix, lang)) for lang in languages)):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if None not in pair:
            yield pair
    if counts[0] != counts[1]:
        raise CorpusError(
            f"{prefix}: {counts[0]:,} lines of {languages[0]} but {counts[1]:,} of "
            f"{languages[1]}; the two sides must have the same number of lines"
        )


def tokenize_split(split: str, prefix: str, args: argparse.Namespace) -> None:
    """Tokenise both sides of one split, and drop training pairs with an empty side."""
    paths = [args.output / "tokenized" / f"{split}.{language}" for language in args.languages]
    if all(path.is_file() for path in paths):
        log(f"tokenize {split}: done already")
        return
    log(f"tokenize {split}: {', '.join(find_raw(prefix, lang).name for lang in args.languages)}")
    pairs = map_items(
        read_pairs(prefix, args.languages),
        _start_tokenizers,
        (args.languages, set(args.tokenized), set(args.remove_diacritics)),
        args.workers,
        f"tokenize {split}",
    )
    kept = dropped = 0
    with ExitStack() as stack:
        outputs = [stack.enter_context(open_atomically(path)) for path in paths]
        for pair in pairs:
            if split == "train" and not all(pair):
                dropped += 1
                continue
            kept += 1
            for output, line in zip(outputs, pair, strict=True):
                output.write(line + "\n")
        if not kept:
            raise CorpusError(f"{prefix}: no sentence pairs")
    if split == "train":
        log(f"tokenize train: dropped {dropped:,} pairs with an empty side")
    log(f"tokenize {split}: {kept:,} pairs")


def codes_of(language: str, args: argparse.Namespace) -> Path:
    return args.output / (f"bpe.codes.{language}" if args.separate_bpe else "bpe.codes")


def learn_codes(languages: Iterable[str], codes: Path, args: argparse.Namespace) -> None:
    """Learn the merges on the training text of the languages together."""
    if codes.is_file():
        log(f"learn BPE: done already ({codes.name})")
        return
    log(f"learn BPE: {args.bpe_merges:,} merges of {' and '.join(languages)}")
    text = itertools.chain.from_iterable(
        read_text(args.output / "tokenized" / f"train.{language}") for language in languages
    )
    with open_atomically(codes) as handle:
        learn_bpe(text, handle, args.bpe_merges)


def apply_codes(split: str, language: str, args: argparse.Namespace) -> None:
    """Split one tokenised file into BPE units; the number of lines must not change."""
    source = args.output / "tokenized" / f"{split}.{language}"
    target = args.output / "bpe" / f"{split}.{language}"
    label = f"apply BPE to {split}.{language}"
    if target.is_file():
        log(f"{label}: done already")
        return
    read = lines = tokens = 0

    def counted() -> Iterator[str]:
        nonlocal read
        for line in read_text(source):
            read += 1
            yield line

    with open_atomically(target) as handle:
        codes = str(codes_of(language, args))
        for line in map_items(counted(), _start_bpe, (codes,), args.workers, label):
            handle.write(line + "\n")
            lines += 1
            tokens += len(line.split())
        if lines != read:
            raise CorpusError(f"{target}: {lines:,} lines, but {source} has {read:,}")
    log(f"{label}: {lines:,} lines, {tokens:,} units")


def copy_reference(prefix: str, language: str, args: argparse.Namespace) -> None:
    """Keep the raw test text, uncompressed but otherwise untouched unless it loses diacritics."""
    target = args.output / "reference" / f"test.{language}"
    raw = find_raw(prefix, language)
    if language in args.remove_diacritics:
        with open_atomically(target) as handle:
            handle.writelines(remove_diacritics(line) + "\n" for line in read_text(raw))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with damage_named(raw), open(raw, "rb") as source, open(partial, "wb") as handle:
        shutil.copyfileobj(decompressed(source, raw.name), handle)
    os.replace(partial, target)


def prepare(args: argparse.Namespace) -> None:
    for language in args.languages:
        copy_reference(args.test, language, args)
    for split, prefix in zip(SPLITS, (args.train, args.valid, args.test), strict=True):
        tokenize_split(split, prefix, args)
    for languages in [[lang] for lang in args.languages] if args.separate_bpe else [args.languages]:
        learn_codes(languages, codes_of(languages[0], args), args)
    for split, language in itertools.product(SPLITS, args.languages):
        apply_codes(split, language, args)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    for split in SPLITS:
        parser.add_argument(f"--{split}", required=True, metavar="PREFIX", help="PREFIX.LANG[.gz]")
    parser.add_argument("--bpe-merges", type=positive, required=True, metavar="N")
    parser.add_argument("--separate-bpe", action="store_true", help="N merges for each language")
    parser.add_argument(
        "--tokenized", nargs="+", default=[], metavar="LANG", help="which are tokens already"
    )
    parser.add_argument(
        "--remove-diacritics", nargs="+", default=[], metavar="LANG", help="which lose Romanian's"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--workers",
        type=positive,
        default=os.cpu_count(),
        metavar="N",
        help="processes (default: all)",
    )
    args = parser.parse_args(argv)
    args.languages = (args.source_lang, args.target_lang)
    for language in [*args.tokenized, *args.remove_diacritics]:
        if language not in args.languages:
            parser.error(f"{language} is neither --source-lang nor --target-lang")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        prepare(args)
    except (CorpusError, OSError) as error:
        log(f"prepare_text: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
