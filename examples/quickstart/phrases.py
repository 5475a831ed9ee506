"""Phrases in two languages: a list of German words, and the English that they can become.

The German side of a phrase is decided when the phrase is built. The English side is a small tree of
tokens, sequences and alternatives with probabilities, so that all translations of a sentence and
their probabilities can be listed. An English token names the German words it is linked to: there
is no search for an alignment afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


class Word:
    """A German token. Links refer to this very object, so two equal words stay apart."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Token:
    """An English token and its links: sure ones to what it translates, possible ones otherwise."""

    __slots__ = ("text", "sure", "possible")

    def __init__(self, text: str, sure: Sequence[Word] = (), possible: Sequence[Word] = ()) -> None:
        self.text = text
        self.sure = tuple(sure)
        self.possible = tuple(possible)

    def count(self) -> int:
        return 1

    def longest(self) -> int:
        return 1

    def shortest(self) -> int:
        return 1

    def expand(self) -> list[tuple[float, tuple[Token, ...]]]:
        return [(1.0, (self,))]

    def sample(self, generator: random.Random) -> list[Token]:
        return [self]


class Seq:
    """English parts one after the other."""

    __slots__ = ("parts",)

    def __init__(self, *parts: Node) -> None:
        self.parts = parts

    def count(self) -> int:
        """How many alternatives there are."""
        product = 1
        for part in self.parts:
            product *= part.count()
        return product

    def longest(self) -> int:
        """The number of tokens of the longest alternative."""
        return sum(part.longest() for part in self.parts)

    def shortest(self) -> int:
        """The number of tokens of the shortest alternative."""
        return sum(part.shortest() for part in self.parts)

    def expand(self) -> list[tuple[float, tuple[Token, ...]]]:
        """All alternatives with their probabilities."""
        results: list[tuple[float, tuple[Token, ...]]] = [(1.0, ())]
        for part in self.parts:
            expanded = part.expand()
            results = [(p * q, head + tail) for p, head in results for q, tail in expanded]
        return results

    def sample(self, generator: random.Random) -> list[Token]:
        """One alternative, drawn with its probability."""
        return [token for part in self.parts for token in part.sample(generator)]


class Alt:
    """English alternatives, each with its probability; the probabilities sum to one."""

    __slots__ = ("branches",)

    def __init__(self, *branches: tuple[float, Node]) -> None:
        self.branches = branches

    def count(self) -> int:
        return sum(node.count() for _, node in self.branches)

    def longest(self) -> int:
        return max(node.longest() for _, node in self.branches)

    def shortest(self) -> int:
        return min(node.shortest() for _, node in self.branches)

    def expand(self) -> list[tuple[float, tuple[Token, ...]]]:
        return [(p * q, tokens) for p, node in self.branches for q, tokens in node.expand()]

    def sample(self, generator: random.Random) -> list[Token]:
        return pick_weighted(generator, self.branches).sample(generator)


Node = Token | Seq | Alt

NOTHING = Seq()


@dataclass
class Phrase:
    """A German phrase and its English alternatives."""

    german: list[Word]
    english: Node


def joined(*parts: Phrase) -> Phrase:
    return Phrase(
        [word for part in parts for word in part.german], Seq(*(part.english for part in parts))
    )


def same(german: str, english: str) -> Phrase:
    """A word and its one translation."""
    word = Word(german)
    return Phrase([word], Token(english, [word]))


def one_of(branches: Sequence[tuple[float, Node]]) -> Node:
    """Alternatives, or the only one."""
    return branches[0][1] if len(branches) == 1 else Alt(*branches)


def either_for(word: Word, *english: tuple[float, str]) -> Node:
    """The translations of a word with their probabilities; "" for none."""
    return one_of([(p, Token(text, [word]) if text else NOTHING) for p, text in english])


def either(german: str, *english: tuple[float, str]) -> Phrase:
    """A word and its translations with their probabilities; "" for none."""
    word = Word(german)
    return Phrase([word], either_for(word, *english))


def comma(english: bool = False) -> Phrase:
    """A German comma, which English may not have."""
    word = Word(",")
    return Phrase([word], Token(",", [word]) if english else NOTHING)


# Only `random()` is promised to give the same numbers in every version of Python, so whatever is
# drawn is drawn with these functions.


def pick(generator: random.Random, items: Sequence):
    """One of the items, all equally likely."""
    return items[int(generator.random() * len(items))]


def pick_weighted(generator: random.Random, branches: Sequence[tuple[float, object]]):
    """One of the values of (probability, value) pairs whose probabilities sum to one."""
    point = generator.random()
    for probability, value in branches:
        point -= probability
        if point < 0:
            return value
    return branches[-1][1]


def shuffled(generator: random.Random, items: Sequence) -> list:
    """The items in random order."""
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        items[last], items[other] = items[other], items[last]
    return items
