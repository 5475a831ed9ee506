#!/usr/bin/env python3
"""Tokenise a parallel corpus and split it into BPE units, ready for fairseq-preprocess.

Reads PREFIX.LANG or PREFIX.LANG.gz (one sentence per line, UTF-8) for train, valid and test, and
writes into the output folder:

    tokenized/{train,valid,test}.LANG   tokens, cased
    bpe.codes                           the merges, learned on both sides of the training text, or
    bpe.codes.LANG                      with --separate-bpe, on each side alone
    bpe/{train,valid,test}.LANG         BPE units
    reference/test.LANG                 the raw test text, byte for byte, for scoring
    {tokenized,bpe,reference}/long.LANG with --long-test, a test set of the training pairs that
                                        have more than --max-tokens tokens on a side

Tokens are those of fairseq's own `--tokenizer moses`, so fairseq-interactive can read raw text.
Languages in --tokenized are split at spaces only, and those in --jieba into the words that jieba
finds in Chinese. --remove-diacritics first removes the diacritics of Romanian text, including the
reference.

A training pair is left out, and counted, if a side is empty, has more than --max-tokens tokens, or
more than --max-ratio times as many as the other; validation and test lines are never left out. With
--hold-out N, every N-th remaining training pair becomes a validation pair.

Memory does not grow with the number of sentences. Existing files, except reference/test.LANG, are
kept: delete a file, or the folder, to make it again. After a kill, tokenising and splitting resume
after the last 100,000 lines that were completely written; merges are learned from the beginning.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from command_line import exit_status, positive, replacing, script_parser
from corpus_files import (
    BLOCK,
    CorpusError,
    ParallelFiles,
    add_fetched,
    decode_utf8,
    decompressed,
    log,
    name_damage,
    open_atomically,
    read_lines,
    run,
)
from corpus_tokens import jieba_is_there, remove_diacritics, tokenizer
from corpus_workers import count_words, map_items, map_tasks

SPLITS = ("train", "valid", "test")
LINES_PER_SAVE = 100_000
# Merges are learned on at most this many different words, the most frequent ones, because a million
# of them need about 2 GB of memory.
WORDS_LEARNED_FROM = 2_000_000
# subword_nmt remembers every word that it has split, which would grow with the corpus.
WORDS_REMEMBERED = 500_000


def find_raw(prefix: str, language: str) -> Path:
    """Find the file PREFIX.LANG or PREFIX.LANG.gz."""
    candidates = [Path(f"{prefix}.{language}{suffix}") for suffix in ("", ".gz")]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise CorpusError(f"no such file: {candidates[0]} (nor with .gz)")
    if len(found) > 1:
        raise CorpusError(f"both {found[0]} and {found[1]} are there: remove one of them")
    return found[0]


def text_lines(path: Path) -> Iterator[str]:
    """Return the lines of a text file, plain or gzip. Only a line feed ends a line."""
    for line in decode_utf8(read_lines(path.parent, path.name), path):
        yield line.rstrip("\r\n")


def start_tokenizers(
    languages: Iterable[str], kinds: Iterable[str], stripped: set[str]
) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a function that tokenises a tuple of sentences, one in each language."""
    tokenizers = [
        tokenizer(lang, kind, lang in stripped) for lang, kind in zip(languages, kinds, strict=True)
    ]
    return lambda sentences: tuple(
        tokens(text) for tokens, text in zip(tokenizers, sentences, strict=True)
    )


def start_bpe(codes: str) -> Callable[[str], str]:
    """Return a function that splits the tokens of a line."""
    with open(codes, encoding="utf-8") as handle:
        bpe = BPE(handle)

    def split(line: str) -> str:
        if len(bpe.cache) > WORDS_REMEMBERED:
            bpe.cache.clear()
        return bpe.process_line(line)

    return split


def write_resumably(
    files: ParallelFiles, results: Callable[[int], Iterator], write: Callable, label: str
) -> None:
    """Write the results that are not yet written, and save the progress from time to time."""
    done = files.counts["read"]
    if done:
        log(f"{label}: going on after {done:,} lines")
    for result in results(done):
        write(result)
        files.counts["read"] += 1
        if files.counts["read"] % LINES_PER_SAVE == 0:
            files.save()
            log(f"{label}: {files.counts['read']:,} lines")


def read_pairs(prefix: str, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines; both sides must have the same number of lines."""
    counts = [0, 0]
    for pair in itertools.zip_longest(*(text_lines(find_raw(prefix, lang)) for lang in languages)):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if None not in pair:
            yield pair
    if counts[0] != counts[1]:
        raise CorpusError(
            f"{prefix}: {counts[0]:,} lines of {languages[0]} but {counts[1]:,} of "
            f"{languages[1]}; the two sides must have the same number of lines"
        )


def kind_of_tokens(language: str, args: argparse.Namespace) -> str:
    if language in args.tokenized:
        return "space"
    return "jieba" if language in args.jieba else "moses"


def why_left_out(pair: tuple[str, str], args: argparse.Namespace) -> str | None:
    """Return the reason to leave out a training pair, or None."""
    if not all(pair):
        return "with an empty side"
    shorter, longer = sorted(len(side.split(" ")) for side in pair)
    if args.max_tokens and longer > args.max_tokens:
        return too_long_reason(args)
    if args.max_ratio and longer > args.max_ratio * shorter:
        return f"with more than {args.max_ratio:g} times as many tokens on one side"
    return None


def too_long_reason(args: argparse.Namespace) -> str:
    """Return the reason to leave out a pair that is longer than --max-tokens."""
    return f"with more than {args.max_tokens} tokens on a side"


def tokenize_split(split: str, prefix: str, args: argparse.Namespace) -> None:
    """Tokenise both sides of one split; leave out and hold out pairs of the training text."""
    hold_out = args.hold_out if split == "train" else None
    long_test = args.long_test and split == "train"
    names = [f"tokenized/{split}"]
    names += ["tokenized/valid"] if hold_out else []
    names += ["tokenized/long", "reference/long"] if long_test else []
    paths = [args.output / f"{name}.{language}" for name in names for language in args.languages]
    label = f"tokenize {split}"
    if all(path.is_file() for path in paths):
        log(f"{label}: done already")
        return
    log(f"{label}: {', '.join(find_raw(prefix, lang).name for lang in args.languages)}")
    kinds = [kind_of_tokens(language, args) for language in args.languages]
    arguments = args.languages, kinds, set(args.remove_diacritics)

    def tokens_from(first: int) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Return pairs of tokens, each with its raw text."""
        pairs = itertools.islice(read_pairs(prefix, args.languages), first, None)
        pairs, raw = itertools.tee(pairs)
        return zip(map_items(pairs, start_tokenizers, arguments, args.workers), raw, strict=True)

    with ParallelFiles(paths) as files:
        counts = files.counts

        def write(item: tuple[tuple[str, str], tuple[str, str]]) -> None:
            pair, raw = item
            reason = why_left_out(pair, args) if split == "train" else None
            if reason:
                counts[f"left out {reason}"] += 1
                if long_test and reason == too_long_reason(args):
                    files.write([*pair, *as_reference(raw, args)], first=len(paths) - 4)
                return
            counts["kept"] += 1
            held_out = hold_out and counts["kept"] % hold_out == 0
            counts["held out"] += bool(held_out)
            files.write(pair, first=2 if held_out else 0)

        write_resumably(files, tokens_from, write, label)
        pairs = counts["kept"] - counts["held out"]
        if not pairs or (hold_out and not counts["held out"]):
            raise CorpusError(f"{prefix}: no sentence pairs")
        if long_test and not counts[f"left out {too_long_reason(args)}"]:
            raise CorpusError(
                f"{prefix}: no pair {too_long_reason(args)}, and so none for --long-test"
            )
    for reason, count in counts.items():
        if reason.startswith("left out"):
            log(f"{label}: {reason.replace('left out', f'left out {count:,} pairs', 1)}")
    log(f"{label}: {pairs:,} pairs")
    if hold_out:
        log(f"{label}: {counts['held out']:,} more are held out for validation")


def codes_of(language: str, args: argparse.Namespace) -> Path:
    return args.output / (f"bpe.codes.{language}" if args.separate_bpe else "bpe.codes")


def learn_codes(languages: Iterable[str], codes: Path, args: argparse.Namespace) -> None:
    """Learn the merges on the training text of the languages together."""
    if codes.is_file():
        log(f"learn BPE: done already ({codes.name})")
        return
    log(f"learn BPE: {args.bpe_merges:,} merges of {' and '.join(languages)}")
    # Learn in a separate process, so that its memory is freed.
    for _ in map_tasks([codes], start_learning, (languages, args), workers=1):
        pass


def start_learning(languages: Iterable[str], args: argparse.Namespace) -> Callable[[Path], None]:
    """Return a function that learns merges and writes them to a file."""
    return lambda codes: write_codes(languages, codes, args)


def write_codes(languages: Iterable[str], codes: Path, args: argparse.Namespace) -> None:
    texts = [args.output / "tokenized" / f"train.{language}" for language in languages]
    words = list(count_words(texts, args.workers).items())
    log(f"learn BPE: {len(words):,} different words")
    if len(words) > WORDS_LEARNED_FROM:
        words = sorted(words, key=lambda item: (-item[1], item[0]))[:WORDS_LEARNED_FROM]
        log(f"learn BPE: the {WORDS_LEARNED_FROM:,} most frequent of them are used")
    with open_atomically(codes) as handle:
        lines = (f"{word.decode()} {count}" for word, count in words)
        learn_bpe(lines, handle, args.bpe_merges, is_dict=True)


def apply_codes(split: str, language: str, args: argparse.Namespace) -> None:
    """Split one tokenised file into BPE units; the number of lines must not change."""
    source = args.output / "tokenized" / f"{split}.{language}"
    target = args.output / "bpe" / f"{split}.{language}"
    label = f"apply BPE to {split}.{language}"
    if target.is_file():
        log(f"{label}: done already")
        return
    log(label)

    def units_from(first: int) -> Iterator[str]:
        lines = itertools.islice(text_lines(source), first, None)
        return map_items(lines, start_bpe, (str(codes_of(language, args)),), args.workers)

    with ParallelFiles([target]) as files:
        counts = files.counts

        def write(line: str) -> None:
            files.write([line])
            counts["units"] += len(line.split())

        write_resumably(files, units_from, write, label)
    log(f"{label}: {counts['read']:,} lines, {counts['units']:,} units")


def as_reference(lines: Iterable[str], args: argparse.Namespace) -> list[str]:
    """Return one raw line per language, in the form with which translations are compared."""
    return [
        remove_diacritics(line) if language in args.remove_diacritics else line
        for line, language in zip(lines, args.languages, strict=True)
    ]


def copy_reference(prefix: str, language: str, args: argparse.Namespace) -> None:
    """Copy the raw test text, uncompressed and unchanged except for removed diacritics."""
    target = args.output / "reference" / f"test.{language}"
    raw = find_raw(prefix, language)
    if language in args.remove_diacritics:
        with open_atomically(target) as handle:
            handle.writelines(remove_diacritics(line) + "\n" for line in text_lines(raw))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with name_damage(raw), open(raw, "rb") as source, replacing(target, binary=True) as handle:
        shutil.copyfileobj(decompressed(source, raw.name), handle)


def count_lines(path: Path) -> int:
    with open(path, "rb") as handle:
        return sum(block.count(b"\n") for block in iter(lambda: handle.read(BLOCK), b""))


def check_parallel(split: str, args: argparse.Namespace) -> None:
    """Check that both sides of a split have the same number of lines."""
    paths = [args.output / "bpe" / f"{split}.{language}" for language in args.languages]
    counts = [count_lines(path) for path in paths]
    if counts[0] != counts[1]:
        raise CorpusError(
            f"{counts[0]:,} lines in {paths[0]} but {counts[1]:,} in {paths[1]}: delete "
            f"{args.output} to make it again"
        )


def prepare(args: argparse.Namespace) -> None:
    for language in args.languages:
        copy_reference(args.test, language, args)
    for split in SPLITS:
        if split != "valid" or not args.hold_out:
            tokenize_split(split, getattr(args, split), args)
    for languages in [[lang] for lang in args.languages] if args.separate_bpe else [args.languages]:
        learn_codes(languages, codes_of(languages[0], args), args)
    splits = [*SPLITS, "long"] if args.long_test else SPLITS
    for split, language in itertools.product(splits, args.languages):
        apply_codes(split, language, args)
    for split in splits:
        check_parallel(split, args)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    parser.add_argument("--train", required=True, metavar="PREFIX", help="PREFIX.LANG[.gz]")
    valid = parser.add_mutually_exclusive_group(required=True)
    valid.add_argument("--valid", metavar="PREFIX")
    valid.add_argument("--hold-out", type=positive, metavar="N", help="one training pair in N")
    parser.add_argument("--test", required=True, metavar="PREFIX")
    parser.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="maximum tokens on a side of a training pair",
    )
    parser.add_argument(
        "--long-test", action="store_true", help="make a test set of what --max-tokens leaves out"
    )
    parser.add_argument("--max-ratio", type=float, metavar="X", help="maximum length ratio")
    parser.add_argument("--bpe-merges", type=positive, required=True, metavar="N")
    parser.add_argument("--separate-bpe", action="store_true", help="N merges for each language")
    parser.add_argument(
        "--tokenized", nargs="+", default=[], metavar="LANG", help="already tokenised languages"
    )
    parser.add_argument("--jieba", nargs="+", default=[], metavar="LANG", help="Chinese languages")
    parser.add_argument(
        "--remove-diacritics",
        nargs="+",
        default=[],
        metavar="LANG",
        help="languages whose Romanian diacritics are removed",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    add_fetched(parser)
    parser.add_argument(
        "--workers",
        type=positive,
        default=os.cpu_count(),
        metavar="N",
        help="number of processes (default: one per core)",
    )
    args = parser.parse_args(argv)
    args.languages = (args.source_lang, args.target_lang)
    for language in [*args.tokenized, *args.jieba, *args.remove_diacritics]:
        if language not in args.languages:
            parser.error(f"{language} is neither --source-lang nor --target-lang")
    if args.long_test and not args.max_tokens:
        parser.error("--long-test has the pairs that --max-tokens leaves out: give both")
    if args.jieba and not jieba_is_there():
        parser.error("--jieba: jieba is not installed; install it with: pip install jieba")
    return args


def main(argv: list[str] | None = None) -> int:
    return run("prepare_text", prepare, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
