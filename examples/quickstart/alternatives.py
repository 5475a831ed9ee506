"""The translations of a German phrase: English token sequences with probabilities and links.

Phrases are put together by two operations. `choice` offers several translations, each with its
probability; `sequence` puts phrases one after the other. So every sentence comes with all of its
translations, their exact probabilities and, because each English token names the German words that
it translates, their word alignments.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import NamedTuple


class Word:
    """A German token. Links refer to the object, so that equal words stay apart."""

    def __init__(self, text: str) -> None:
        self.text = text


class Token(NamedTuple):
    """An English token, its sure links and its possible ones."""

    text: str
    sure: tuple[Word, ...] = ()
    possible: tuple[Word, ...] = ()


class Alternatives(NamedTuple):
    """All translations of a phrase.

    Attributes:
        items: probability and tokens of each translation; the probabilities sum to 1.
        kinds: the kinds of ambiguity that give rise to more than one.
    """

    items: tuple[tuple[float, tuple[Token, ...]], ...]
    kinds: frozenset[str] = frozenset()


NOTHING = Alternatives(((1.0, ()),))


def tokens(text: str, sure: Sequence[Word] = (), possible: Sequence[Word] = ()) -> Alternatives:
    """Return a translation of one or more tokens, separated by ``_``, with the same links."""
    words = text.split("_") if text else []
    return Alternatives(
        ((1.0, tuple(Token(word, tuple(sure), tuple(possible)) for word in words)),)
    )


def choice(kind: str, *branches: tuple[float, Alternatives]) -> Alternatives:
    """Return the translations of all branches, whose probabilities must sum to 1.

    Args:
        kind: name of the ambiguity, noted if there is more than one branch.
        branches: pairs of a probability and the translations to which it leads.
    """
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


def spell(texts: Sequence[str]) -> list[str]:
    """Return the tokens of a sentence with "an" where it is due and a capital at the beginning."""
    pairs = itertools.zip_longest(texts, texts[1:], fillvalue=".")
    spelled = ["an" if text == "a" and after[0] in "aeiou" else text for text, after in pairs]
    return [spelled[0][0].upper() + spelled[0][1:], *spelled[1:]]


def talp(german: Sequence[Word], english: Sequence[Token]) -> str:
    """Return the links in RWTH's format, counted from 1: 3-2 is a sure link, 3p2 a possible one."""
    place = {word: number for number, word in enumerate(german, 1)}
    links = {(place[word], number, "-") for number, t in enumerate(english, 1) for word in t.sure}
    links |= {
        (place[word], number, "p")
        for number, token in enumerate(english, 1)
        for word in token.possible
        if word not in token.sure
    }
    return " ".join(f"{source}{kind}{target}" for source, target, kind in sorted(links))


# Only `random()` is promised to give the same numbers in every version of Python, so everything is
# drawn with these two functions.


def pick(generator: random.Random, items: Sequence):
    """Draw one of the items; all are equally likely."""
    return items[int(generator.random() * len(items))]


def pick_weighted(generator: random.Random, branches: Sequence[tuple[float, object]]):
    """Draw a value from pairs of a weight and a value."""
    point = generator.random() * sum(weight for weight, _ in branches)
    for weight, value in branches:
        point -= weight
        if point < 0:
            return value
    return branches[-1][1]
