"""Sentences for which one system's translation is better than another's, side by side.

Table 7 of "Speeding Up Entmax" (Tezekbayev et al. 2022) has four of them, which the authors chose.
Here, sentences are found by sacreBLEU's chrF of each translation, which suits single sentences
better than BLEU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics import CHRF


@dataclass(frozen=True)
class Comparison:
    """A sentence in two translations.

    Attributes:
        number: from 1, as in the file.
        source: the source text, if known.
        reference, first, second: texts; ``reference`` is the first one if there are several.
        scores: chrF of the first and of the second system's translation.
    """

    number: int
    source: str | None
    reference: str
    first: str
    second: str
    scores: tuple[float, float]

    @property
    def difference(self) -> float:
        """The advantage of the second translation in chrF."""
        return self.scores[1] - self.scores[0]


def compare(
    source: Sequence[str] | None,
    references: Sequence[Sequence[str]],
    first: Sequence[str],
    second: Sequence[str],
) -> list[Comparison]:
    """Return the sentences in which two systems differ, those first in which the second is better.

    Each of the references has a text for each sentence.
    """
    metric = CHRF()
    found = []
    sources = source if source is not None else [None] * len(first)
    lines = zip(sources, zip(*references, strict=True), first, second, strict=True)
    for number, (text, expected, one, two) in enumerate(lines, start=1):
        if one != two:
            scores = [metric.sentence_score(each, expected).score for each in (one, two)]
            pair = Comparison(number, text, expected[0], one, two, (scores[0], scores[1]))
            found.append(pair)
    return sorted(found, key=lambda pair: (-pair.difference, pair.number))


def as_row(pair: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON, with its ``difference``."""
    return {**asdict(pair), "difference": pair.difference}


def as_lists(pairs: Sequence[Comparison], names: Sequence[str], most: int) -> list[str]:
    """Return up to ``most`` sentences for which the second system is better, then as many for which
    it is worse, as paragraphs."""
    better = [pair for pair in pairs if pair.difference > 0]
    worse = [pair for pair in reversed(pairs) if pair.difference < 0]
    parts = [f"{len(pairs)} sentences differ"]
    for first, second, found in ((names[1], names[0], better), (names[0], names[1], worse)):
        parts.append(f"{first} is better than {second} in {len(found)}:")
        parts.append(as_text(found[:most], names) or "(none)")
    return parts


def as_text(pairs: Sequence[Comparison], names: Sequence[str]) -> str:
    """Return the sentences one below the other, each with both translations."""
    labels = ["source", "reference", *names]
    width = max(map(len, labels))
    blocks = []
    for pair in pairs:
        lines = [f"line {pair.number}, chrF {pair.scores[0]:.1f} and {pair.scores[1]:.1f}"]
        texts = (pair.source, pair.reference, pair.first, pair.second)
        lines += [
            f"  {label:<{width}}  {text}"
            for label, text in zip(labels, texts, strict=True)
            if text is not None
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
