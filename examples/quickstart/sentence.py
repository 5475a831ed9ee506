"""A finished sentence: its German tokens, and its translations with probabilities and links."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from alignment import Alignment
from derivation import Derivation
from morphology import starts_with_vowel
from phrases import Phrase, Seq, Token, Word


class Pair(NamedTuple):
    """A sentence pair: the tokens of both sides and their alignment."""

    german: list[str]
    english: list[str]
    alignment: Alignment


@dataclass
class Sentence:
    """A German sentence and the tree of its translations.

    Attributes:
        words: the German words
        english: the tree
        constructions: names of what is in it
        combinations: pairs of a construction and a word in it
        optional: phrases whose translation could be left out, with their kind
    """

    words: list[Word]
    english: Seq
    constructions: list[str]
    combinations: list[tuple[str, str]]
    optional: list[tuple[str, list[Word]]]

    @property
    def german(self) -> list[str]:
        return capitalised([word.text for word in self.words])

    def sample(self, generator: random.Random) -> list[Token]:
        """One translation, drawn with its probability, before `pair` gives it its final form."""
        return self.english.sample(generator)

    def pair(self, tokens: Sequence[Token]) -> Pair:
        """The pair with this translation."""
        return Pair(self.german, spelled(tokens), align(self.words, tokens))

    def targets(self) -> dict[str, float]:
        """All translations, tokens separated by spaces, the likeliest first; they sum to one."""
        probabilities: dict[str, float] = {}
        for probability, tokens in self.english.expand():
            text = " ".join(spelled(tokens))
            probabilities[text] = probabilities.get(text, 0.0) + probability
        return dict(sorted(probabilities.items(), key=lambda item: (-round(item[1], 9), item[0])))


def finish(d: Derivation, phrase: Phrase, mark: str) -> Sentence:
    """Make a sentence of a phrase and a punctuation mark."""
    end = Word(mark)
    words = without_extra_commas([*phrase.german, end])
    english = Seq(phrase.english, Token(mark, [end]))
    return Sentence(words, english, list(d.constructions), list(d.combinations), d.optional)


def without_extra_commas(words: list[Word]) -> list[Word]:
    """Drop the closing comma of a clause where another mark follows."""
    following = [*words[1:], None]
    return [
        word
        for word, after in zip(words, following, strict=True)
        if word.text != "," or after is None or after.text not in ",.?"
    ]


def align(words: Sequence[Word], tokens: Sequence[Token]) -> Alignment:
    """The links of the English tokens as pairs of positions."""
    position = {id(word): index for index, word in enumerate(words)}
    sure, possible = set(), set()
    for target, token in enumerate(tokens):
        sure.update((position[id(word)], target) for word in token.sure)
        possible.update((position[id(word)], target) for word in token.possible)
    return Alignment(frozenset(sure), frozenset(possible - sure))


def spelled(tokens: Sequence[Token]) -> list[str]:
    """The English text: "an" where it is due, and a capital at the beginning."""
    texts = [token.text for token in tokens]
    for index, following in enumerate(texts[1:]):
        if texts[index] == "a" and starts_with_vowel(following):
            texts[index] = "an"
    return capitalised(texts)


def capitalised(texts: list[str]) -> list[str]:
    return [texts[0][0].upper() + texts[0][1:], *texts[1:]]


def detokenised(tokens: Sequence[str]) -> str:
    """Plain text: no space before a punctuation mark."""
    text = " ".join(tokens)
    for mark in ",.?":
        text = text.replace(" " + mark, mark)
    return text
