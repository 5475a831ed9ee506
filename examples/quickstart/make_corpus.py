#!/usr/bin/env python3
"""Make a synthetic German-English parallel corpus with exact translations and word alignments.

The sentences come from a small grammar and lexicon in this folder, not from people. Writes into
the output folder, for train, valid, test, test_new_construction and test_longer:

    SPLIT.de, .en            plain text, one sentence a line: the detokenised form of the next
    SPLIT.tok.de, .tok.en    the same as tokens separated by spaces, to which the alignments refer
    SPLIT.talp               alignments, from 1: 3-2 is a sure link, 3p2 a possible one
    SPLIT.pharaoh            alignments, from 0: sure links only, the form knows no others
    SPLIT.constructions      what is in the sentence
    SPLIT.targets.jsonl      all correct translations and their probabilities (not for train)
    SPLIT.label              what is new in it (test_new_construction and test_longer)
    SPLIT.noise.jsonl        what is wrong with the pair (with --noise)
    corpus.json              the settings and some counts; written last

The same seed gives the same files. Files that are already there are replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from alignment import to_pharaoh, to_talp
from corpus import LONGER_SENTENCES, NEW_CONSTRUCTION, CorpusError, Example, Sizes, draw_corpus
from noise import KINDS, Noisy, add_noise
from sentence import Pair, detokenised

SPLITS = ("train", "valid", "test", NEW_CONSTRUCTION, LONGER_SENTENCES)
DEFAULT_SHARE = 0.1


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file that appears under its name only when it is complete."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as handle:
            handle.writelines(line + "\n" for line in lines)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_pairs(folder: Path, split: str, pairs: Sequence[Pair]) -> None:
    """Write the text and the alignments of a part."""
    for language, side in (("de", 0), ("en", 1)):
        write_lines(folder / f"{split}.{language}", (detokenised(pair[side]) for pair in pairs))
        write_lines(folder / f"{split}.tok.{language}", (" ".join(pair[side]) for pair in pairs))
    write_lines(folder / f"{split}.talp", (to_talp(pair.alignment) for pair in pairs))
    write_lines(folder / f"{split}.pharaoh", (to_pharaoh(pair.alignment) for pair in pairs))


def write_knowledge(folder: Path, split: str, examples: Sequence[Example]) -> None:
    """Write what is known of the sentences of a part, whatever their pairs are."""
    constructions = ("; ".join(example.sentence.constructions) for example in examples)
    write_lines(folder / f"{split}.constructions", constructions)
    if split != "train":
        write_lines(folder / f"{split}.targets.jsonl", (targets_line(item) for item in examples))
    if split in (NEW_CONSTRUCTION, LONGER_SENTENCES):
        write_lines(folder / f"{split}.label", (example.label for example in examples))


def targets_line(example: Example) -> str:
    targets = [
        {"text": text, "probability": round(probability, 9)}
        for text, probability in example.sentence.targets().items()
    ]
    source = " ".join(example.sentence.german)
    return json.dumps({"source": source, "targets": targets}, ensure_ascii=False)


def write_corpus(arguments: argparse.Namespace) -> dict:
    """Draw the corpus, write all files and return what `corpus.json` says."""
    sizes = Sizes(arguments.train, arguments.valid, arguments.test, arguments.held_out)
    parts = draw_corpus(arguments.seed, sizes)
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "corpus.json"
    summary.unlink(missing_ok=True)
    pairs: dict[str, list[Pair]] = {}
    for split in SPLITS:
        labels = folder / f"{split}.noise.jsonl"
        labels.unlink(missing_ok=True)
        pairs[split] = [example.pair for example in parts[split]]
        if arguments.noise and split in arguments.noise_splits:
            noisy = spoil(arguments, split, parts[split])
            pairs[split] = [item.pair for item in noisy]
            write_lines(labels, (json.dumps(item.record) for item in noisy))
        write_pairs(folder, split, pairs[split])
        write_knowledge(folder, split, parts[split])
    report = describe(arguments, sizes, pairs)
    write_lines(summary, [json.dumps(report, indent=2)])
    return report


def spoil(arguments: argparse.Namespace, split: str, examples: Sequence[Example]) -> list[Noisy]:
    """The pairs of a part with noise; its random numbers leave those of the sentences alone."""
    generator = random.Random(f"{arguments.seed} {split} noise")
    return add_noise(generator, examples, arguments.noise, arguments.noise_share)


def describe(arguments: argparse.Namespace, sizes: Sizes, pairs: dict[str, list[Pair]]) -> dict:
    """The settings and some counts."""
    words = [[word for pair in pairs["train"] for word in pair[side]] for side in (0, 1)]
    noise = None
    if arguments.noise:
        splits = [split for split in SPLITS if split in arguments.noise_splits]
        noise = {"kind": arguments.noise, "share": arguments.noise_share, "splits": splits}
    return {
        "kind": "synthetic",
        "seed": arguments.seed,
        "pairs": asdict(sizes),
        "noise": noise,
        "train_tokens": dict(zip(("de", "en"), map(len, words), strict=True)),
        "train_types": {
            language: {"cased": len(set(side)), "lower-cased": len({word.lower() for word in side})}
            for language, side in zip(("de", "en"), words, strict=True)
        },
    }


def count(text: str) -> int:
    """A number of pairs, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def share(text: str) -> float:
    """A share of the pairs, for argparse."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return number


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = Sizes()
    parser.add_argument("output", type=Path, help="folder to write to; made if it is not there")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    for name, number in asdict(sizes).items():
        flag = "--" + name.replace("_", "-")
        what = "of each held-out test set" if name == "held_out" else f"of {name}"
        parser.add_argument(
            flag, type=count, default=number, metavar="N", help=f"pairs {what} (default: {number})"
        )
    parser.add_argument("--noise", choices=(*KINDS, "all"), help="spoil a share of the pairs")
    parser.add_argument(
        "--noise-share", type=share, metavar="X", help=f"share (default: {DEFAULT_SHARE})"
    )
    parser.add_argument(
        "--noise-splits",
        nargs="+",
        choices=SPLITS,
        metavar="SPLIT",
        help="parts to spoil (default: train)",
    )
    arguments = parser.parse_args(argv)
    if arguments.noise is None and (arguments.noise_share or arguments.noise_splits):
        parser.error("--noise-share and --noise-splits need --noise: say which kind")
    if arguments.output.exists() and not arguments.output.is_dir():
        parser.error(f"{arguments.output} is a file: name a folder to write to")
    arguments.noise_share = arguments.noise_share or DEFAULT_SHARE
    arguments.noise_splits = arguments.noise_splits or ["train"]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        report = write_corpus(arguments)
    except (CorpusError, OSError) as error:
        print(f"make_corpus.py: {error}", file=sys.stderr)
        return 1
    types = report["train_types"]
    sizes = f"{types['de']['cased']} German and {types['en']['cased']} English words in training"
    print(f"{arguments.output}: {arguments.train:,} training pairs, {sizes}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
