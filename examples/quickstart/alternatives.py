"""The translations of a German phrase: English tokens with probabilities and links.

Phrases are composed by two operations. `choice` offers several translations, each with its
probability; `sequence` joins phrases one after the other. So every sentence comes with all of its
translations, their exact probabilities and, because each English token is linked to the German
words that it translates, their word alignments.
"""

import bisect
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(eq=False)
class Word:
    """A German token. Links refer to the object, so that equal words stay apart."""

    text: str


class Token(NamedTuple):
    """An English token with its sure links and its possible ones."""

    text: str
    sure: tuple[Word, ...] = ()
    possible: tuple[Word, ...] = ()


class Alternatives(NamedTuple):
    """All translations of a phrase, and the kinds of ambiguity among them."""

    items: tuple[tuple[float, tuple[Token, ...]], ...]  # the probabilities sum to 1
    kinds: frozenset[str] = frozenset()


def tokens(text: str, sure: Sequence[Word] = (), possible: Sequence[Word] = ()) -> Alternatives:
    """Return a single translation: tokens, separated by ``_`` in the text, with the same links."""
    found = tuple(Token(word, tuple(sure), tuple(possible)) for word in text.split("_") if word)
    return Alternatives(((1.0, found),))


def choice(kind: str, *branches: tuple[float, Alternatives]) -> Alternatives:
    """Return the translations of all branches with their probabilities, and add the kind."""
    if not math.isclose(sum(p for p, _ in branches), 1):
        raise ValueError(f"probabilities of {kind} that do not sum to 1")
    items = tuple((p * q, found) for p, branch in branches for q, found in branch.items)
    kinds = frozenset({kind} if len(branches) > 1 else ())
    return Alternatives(items, kinds.union(*(branch.kinds for _, branch in branches)))


def sequence(*parts: Alternatives) -> Alternatives:
    """Return the translations of phrases in this order, each chosen independently."""
    items = tuple(
        (math.prod(p for p, _ in chosen), tuple(token for _, found in chosen for token in found))
        for chosen in itertools.product(*(part.items for part in parts))
    )
    return Alternatives(items, frozenset().union(*(part.kinds for part in parts)))


def spell(tokens: Sequence[Word | Token]) -> str:
    """Return a sentence as text, with "an" before vowels and a capital at the beginning."""
    texts = [token.text for token in tokens]
    pairs = zip(texts, [*texts[1:], "."], strict=True)
    text = " ".join("an" if word == "a" and after[0] in "aeiou" else word for word, after in pairs)
    return text[0].upper() + text[1:]


def talp(german: Sequence[Word], english: Sequence[Token]) -> str:
    """Return the links in RWTH's format, counted from 1: 3-2 is a sure link, 3p2 a possible one."""
    place = {word: number for number, word in enumerate(german, 1)}
    links = []
    for number, token in enumerate(english, 1):
        links += [(place[word], number, "-") for word in token.sure]
        links += [(place[word], number, "p") for word in token.possible]
    return " ".join(f"{source}{kind}{target}" for source, target, kind in sorted(links))


def pick(rng: random.Random, items: Sequence, weights: Sequence[float] | None = None):
    """Draw an item with `random()`, whose numbers are the same in every version of Python."""
    totals = list(itertools.accumulate(weights or [1] * len(items)))
    return items[bisect.bisect(totals, rng.random() * totals[-1], hi=len(items) - 1)]
