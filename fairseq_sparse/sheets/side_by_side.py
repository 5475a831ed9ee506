"""Sentences for which one system's translation is better than another's, side by side.

Table 7 of "Speeding Up Entmax" (Tezekbayev et al. 2022) has four of them, which the authors chose.
Here, sentences are found by sacreBLEU's chrF of each translation, which suits single sentences
better than BLEU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import CHRF

from fairseq_sparse.errors import AnalysisError


@dataclass(frozen=True)
class Comparison:
    """A sentence in two translations.

    Attributes:
        number: from 1, as in the file.
        source, reference, first, second: texts.
        scores: chrF of the first and of the second system's translation.
    """

    number: int
    source: str
    reference: str
    first: str
    second: str
    scores: tuple[float, float]

    @property
    def difference(self) -> float:
        """The advantage of the second translation in chrF."""
        return self.scores[1] - self.scores[0]


def compare(
    source: Sequence[str], reference: Sequence[str], first: Sequence[str], second: Sequence[str]
) -> list[Comparison]:
    """Compare two systems sentence by sentence.

    Returns:
        The sentences in which they differ, sorted by the second system's advantage, largest first.

    Raises:
        AnalysisError: the texts differ in their number of lines.
    """
    counts = [len(lines) for lines in (source, reference, first, second)]
    if len(set(counts)) > 1:
        raise AnalysisError(
            "source, reference and the two systems have "
            f"{', '.join(map(str, counts))} lines: they are not of one test set"
        )
    metric = CHRF()
    found = []
    for number, texts in enumerate(zip(source, reference, first, second, strict=True), start=1):
        if texts[2] != texts[3]:
            scores = [metric.sentence_score(text, [texts[1]]).score for text in texts[2:]]
            found.append(Comparison(number, *texts, (scores[0], scores[1])))
    return sorted(found, key=lambda pair: (-pair.difference, pair.number))


def as_text(pairs: Sequence[Comparison], names: Sequence[str]) -> str:
    """Return the sentences one below the other, each with both translations.

    Args:
        pairs: the result of :func:`compare`.
        names: the names of the two systems.
    """
    labels = ["source", "reference", *names]
    width = max(map(len, labels))
    blocks = []
    for pair in pairs:
        lines = [f"line {pair.number}, chrF {pair.scores[0]:.1f} and {pair.scores[1]:.1f}"]
        texts = (pair.source, pair.reference, pair.first, pair.second)
        lines += [f"  {label:<{width}}  {text}" for label, text in zip(labels, texts, strict=True)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
