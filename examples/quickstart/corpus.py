"""The parts of the corpus: which sentences are drawn for training and for each test set."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

from grammar import make_sentence
from held_out import HELD_OUT, held_out, label
from phrases import Token
from sentence import Pair, Sentence

SHORTEST, LONGEST = 3, 25
# Of the test set of longer sentences, on both sides.
LONGER, LONGEST_OF_ALL = LONGEST + 1, 40
ALTERNATIVES = 16
# Draws for each sentence wanted; the rarest held-out combination needs a few hundred.
PATIENCE = 3000

NEW_CONSTRUCTION = "test_new_construction"
LONGER_SENTENCES = "test_longer"


class CorpusError(Exception):
    """The corpus cannot be made as asked; the message says what to do."""


@dataclass(frozen=True)
class Sizes:
    """How many sentence pairs each part has; `held_out` is for each of the two held-out sets."""

    train: int = 20_000
    valid: int = 1_000
    test: int = 1_000
    held_out: int = 500


@dataclass
class Example:
    """A sentence with the translation that was drawn for it."""

    sentence: Sentence
    tokens: list[Token]

    @functools.cached_property
    def pair(self) -> Pair:
        return self.sentence.pair(self.tokens)

    @property
    def label(self) -> str:
        """What is new in it."""
        new = held_out(self.sentence.combinations)
        return label(new) if new else f"length: {len(self.sentence.words)} tokens"


def draw_corpus(seed: int, sizes: Sizes) -> dict[str, list[Example]]:
    """Draw all parts, each with its own random numbers.

    The test sets have no sentence twice, and none that the training data have.
    """
    taken: set[str] = set()
    parts = {
        split: draw(random.Random(f"{seed} {split}"), count, taken, is_usual, split=split)
        for split, count in (("test", sizes.test), ("valid", sizes.valid))
    }
    generator = random.Random(f"{seed} train")
    train = draw(generator, sizes.train, taken, is_usual, repeat=True, split="train")
    known = vocabulary(train)
    taken |= {text(example.sentence) for example in train}
    generator = random.Random(f"{seed} {NEW_CONSTRUCTION}")
    new = draw_new(generator, sizes.held_out, taken, known)
    generator = random.Random(f"{seed} {LONGER_SENTENCES}")
    longer = draw(
        generator,
        sizes.held_out,
        taken,
        lambda sentence: is_longer(sentence) and uses(sentence, known),
        rich=True,
        split=LONGER_SENTENCES,
    )
    parts = {"train": train, "valid": parts["valid"], "test": parts["test"]}
    return parts | {NEW_CONSTRUCTION: new, LONGER_SENTENCES: longer}


def text(sentence: Sentence) -> str:
    return " ".join(sentence.german)


def fits(sentence: Sentence, shortest: int, longest: int) -> bool:
    """Whether both sides, in every translation, have a length in the range.

    The translation that happens to be drawn must not matter, or the translations of what is kept
    would not have the probabilities of the grammar.
    """
    english = sentence.english
    return (
        shortest <= len(sentence.words) <= longest
        and shortest <= english.shortest()
        and english.longest() <= longest
        and english.count() <= ALTERNATIVES
    )


def is_usual(sentence: Sentence) -> bool:
    return fits(sentence, SHORTEST, LONGEST) and not held_out(sentence.combinations)


def is_longer(sentence: Sentence) -> bool:
    return fits(sentence, LONGER, LONGEST_OF_ALL) and not held_out(sentence.combinations)


def vocabulary(examples: list[Example]) -> set[str]:
    """The German and English words of the examples, as they are written."""
    pairs = (example.pair for example in examples)
    return {word for pair in pairs for word in (*pair.german, *pair.english)}


def uses(sentence: Sentence, known: set[str]) -> bool:
    """Whether a sentence and all its translations have known words only."""
    if not known.issuperset(sentence.german):
        return False
    return all(known.issuperset(target.split()) for target in sentence.targets())


def draw(
    generator: random.Random,
    count: int,
    taken: set[str],
    wanted: Callable[[Sentence], bool],
    split: str,
    repeat: bool = False,
    rich: bool = False,
) -> list[Example]:
    """Draw sentences that are wanted and not taken; unless they may repeat, they are taken then."""
    examples: list[Example] = []
    for _ in range(PATIENCE * count):
        if len(examples) == count:
            break
        sentence = make_sentence(generator, rich=rich)
        if wanted(sentence) and text(sentence) not in taken:
            if not repeat:
                taken.add(text(sentence))
            examples.append(Example(sentence, sentence.sample(generator)))
    if len(examples) < count:
        raise CorpusError(f"found {len(examples)} of {count} sentences for {split}: ask for fewer")
    return examples


def draw_new(
    generator: random.Random, count: int, taken: set[str], known: set[str]
) -> list[Example]:
    """Draw sentences with a held-out combination, of each combination about as many."""
    examples: list[Example] = []
    for number in range(count):
        combination = HELD_OUT[number % len(HELD_OUT)]
        for _ in range(PATIENCE):
            sentence = make_sentence(generator, focus=combination[1].split())
            if (
                combination in sentence.combinations
                and fits(sentence, SHORTEST, LONGEST)
                and text(sentence) not in taken
                and uses(sentence, known)
            ):
                taken.add(text(sentence))
                examples.append(Example(sentence, sentence.sample(generator)))
                break
        else:
            raise CorpusError(
                f"found no sentence for {label([combination])!r} with the words of the training "
                "data: raise --train or lower --held-out"
            )
    return examples
