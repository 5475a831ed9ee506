"""Sparsity of the output of a translation model over a data set.

At each teacher-forced step: the number of tokens with nonzero probability, the number of
source positions attended to (Table 3 of Sparse Sequence-to-Sequence Models), and how often the
token of the reference is impossible. At each step of the translation that beam search finds: the
share of zeros (Figures 5 and 6 of Speeding Up Entmax) and the sum of the probabilities (Figure 9
there). By search: the share of sentences whose beam holds every hypothesis of nonzero probability.
"""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Optional

import torch

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.measure.attention.attention_statistics import (
    AttentionStatistics,
    find_attention,
)
from fairseq_sparse.measure.translator import (
    ForcedSteps,
    Translator,
    forced_steps,
    search,
    with_references,
)

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Width of the bins for sums of p, which are centred on its multiples, so that a rounded sum of 1
# stays in one bin, and their number; the last bin takes all larger sums.
SUM_WIDTH = 0.05
SUM_BINS = 400
# Steps of a sentence that are told apart.
POSITIONS = 50


class OutputStatistics:
    """Counts over teacher-forced steps; the number of counts does not grow with the data."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        # [V + 1]: the number of steps with n nonzero probabilities, for n from 0 to V.
        self.nonzeros = torch.zeros(vocabulary + 1, dtype=torch.int64)
        self.gold_zero = 0
        self.sums = torch.zeros(SUM_BINS, dtype=torch.int64)
        # Sums of Σp - 1 and of its square; with Σp itself, rounding would distort the deviation.
        self.moments = torch.zeros(2, dtype=torch.float64)
        self.smallest, self.largest = math.inf, -math.inf
        # [V]: the number of steps at which a token is possible.
        self.tokens = torch.zeros(vocabulary, dtype=torch.int64)
        # By the step's place in its sentence: steps, and the sum of their nonzero probabilities.
        self.places = torch.zeros(2, POSITIONS, dtype=torch.int64)

    def add(self, steps: ForcedSteps) -> None:
        """Count some steps.

        Raises:
            ValueError: a probability is NaN.
        """
        possible = steps.log_p > -math.inf
        nonzeros = possible.sum(1).cpu()
        sums = steps.log_p.exp().sum(1, dtype=torch.float64).cpu()
        refuse_nan(sums)
        self.nonzeros += torch.bincount(nonzeros, minlength=len(self.nonzeros))
        self.tokens += possible.sum(0).cpu()
        early = steps.position.cpu() < POSITIONS
        counts = torch.stack([torch.ones_like(nonzeros), nonzeros])[:, early]
        self.places.index_add_(1, steps.position.cpu()[early], counts)
        self.gold_zero += int(steps.token_log_p.isneginf().sum())
        bins = (sums / SUM_WIDTH + 0.5).floor().clamp(max=SUM_BINS - 1).long()
        self.sums += torch.bincount(bins, minlength=SUM_BINS)
        self.moments += torch.stack([(sums - 1).sum(), (sums - 1).square().sum()])
        self.smallest = min(self.smallest, sums.min().item())
        self.largest = max(self.largest, sums.max().item())

    def result(self) -> dict[str, Any]:
        """Return what was counted.

        Returns:
            ``steps`` and ``vocabulary``; ``nonzeros``: ``mean``, ``min``, ``max``, ``quantiles``
            and ``histogram``, whose bins double; ``zeros``: mean share of the vocabulary;
            ``gold_zero``: share of given tokens with p = 0; ``prob_sum``: ``mean``, ``sd``
            (over all N steps), ``min``, ``max`` and ``histogram``. A histogram has ``edges``
            and, one fewer, ``counts``; a bin holds its left edge. ``by_position``: for the first
            step of the sentences, the second and so on, up to ``POSITIONS``, the number of
            ``steps`` and the mean of their ``nonzeros``. ``by_rank``: ``edges``, ranks from 0 in
            the dictionary, which fairseq sorts by frequency after four special symbols, and for
            each part between them ``nonzeros``, the mean number of its tokens with p > 0 per step.

        Raises:
            AnalysisError: no step was counted.
        """
        steps = int(self.nonzeros.sum())
        if steps == 0:
            raise AnalysisError("no sentence was counted")
        numbers = torch.arange(self.vocabulary + 1)
        mean = (self.nonzeros * numbers).sum().item() / steps
        seen = self.nonzeros.nonzero().flatten().tolist()
        difference, square = (self.moments / steps).tolist()
        return {
            "steps": steps,
            "vocabulary": self.vocabulary,
            "nonzeros": {
                "mean": mean,
                "min": seen[0],
                "max": seen[-1],
                "quantiles": {str(q): quantile(self.nonzeros, q) for q in QUANTILES},
                "histogram": doubling_histogram(self.nonzeros),
            },
            "zeros": 1 - mean / self.vocabulary,
            "gold_zero": self.gold_zero / steps,
            "prob_sum": {
                "mean": 1 + difference,
                "sd": math.sqrt(max(0.0, square - difference**2)),
                "min": self.smallest,
                "max": self.largest,
                "histogram": self._sum_histogram(),
            },
            "by_position": self._by_position(),
            "by_rank": self._by_rank(steps),
        }

    def _by_position(self) -> dict[str, list]:
        steps, nonzeros = (row[self.places[0] > 0] for row in self.places)
        return {"steps": steps.tolist(), "nonzeros": (nonzeros / steps).tolist()}

    def _by_rank(self, steps: int) -> dict[str, list]:
        powers = [10**power for power in range(1, len(str(self.vocabulary)))]
        edges = [0, *(power for power in powers if power < self.vocabulary), self.vocabulary]
        parts = self.tokens.split([high - low for low, high in zip(edges, edges[1:], strict=False)])
        return {"edges": edges, "nonzeros": [part.sum().item() / steps for part in parts]}

    def _sum_histogram(self) -> dict[str, list]:
        seen = self.sums.nonzero().flatten().tolist()
        first, last = seen[0], seen[-1]
        edges = [round((number - 0.5) * SUM_WIDTH, 6) for number in range(first, last + 2)]
        if last == SUM_BINS - 1:
            edges[-1] = self.largest
        return {"edges": edges, "counts": self.sums[first : last + 1].tolist()}


def quantile(counts: torch.Tensor, q: float) -> int:
    """Return the smallest number that a share of at least q of the numbers does not exceed.

    Args:
        counts: how often each number from 0 on was seen, ``[numbers]``.
    """
    return int((counts.cumsum(0) >= max(1, math.ceil(q * counts.sum().item()))).nonzero()[0])


def doubling_histogram(counts: torch.Tensor) -> dict[str, list[int]]:
    """Return counts in the bins 0, 1, 2-3, 4-7, 8-15 and so on, up to the last possible number."""
    edges = [0] + [2**power for power in range((len(counts) - 1).bit_length() + 1)]
    return {
        "edges": edges,
        "counts": [
            int(counts[low:high].sum()) for low, high in zip(edges, edges[1:], strict=False)
        ],
    }


def measure_steps(
    translator: Translator, batches: Iterable[dict[str, Any]], subset: str
) -> dict[str, Any]:
    """Return the statistics of the steps of given translations: references, or the model's own.

    Args:
        batches: fairseq's batches; :func:`with_best_translations` gives the model's translations.

    Returns:
        The result of :class:`OutputStatistics`; ``sentences``, their number; and ``attended``: the
        number of nonzero weights of cross-attention per step, averaged over layers and heads; None
        for an ensemble, and for a model without the attention of a Transformer or an LSTM.

    Raises:
        AnalysisError: there are no references, or no sentences.
        ValueError: a probability is NaN.
    """
    statistics = OutputStatistics(translator.vocabulary)
    padding = translator.task.target_dictionary.pad()
    attention = _cross_attention(translator, padding)
    sentences = 0
    for sample in with_references(batches, subset):
        sentences += len(sample["target"])
        net_input = sample["net_input"]
        with attention.counting(net_input) if attention else nullcontext():
            for steps in forced_steps(translator.models, net_input, sample["target"], padding):
                statistics.add(steps)
    attended = attention.rates()["cross"]["nonzeros"] if attention and sentences else None
    return {"sentences": sentences, **statistics.result(), "attended": attended}


def _cross_attention(translator: Translator, padding: int) -> Optional[AttentionStatistics]:
    if len(translator.models) > 1 or not find_attention(translator.model)["cross"]:
        return None
    return AttentionStatistics(translator.model, padding, diversity=False, places=["cross"])


def count_certified(
    translator: Translator, batches: Iterable[dict[str, Any]], beam: int
) -> dict[str, Optional[float]]:
    """Return the share of sentences whose possible translations were provably all found.

    This is about translations with at least one word, within fairseq-generate's length limits.

    Returns:
        ``exact``: the share of sentences for which no hypothesis of nonzero probability was
        dropped; ``single``: the share for which, besides, there is only one. Both are None if the
        search does not report it, as fairseq's own, or if no token can have probability 0.

    Raises:
        AnalysisError: there are no sentences.
    """
    if not translator.is_sparse:
        return {"exact": None, "single": None}
    exact, single, sentences = 0, 0, 0
    # Ask for the whole n-best list, because a search for the best hypothesis alone stops earlier.
    for _, hypotheses in search(translator, batches, beam, nbest=beam):
        for hypos in hypotheses:
            if hypos[0].get("exact") is None:
                return {"exact": None, "single": None}
            exact += hypos[0]["exact"]
            single += hypos[0]["exact"] and len(hypos) == 1
            sentences += 1
    if sentences == 0:
        raise AnalysisError("no sentence was translated")
    return {"exact": exact / sentences, "single": single / sentences}
