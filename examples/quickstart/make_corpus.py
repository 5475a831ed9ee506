#!/usr/bin/env python3
"""Make a synthetic German-English corpus in which all translations and word alignments are known.

The sentences come from the templates and tables in this folder, not from people. For the parts
train, valid, test and test_unseen_pairs, the output folder gets:

    PART.de, .en           plain text, one sentence per line
    PART.tok.de, .tok.en   the same as tokens separated by spaces, to which the alignments refer
    PART.talp              word alignments, from 1: 3-2 is a sure link, 3p2 a possible one
    PART.targets.jsonl     not for train: all correct translations with probabilities and links
    corpus.json            the settings and some counts; written last

The same seed gives the same files. Existing files are replaced.
"""

import argparse
import itertools
import json
import random
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from alternatives import Token, pick, spell, talp
from templates import Sentence, make_sentence

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from fairseq_sparse.files import write_json, write_text  # noqa: E402

UNSEEN_PAIRS = "test_unseen_pairs"
SIZES = {"train": 15_000, "valid": 500, "test": 1_000, UNSEEN_PAIRS: 500}
MOST_TRANSLATIONS = 12
# A sentence, and the translation that was drawn for it.
Example = tuple[Sentence, tuple[Token, ...]]


def is_unseen(pair: tuple[str, str]) -> bool:
    """Return whether this pair of verb and object is kept out of training, like one in ten."""
    return zlib.crc32(" ".join(pair).encode()) % 10 == 0


def draw(seed: int, part: str) -> Iterator[Example]:
    """Yield sentences for a part of the corpus, without end."""
    rng = random.Random(f"{seed} {part}")
    while True:
        sentence = make_sentence(rng)
        probabilities, translations = zip(*sentence.english.items, strict=True)
        english = pick(rng, translations, probabilities)
        held_out = any(map(is_unseen, sentence.pairs))
        if len(translations) <= MOST_TRANSLATIONS and held_out == (part == UNSEEN_PAIRS):
            yield sentence, english


def vocabulary(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in text.split()}


def fresh(examples: Iterable[Example], taken: set[str], known: set[str]) -> Iterator[Example]:
    """Yield sentences that are new and have only known words, and add them to ``taken``."""
    for sentence, english in examples:
        source = spell(sentence.german)
        translations = [spell(translation) for _, translation in sentence.english.items]
        if source not in taken and vocabulary([source, *translations]) <= known:
            taken.add(source)
            yield sentence, english


def draw_corpus(seed: int, sizes: dict[str, int]) -> dict[str, list[Example]]:
    """Draw all parts. Those after train have only new sentences, and only words of train."""
    train = list(itertools.islice(draw(seed, "train"), sizes["train"]))
    taken = {spell(sentence.german) for sentence, _ in train}
    known = vocabulary([*taken, *(spell(english) for _, english in train)])
    parts = {"train": train}
    for part in list(sizes)[1:]:
        candidates = itertools.islice(draw(seed, part), 100 * sizes[part])
        parts[part] = list(itertools.islice(fresh(candidates, taken, known), sizes[part]))
        if len(parts[part]) < sizes[part]:
            raise ValueError(f"found too few sentences for {part}: raise --train or ask for fewer")
    return parts


def record(sentence: Sentence) -> str:
    """Return a line of PART.targets.jsonl, with the most probable translation first."""
    targets = [
        {"text": spell(found), "probability": round(p, 9), "links": talp(sentence.german, found)}
        for p, found in sentence.english.items
    ]
    targets.sort(key=lambda target: (-target["probability"], target["text"]))
    fields = {"source": spell(sentence.german), "template": sentence.template}
    fields |= {"ambiguities": sorted(sentence.english.kinds), "targets": targets}
    return json.dumps(fields, ensure_ascii=False)


def plain(tokens: str) -> str:
    """Return text without spaces before punctuation marks."""
    return re.sub(r" ([,.?])", r"\1", tokens)


def write_corpus(folder: Path, seed: int, sizes: dict[str, int]) -> dict[str, int]:
    """Draw the corpus, write all files, and return the numbers of different words in train."""
    parts = draw_corpus(seed, sizes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.json").unlink(missing_ok=True)
    for part, examples in parts.items():
        german = [spell(sentence.german) for sentence, _ in examples]
        english = [spell(target) for _, target in examples]
        files = {"tok.de": german, "tok.en": english}
        files |= {"de": map(plain, german), "en": map(plain, english)}
        files["talp"] = [talp(sentence.german, target) for sentence, target in examples]
        if part == "train":
            types = {"de": len(vocabulary(german)), "en": len(vocabulary(english))}
        else:
            files["targets.jsonl"] = [record(sentence) for sentence, _ in examples]
        for name, lines in files.items():
            write_text(folder / f"{part}.{name}", "".join(f"{line}\n" for line in lines))
    report = {"kind": "synthetic", "seed": seed, "pairs": sizes, "train_types": types}
    write_json(folder / "corpus.json", report)
    return types


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="folder to write to; created if missing")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    for part, size in SIZES.items():
        flag = "--held-out" if part == UNSEEN_PAIRS else f"--{part}"
        what = f"sentence pairs in {part} (default: {size})"
        parser.add_argument(flag, dest=part, type=int, default=size, metavar="N", help=what)
    options = parser.parse_args(argv)
    sizes = {part: getattr(options, part) for part in SIZES}
    if min(sizes.values()) < 0:
        parser.error(f"{min(sizes.values())} is negative")
    if options.output.exists() and not options.output.is_dir():
        parser.error(f"{options.output} is a file: name a folder to write to")
    try:
        words = write_corpus(options.output, options.seed, sizes)
    except (ValueError, OSError) as error:
        print(f"make_corpus.py: {error}", file=sys.stderr)
        return 1
    found = f"{words['de']} German and {words['en']} English words"
    print(f"{options.output}: {sizes['train']:,} training pairs, {found}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
