"""Minimum Bayes risk decoding: choose the sample with the highest expected utility.

The samples of a sentence are both the candidates and an estimate of the model's distribution: the
expected utility of a candidate is the mean of its utility with each sample as the reference
(Eikema and Aziz 2020, arXiv 2005.10283). A sparse model needs no truncation threshold for
sampling: tokens outside its support have probability 0.

The utilities are sacreBLEU's sentence-level scores. The score of two texts needs only their numbers
of n-grams, and the number of n-grams that they share. These are counted for all samples of a
sentence at once, by matrix products, which is much faster than sacreBLEU pair by pair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams


@dataclass(frozen=True)
class Utility:
    """A sentence-level score of sacreBLEU that can be computed for many pairs of texts at once.

    Attributes:
        metric: sacreBLEU's metric.
        ngrams: counts the n-grams of a text, one counter for each order.
        score: computes the score, 0 to 100, from the numbers of n-grams of hypotheses, of
            references, and of those that they share; the first dimension is the order, and the
            others can be broadcast.
    """

    metric: Metric
    ngrams: Callable[[str], list[Counter]]
    score: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

    @property
    def signature(self) -> str:
        """sacreBLEU's signature of the score, which has one reference."""
        self.metric.sentence_score("", [""])
        return str(self.metric.get_signature())


def chrf() -> Utility:
    """Return chrF with sacreBLEU's defaults, bit-identical to ``sacrebleu.sentence_chrf``."""
    metric = CHRF()
    beta2 = metric.beta**2

    def score(hypothesis: np.ndarray, reference: np.ndarray, shared: np.ndarray) -> np.ndarray:
        counted = (hypothesis > 0) & (reference > 0)
        orders = np.maximum(counted.sum(axis=0), 1)
        precision, recall = (
            sum(np.where(counted, shared / np.maximum(total, 1), 0.0)) / orders
            for total in (hypothesis, reference)
        )
        both = beta2 * precision + recall
        with np.errstate(invalid="ignore"):
            f_score = (1 + beta2) * precision * recall / both
        return 100 * np.where(both > 0, f_score, 0.0)

    return Utility(metric, lambda text: extract_all_char_ngrams(text, metric.char_order), score)


def bleu(tokenize: str = BLEU.TOKENIZER_DEFAULT) -> Utility:
    """Return ``sacrebleu.sentence_bleu``: exponential smoothing, only orders with n-grams."""
    metric = BLEU(tokenize=tokenize, effective_order=True, force=True)

    def ngrams(text: str) -> list[Counter]:
        tokens = metric.tokenizer(text.rstrip()).split()
        return [extract_word_ngrams(tokens, n + 1) for n in range(metric.max_ngram_order)]

    def score(hypothesis: np.ndarray, reference: np.ndarray, shared: np.ndarray) -> np.ndarray:
        logs, smoothing = np.zeros(shared.shape[1:]), np.ones(shared.shape[1:])
        for total, right in zip(hypothesis, shared, strict=True):
            smoothing = np.where((total > 0) & (right == 0), 2 * smoothing, smoothing)
            precision = np.where(right > 0, right, 1 / smoothing) / np.maximum(total, 1)
            logs += np.where(total > 0, np.log(100 * precision), 0.0)
        orders = np.maximum((hypothesis > 0).sum(axis=0), 1)
        longer = np.maximum(1.0, reference[0] / np.maximum(hypothesis[0], 1))
        return np.where(shared.any(axis=0), np.exp(1 - longer + logs / orders), 0.0)

    return Utility(metric, ngrams, score)


@dataclass(frozen=True)
class Candidate:
    """A sample, with the number of times that it was drawn and its expected utility."""

    text: str
    count: int
    utility: float


def pairwise(utility: Utility, texts: Sequence[str]) -> np.ndarray:
    """Compute the utility of each text with each text as its reference.

    Returns:
        ``[hypotheses, references]``, in float64.
    """
    orders = list(zip(*map(utility.ngrams, texts), strict=True))
    totals = np.array([[counter.total() for counter in order] for order in orders], np.float64)
    shared = np.stack([_shared(order) for order in orders])
    return utility.score(totals[:, :, None], totals[:, None], shared)


def rank(utility: Utility, samples: Sequence[str]) -> list[Candidate]:
    """Rank the samples of a sentence by expected utility, the best first.

    A text drawn several times is one candidate, but counts as many times as a reference. Among
    equal candidates, the one drawn first comes first.
    """
    counts = Counter(samples)
    expected = pairwise(utility, list(counts)) @ (np.array(list(counts.values())) / len(samples))
    found = [
        Candidate(text, count, float(value))
        for (text, count), value in zip(counts.items(), expected, strict=True)
    ]
    return sorted(found, key=lambda candidate: -candidate.utility)


def _shared(counters: Sequence[Counter]) -> np.ndarray:
    """Count the n-grams that each pair of texts shares, each as often as both have it.

    Args:
        counters: for each text, the n-grams of one order.

    Returns:
        ``[texts, texts]``, in float64.
    """
    # The k-th occurrence of an n-gram is shared by the texts that have at least k of it.
    owners: dict[object, list[int]] = defaultdict(list)
    for number, counter in enumerate(counters):
        for ngram, count in counter.items():
            owners[ngram].append(number)
            for k in range(1, count):
                owners[ngram, k].append(number)
    several = [numbers for numbers in owners.values() if len(numbers) > 1]
    has = np.zeros((len(counters), len(several)), np.float32)
    columns = np.repeat(np.arange(len(several)), list(map(len, several)))
    has[[number for numbers in several for number in numbers], columns] = 1
    shared = (has @ has.T).astype(np.float64)  # exact: whole numbers below 2^24
    np.fill_diagonal(shared, [counter.total() for counter in counters])
    return shared
