#!/usr/bin/env python3
"""Make a synthetic German-English corpus with all translations and word alignments known.

The sentences come from the templates and tables in this folder, not from people. For the parts
train, valid, test and test_unseen_pairs the output folder gets:

    PART.de, .en           plain text, one sentence a line
    PART.tok.de, .tok.en   the same as tokens separated by spaces, to which the alignments refer
    PART.talp              word alignments, from 1: 3-2 is a sure link, 3p2 a possible one
    PART.targets.jsonl     not for train: all correct translations with probabilities and links
    corpus.json            the settings and some counts; written last

The same seed gives the same files. Files that are already there are replaced.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import words
from alternatives import Token, pick_weighted, spell, talp
from templates import Sentence, make_sentence

UNSEEN_PAIRS = "test_unseen_pairs"
PARTS = ("train", "valid", "test", UNSEEN_PAIRS)
MOST_TRANSLATIONS = 12
# One in ten pairs of a verb and its object occurs in no part but test_unseen_pairs.
HELD_OUT = 10
NOUNS = {noun: n for n, noun in enumerate(itertools.chain(*words.NOUNS.values()))}
VERBS = {verb: n for n, verb in enumerate(itertools.chain(*words.VERBS.values()))}
# Maximum number of draws per sentence.
PATIENCE = 1000


class CorpusError(Exception):
    """The corpus cannot be made as asked; the message says what to do."""


class Example(NamedTuple):
    """A sentence and the translation that was drawn for it."""

    sentence: Sentence
    english: tuple[Token, ...]


def text(tokens: Iterable) -> str:
    return " ".join(spell([token.text for token in tokens]))


def detokenised(tokens: str) -> str:
    """Return plain text: no space before a punctuation mark."""
    for mark in ",.?":
        tokens = tokens.replace(" " + mark, mark)
    return tokens


def is_unseen(verb: words.Verb, noun: words.Noun) -> bool:
    """Return whether this verb never has this object in training; depends on nothing but the
    tables."""
    return (VERBS[verb] + 3 * NOUNS[noun]) % HELD_OUT == 0


def held_out(sentence: Sentence) -> bool:
    return any(is_unseen(*pair) for pair in sentence.pairs)


def draw(
    generator: random.Random, part: str, count: int, taken: set[str], known: set[str] | None = None
) -> list[Example]:
    """Draw sentences of a part that are not taken; those of all parts but train are taken then.

    Args:
        generator: the source of all choices.
        part: name of the part.
        count: number of sentences.
        taken: German sentences that must not be drawn; changed in place.
        known: if given, the only words that a sentence and its translations may have.

    Raises:
        CorpusError: there are too few.
    """
    examples: list[Example] = []
    for _ in range(PATIENCE * count):
        if len(examples) == count:
            break
        sentence = make_sentence(generator)
        source = text(sentence.german)
        few = len(sentence.english.items) <= MOST_TRANSLATIONS
        if few and held_out(sentence) == (part == UNSEEN_PAIRS) and source not in taken:
            if known is None or vocabulary(sentence) <= known:
                english = pick_weighted(generator, sentence.english.items)
                examples.append(Example(sentence, english))
                if part != "train":
                    taken.add(source)
    if len(examples) < count:
        raise CorpusError(f"found too few sentences for {part}: raise --train or ask for fewer")
    return examples


def vocabulary(sentence: Sentence) -> set[str]:
    """Return all words of a sentence and of its translations."""
    sides = (sentence.german, *(english for _, english in sentence.english.items))
    return {word for tokens in sides for word in text(tokens).split()}


def draw_corpus(seed: int, sizes: dict[str, int]) -> dict[str, list[Example]]:
    """Draw all parts, each with random numbers of its own; train comes last.

    No test or validation sentence occurs twice, and none is in train. Those with words that train
    lacks are replaced.
    """
    taken: set[str] = set()
    generators = {part: random.Random(f"{seed} {part}") for part in reversed(PARTS)}
    parts = {part: draw(generators[part], part, sizes[part], taken) for part in generators}
    known: set[str] = set()
    for sentence, english in parts["train"]:
        taken.add(text(sentence.german))
        known.update(text(sentence.german).split(), text(english).split())
    for part in PARTS[1:]:
        kept = [example for example in parts[part] if vocabulary(example.sentence) <= known]
        count = sizes[part] - len(kept)
        parts[part] = kept + draw(generators[part], part, count, taken, known)
    return parts


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


def record(sentence: Sentence) -> str:
    """Return the line of PART.targets.jsonl: the most probable translation comes first."""
    targets = [
        {"text": text(english), "probability": round(p, 9), "links": talp(sentence.german, english)}
        for p, english in sentence.english.items
    ]
    targets.sort(key=lambda target: (-target["probability"], target["text"]))
    fields = {
        "source": text(sentence.german),
        "template": sentence.template,
        "ambiguities": sorted(sentence.english.kinds),
        "targets": targets,
    }
    return json.dumps(fields, ensure_ascii=False)


def write_part(folder: Path, part: str, examples: Sequence[Example]) -> dict[str, int]:
    """Write the files of a part, and return how many words each language has."""
    sides = {
        "de": [text(example.sentence.german) for example in examples],
        "en": [text(example.english) for example in examples],
    }
    for language, lines in sides.items():
        write_lines(folder / f"{part}.tok.{language}", lines)
        write_lines(folder / f"{part}.{language}", map(detokenised, lines))
    links = (talp(example.sentence.german, example.english) for example in examples)
    write_lines(folder / f"{part}.talp", links)
    if part != "train":
        records = (record(example.sentence) for example in examples)
        write_lines(folder / f"{part}.targets.jsonl", records)
    return {language: len(set(" ".join(lines).split())) for language, lines in sides.items()}


def write_corpus(folder: Path, seed: int, sizes: dict[str, int]) -> dict:
    """Draw the corpus, write all files and return what `corpus.json` says."""
    parts = draw_corpus(seed, sizes)
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "corpus.json"
    summary.unlink(missing_ok=True)
    types = {part: write_part(folder, part, examples) for part, examples in parts.items()}
    report = {"kind": "synthetic", "seed": seed, "pairs": sizes, "train_types": types["train"]}
    write_lines(summary, [json.dumps(report, indent=2)])
    return report


def count(text: str) -> int:
    """Parse a number of pairs, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="folder to write to; made if it is not there")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    for name, number in (("train", 15_000), ("valid", 500), ("test", 1_000), ("held-out", 500)):
        part = UNSEEN_PAIRS if name == "held-out" else name
        parser.add_argument(
            f"--{name}", type=count, default=number, metavar="N", dest=part,
            help=f"sentence pairs in {part} (default: {number})",
        )  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.output.exists() and not arguments.output.is_dir():
        parser.error(f"{arguments.output} is a file: name a folder to write to")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    sizes = {part: getattr(arguments, part) for part in PARTS}
    try:
        types = write_corpus(arguments.output, arguments.seed, sizes)["train_types"]
    except (CorpusError, OSError) as error:
        print(f"make_corpus.py: {error}", file=sys.stderr)
        return 1
    found = f"{types['de']} German and {types['en']} English words"
    print(f"{arguments.output}: {sizes['train']:,} training pairs, {found}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
