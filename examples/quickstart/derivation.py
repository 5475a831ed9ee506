"""The state of one sentence while it is being built: its random choices, and what is in it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from phrases import Word, pick, pick_weighted

# How often a choice falls on a word of the focus if it can.
FOCUS = 0.7
# How much likelier what is optional becomes in a long sentence.
RICHNESS = 2.5


class Derivation:
    """Draws the choices of one sentence and notes what it contains.

    Args:
        generator: the source of all choices
        focus: names of words to be preferred, to find sentences with rare combinations
        rich: prefer long sentences

    Attributes:
        constructions: names of the constructions in the sentence, in order, each once
        combinations: pairs of a construction and a word in it, such as ("dative", "Arzt")
        optional: phrases whose translation could be left out: their kind and their words
    """

    def __init__(
        self, generator: random.Random, focus: Sequence[str] = (), rich: bool = False
    ) -> None:
        self.generator = generator
        self.focus = focus
        self.rich = rich
        self.constructions: dict[str, None] = {}
        self.combinations: dict[tuple[str, str], None] = {}
        self.optional: list[tuple[str, list[Word]]] = []
        self._used: set[str] = set()

    def chance(self, probability: float) -> bool:
        return self.generator.random() < probability

    def option(self, probability: float) -> bool:
        """Whether to add something that makes the sentence longer."""
        return self.chance(min(0.9, probability * RICHNESS) if self.rich else probability)

    def weighted(self, branches: Sequence[tuple[float, object]]):
        return pick_weighted(self.generator, branches)

    def pick(self, items: Sequence):
        """One of the items, with some preference for those in the focus."""
        if self.focus:
            preferred = [item for item in items if name_of(item) in self.focus]
            if preferred and self.chance(FOCUS):
                return pick(self.generator, preferred)
        return pick(self.generator, items)

    def fresh(self, items: Sequence) -> list:
        """The words among the items that are not in the sentence yet."""
        return [item for item in items if name_of(item) not in self._used]

    def pick_fresh(self, items: Sequence):
        """A word that is not in the sentence yet, if there is one."""
        item = self.pick(items)
        if name_of(item) in self._used:
            item = self.pick(self.fresh(items) or items)
        self._used.add(name_of(item))
        return item

    def construction(self, name: str) -> None:
        """Note a construction."""
        self.constructions[name] = None

    def combine(self, construction: str, word: str) -> None:
        """Note a word in a construction."""
        self.combinations[construction, word] = None


def name_of(item: object) -> str:
    """The name of a word of the lexicon, an attribute or the first part; a rule has none."""
    if isinstance(item, str):
        return item
    return item[0] if isinstance(item, tuple) else getattr(item, "name", "")
