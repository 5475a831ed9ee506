"""Pairs that are wrong on purpose, for the study of what a model does with words to ignore.

shuffled: the targets of some sentences are exchanged among them, so that nothing corresponds.
inserted: the target has a phrase that the source does not have.
dropped: the target lacks the translation of an adverbial or a relative clause.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from alignment import EMPTY
from corpus import CorpusError, Example
from phrases import Token, pick, shuffled
from sentence import Pair, spelled

KINDS = ("shuffled", "inserted", "dropped")
INSERTIONS = (
    "in the garden", "in the park", "in the city", "in the kitchen", "at the market",
    "at the station", "in Berlin", "in Paris", "with the dog", "for the teacher",
)  # fmt: skip
ATTEMPTS = 1000


class Noisy(NamedTuple):
    """A pair and what is wrong with it.

    Attributes:
        pair: with the links that are still right
        noise: one of `KINDS`, or "none"
        inserted: positions of target tokens without a source
        dropped: positions of source tokens that lost their translation
        phrase: what was dropped, "adverbial" or "relative clause"
        target_of: position of the pair that the target belongs to
    """

    pair: Pair
    noise: str = "none"
    inserted: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    phrase: str = ""
    target_of: int | None = None

    @property
    def record(self) -> dict:
        """The label, with positions from zero."""
        return {
            "noise": self.noise,
            "inserted": list(self.inserted),
            "dropped": list(self.dropped),
            "phrase": self.phrase or None,
            "target_of": self.target_of,
        }


def add_noise(
    generator: random.Random, examples: Sequence[Example], noise: str, share: float
) -> list[Noisy]:
    """Spoil a share of the pairs: with one kind of noise, or "all" in equal parts."""
    kinds = KINDS if noise == "all" else (noise,)
    total = round(share * len(examples))
    order = shuffled(generator, range(len(examples)))
    chosen: dict[str, list[int]] = {kind: [] for kind in kinds}
    for number, kind in enumerate(sorted(kinds)):
        count = total // len(kinds) + (number < total % len(kinds))
        usable = [
            index for index in order if kind != "dropped" or examples[index].sentence.optional
        ]
        if len(usable) < count:
            raise CorpusError(
                f"{count} pairs shall lose a phrase, but only {len(usable)} of {len(examples)} "
                "have one that can be dropped: lower --noise-share"
            )
        chosen[kind] = usable[:count]
        order = [index for index in order if index not in set(chosen[kind])]
    result = [Noisy(example.pair) for example in examples]
    for index in chosen.get("inserted", []):
        result[index] = insert(generator, examples[index])
    for index in chosen.get("dropped", []):
        result[index] = drop(generator, examples[index])
    for index, other in exchange(generator, examples, sorted(chosen.get("shuffled", []))):
        pair = Pair(result[index].pair.german, examples[other].pair.english, EMPTY)
        result[index] = Noisy(pair, "shuffled", target_of=other)
    return result


def insert(generator: random.Random, example: Example) -> Noisy:
    """Put a phrase before the final mark; its last word is new to the sentence."""
    present = {token.text for token in example.tokens}
    phrases = [phrase for phrase in INSERTIONS if phrase.split()[-1] not in present]
    phrase = [Token(text) for text in pick(generator, phrases).split()]
    *body, mark = example.tokens
    pair = example.sentence.pair([*body, *phrase, mark])
    return Noisy(pair, "inserted", inserted=tuple(range(len(body), len(body) + len(phrase))))


def drop(generator: random.Random, example: Example) -> Noisy:
    """Leave out what translates nothing but an optional phrase."""
    kind, words = pick(generator, example.sentence.optional)
    inside = {id(word) for word in words}

    def belongs(token: Token) -> bool:
        return all(id(word) in inside for word in (*token.sure, *token.possible))

    kept = [token for token in example.tokens if not belongs(token)]
    lost = tuple(
        index
        for index, word in enumerate(example.sentence.words)
        if id(word) in inside and word.text != ","
    )
    return Noisy(example.sentence.pair(kept), "dropped", dropped=lost, phrase=kind)


def exchange(
    generator: random.Random, examples: Sequence[Example], chosen: Sequence[int]
) -> list[tuple[int, int]]:
    """For each chosen pair another one whose target it gets, which is no translation of it."""
    if not chosen:
        return []
    targets = {index: examples[index].sentence.targets() for index in chosen}
    texts = {index: " ".join(spelled(examples[index].tokens)) for index in chosen}
    others = shuffled(generator, chosen)
    for position, index in enumerate(chosen):
        if texts[others[position]] not in targets[index]:
            continue
        for _ in range(ATTEMPTS):
            swap = int(generator.random() * len(chosen))
            here, there = others[swap], others[position]
            if texts[here] not in targets[index] and texts[there] not in targets[chosen[swap]]:
                others[position], others[swap] = here, there
                break
        else:
            raise CorpusError(
                "too few different sentences to exchange targets: raise --noise-share"
            )
    return list(zip(chosen, others, strict=True))
