"""F1 of words by their frequency in the training text, as compare-mt measures it.

Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language Generation Systems"
(arXiv 1903.07926): within a sentence, each word of a translation matches at most one equal word of
the reference.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

# The smallest frequency in each bucket.
EDGES = (0, 1, 2, 10, 100, 1000)
# The frequencies in each bucket: the smallest and the largest one, which the last does not have.
LIMITS = tuple(zip(EDGES, [*(edge - 1 for edge in EDGES[1:]), None], strict=True))


def bucket_of(frequency: int) -> int:
    """Return the number of a frequency's bucket."""
    return bisect(EDGES, frequency) - 1


def bucket_label(least: int, most: Optional[int]) -> str:
    """Return the frequencies in a bucket as text."""
    if most is None:
        return f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def count_words(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """Count the words of a text."""
    return Counter(word for sentence in sentences for word in sentence)


def f1_by_frequency(
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    frequencies: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Compute the F1 of words in buckets of their frequency.

    Args:
        hypotheses: the words of each translation.
        references: the words of each reference.
        frequencies: how often words occur in the training text.

    Returns:
        For each bucket ``least`` and ``most``, the frequencies in it (``most`` is None in the last
        one); the number of words that are ``matched``, ``translated`` and in the ``reference``;
        and ``f1``, None if there are no such words.
    """
    counts = {name: [0] * len(EDGES) for name in ("matched", "translated", "reference")}
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        mine, theirs = Counter(hypothesis), Counter(reference)
        for name, words in zip(counts, (mine & theirs, mine, theirs), strict=True):
            for word, count in words.items():
                counts[name][bucket_of(frequencies.get(word, 0))] += count
    return [
        {
            "least": least,
            "most": most,
            **dict(zip(counts, (matched, translated, reference), strict=True)),
            "f1": 2 * matched / (translated + reference) if translated + reference else None,
        }
        for (least, most), matched, translated, reference in zip(
            LIMITS, *counts.values(), strict=True
        )
    ]


def frequency_table(
    systems: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the F1 of each system."""
    rows = []
    for buckets in zip(*systems.values(), strict=True):
        cells = ["-" if bucket["f1"] is None else f"{bucket['f1']:.3f}" for bucket in buckets]
        rows.append([bucket_label(buckets[0]["least"], buckets[0]["most"]), *cells])
    return ["frequency in training", *(f"F1, {name}" for name in systems)], rows
