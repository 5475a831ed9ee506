"""Measures for ``fairseq-eval-lm`` that count every token, also those of probability 0."""

import json
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_sparse.modules.lm_measures import best_epsilon, lm_measures

logger = logging.getLogger(__name__)


class LMEvaluation:
    """The measures of a text, added up batch by batch.

    ``fairseq-eval-lm`` calls only the model, and leaves tokens of probability 0 out of its
    perplexity. So the batches carry this object to the model, which passes its probabilities to it.

    Args:
        epsilon: the epsilon of the eps-perplexity.
        ignored: targets that do not count, such as padding.
    """

    def __init__(self, epsilon: float, ignored: Iterable[int]):
        self.epsilon = epsilon
        self.ignored = list(ignored)
        self.sums: dict[str, float] = {}
        self.gold: list[Tensor] = []
        self.vocabulary = 0
        self.is_smoothed = False

    def add(self, p: Tensor, target: Tensor) -> None:
        """Add the measures of token weights ``[..., V]`` and their targets ``[...]``."""
        counts = ~torch.isin(target, torch.tensor(self.ignored, device=target.device))
        rows = p[counts]
        measures = lm_measures(rows, target[counts], self.epsilon)
        self.gold.append(measures.pop("gold"))
        measures["nonzeros"] = (rows > 0).sum(-1)
        for name, values in measures.items():
            self.sums[name] = self.sums.get(name, 0.0) + values.double().sum().item()
        self.vocabulary = p.size(-1)

    def smoothed_log_probs(self, p: Tensor) -> Tensor:
        """Return the log-probabilities of a sparse model, smoothed by epsilon."""
        self.is_smoothed = True
        total = p.sum(-1, keepdim=True)
        p = p / total.masked_fill(total == 0, 1.0)
        return (p + self.epsilon).log() - math.log1p(self.epsilon * p.size(-1))

    def summary(self) -> dict[str, Optional[float]]:
        """Return the measures, under the names that they have in the validation log.

        ``best_eps`` gives the smallest eps-perplexity on this text, ``best_eps_ppl``. It is None if
        the uniform distribution is best.
        """
        gold = torch.cat(self.gold)
        tokens, zeros = len(gold), int((gold == 0).sum())
        best = best_epsilon(gold, self.vocabulary)
        if math.isfinite(best):
            smoothed = (gold + best) / (1 + best * self.vocabulary)
            best_perplexity = smoothed.log().mean().neg().exp().item()
        else:  # the uniform distribution
            best, best_perplexity = None, self.vocabulary
        means = {name: value / tokens for name, value in self.sums.items()}
        return {
            "tokens": tokens,
            "eps_ppl": math.exp(means["eps_nll"]),
            "eps": self.epsilon,
            "best_eps": best,
            "best_eps_ppl": best_perplexity,
            "sparsemax_score": means["sparsemax_score"],
            "js_divergence": means["js_divergence"],
            "gold_zero": 100 * zeros / tokens,
            "gold_zero_tokens": zeros,
            "nonzeros": means["nonzeros"],
        }

    def report(self) -> None:
        """Log the measures as a line of JSON."""
        if not self.gold:
            logger.warning(
                "no measures: the model is not of this package; --arch transformer_lm_sparse has "
                "them"
            )
            return
        logger.info(f"measures | {json.dumps(self.summary())}")
        if self.is_smoothed:
            logger.info(
                f"loss and perplexity below are those of all tokens, with eps = {self.epsilon:g}"
            )


class MeasuredBatches:
    """Batches that carry a :class:`LMEvaluation`, which reports after the last of them."""

    def __init__(self, batches: Any, evaluation: LMEvaluation):
        self.batches = batches
        self.evaluation = evaluation

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in self.batches:
            yield {**sample, "evaluation": self.evaluation}
        self.evaluation.report()
