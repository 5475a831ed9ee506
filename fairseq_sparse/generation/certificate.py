"""Proofs about the result of a beam search, based on the hypotheses that it dropped."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Optional, Union

import numpy as np
from torch import Tensor

# Tolerance for rounding errors, through which a log-probability can come out above 0.
ROUNDING = 1e-5
_NEGLIGIBLE = -80.0

# The number of a step, from 0, or an array of such numbers that broadcasts with the scores.
Step = Union[int, np.ndarray]


@dataclass(frozen=True)
class ScoreBound:
    """The best score that a hypothesis can end with, given its score so far.

    No probability is greater than 1, so the log-probability of a prefix is a bound for all its
    continuations. If scores are divided by a power of the length, the longest continuation (with a
    negative power, the shortest) has the best score for the same log-probability.

    Args:
        max_len: number of tokens of the longest hypothesis, EOS not counted; for several sentences,
            an array of them that broadcasts with the scores.
        len_penalty: exponent of the length, EOS counted, that divides a score; None: no division.
        holds: whether the score of a token is always at most 0, like a log-probability. If not,
            there is no bound: the weights of alpha-ReLU can be greater than 1.
    """

    max_len: Step
    len_penalty: Optional[float]
    holds: bool

    def of(self, sentences: np.ndarray) -> "ScoreBound":
        """Return the bound for these sentences only."""
        return replace(self, max_len=self.max_len[sentences])

    def finished(self, scores: np.ndarray, step: Step) -> np.ndarray:
        """Return the final scores of hypotheses that end after *step* tokens."""
        if self.len_penalty is None:
            return scores
        return scores / ((np.asarray(step) + 1.0) ** self.len_penalty).astype(scores.dtype)

    def unfinished(self, scores: np.ndarray, step: Step) -> np.ndarray:
        """Return upper bounds of the final scores of hypotheses that have *step* + 1 tokens."""
        if not self.holds:
            return np.where(np.isneginf(scores), scores, np.float32(np.inf))
        last = self.max_len
        if self.len_penalty is not None and self.len_penalty < 0:
            last = np.minimum(np.add(step, 1), last)
        return self.finished(np.minimum(scores + ROUNDING, 0.0), last)


class Verdicts(NamedTuple):
    """The proofs about each sentence's hypotheses; each array is ``[batch]``.

    Attributes:
        exact: whether nothing of nonzero probability was dropped.
        bound: the best final score that anything dropped could have had; -inf if nothing was.
        mass: total probability of everything dropped (for a prefix, of all its continuations), and
            of padding; NaN if it was not requested, or if a probability was NaN.
        steps: the number of search steps until the sentence ended.
    """

    exact: np.ndarray
    bound: np.ndarray
    mass: np.ndarray
    steps: np.ndarray


class Certificate:
    """A record of the hypotheses that a beam search drops, for each sentence of a batch.

    A hypothesis is dropped if its probability is above 0 and the search neither finishes nor
    continues it. Whether any was dropped is *counted*, candidate by candidate, so that rounding
    cannot change the answer; their total probability is a sum in floating point.

    The candidates of each step are recorded, in NumPy, and evaluated when the batch is done,
    because many small sums at each step would take as long as the search itself.

    Args:
        score_bound: bounds the final score of a hypothesis.
        batch: number of sentences.
        beam: beam size; each step has twice as many candidates.
        add_up_mass: whether to add up the probability of what is dropped.
    """

    def __init__(self, score_bound: ScoreBound, batch: int, beam: int, add_up_mass: bool):
        self.score_bound = score_bound
        self.batch = batch
        self.beam = beam
        self.add_up_mass = add_up_mass
        # For each step: the sentences, and scores and masks of their candidates.
        self.recorded: list[tuple[np.ndarray, ...]] = []
        # Numbers of steps, sentences, and the probability of their continuations.
        self.totals: list[tuple[int, np.ndarray, np.ndarray]] = []
        self.masked: list[tuple[int, np.ndarray, np.ndarray]] = []
        self.unlisted: list[tuple[int, np.ndarray]] = []
        self.is_cut = np.zeros(batch, dtype=bool)
        self.is_unknown = np.zeros(batch, dtype=bool)

    def record_padding(
        self, sentences: np.ndarray, log_probs: Tensor, prefix_scores: np.ndarray
    ) -> None:
        """Record the probability of padding at a step: it is dropped, because no search chooses it.

        Args:
            sentences: batch indices of the sentences, ``[sentences]``.
            log_probs: log-probabilities of padding after their hypotheses, ``[sentences, beam]``.
            prefix_scores: log-probabilities of these hypotheses, ``[sentences, beam]``.
        """
        if self.add_up_mass:
            scores = log_probs.double().numpy(force=True) + prefix_scores
            self.masked.append((len(self.recorded), sentences, np.exp(scores).sum(axis=1)))

    def record_cut(self, sentences: np.ndarray, log_probs: Tensor, prefix_scores: Tensor) -> None:
        """Record continuations that were masked because a sentence has reached its limit.

        They are dropped, but do not count for the bound, because they are too long.

        Args:
            sentences, log_probs, prefix_scores: as for :meth:`record_total`.
        """
        is_possible = (log_probs > -math.inf).flatten(1).any(dim=1).numpy(force=True)
        self.is_cut[sentences] = is_possible
        if self.add_up_mass:
            mass = np.where(is_possible, _mass(log_probs, prefix_scores), 0.0)
            self.masked.append((len(self.recorded), sentences, mass))

    def record_total(self, sentences: np.ndarray, log_probs: Tensor, prefix_scores: Tensor) -> None:
        """Add up the continuations at a step; needed if probabilities may not sum to 1.

        Args:
            sentences: batch indices of the sentences, ``[sentences]``.
            log_probs: log-probabilities of the continuations of their hypotheses without the masked
                ones, ``[sentences, beam, vocabulary]``.
            prefix_scores: log-probabilities of these hypotheses, ``[sentences, beam]``.
        """
        if self.add_up_mass:
            mass = _mass(log_probs, prefix_scores)
            self.totals.append((len(self.recorded), sentences, mass))

    def record(
        self,
        sentences: np.ndarray,
        scores: np.ndarray,
        finishing: np.ndarray,
        continuing: np.ndarray,
    ) -> None:
        """Record the candidates of a step, which ends it.

        Args:
            sentences: batch indices of the sentences, ``[sentences]``.
            scores: scores of their candidates, ``[sentences, 2 * beam]``, best first, -inf if dead.
            finishing: the candidates that finish a hypothesis.
            continuing: the active candidates that the search continues.
        """
        self.recorded.append((sentences, scores, finishing, continuing))

    def record_unlisted(self, sentence: int, scores: np.ndarray) -> None:
        """Record finished hypotheses of a sentence that do not fit into its list."""
        self.unlisted.append((sentence, scores))

    def record_unknown(self, sentences: np.ndarray) -> None:
        """Record sentences in which a probability was NaN: nothing can be proven about them."""
        self.is_unknown[sentences] = True

    def active_bounds(self) -> np.ndarray:
        """Return bounds of the final scores of the continued hypotheses, ``[sentences]``."""
        sentences, scores, _, continuing = self.recorded[-1]
        bound = self.score_bound.of(sentences)
        return bound.unfinished(_best(scores, continuing), len(self.recorded) - 1)

    def verdicts(self) -> Verdicts:
        """Evaluate the recorded candidates."""
        scores, finishing, continuing, last = self._stack()
        kept = finishing | continuing
        # If all candidates are active, there may be further ones, no better than the worst. If all
        # are also kept, `beam` of them finish: the sentence ends, and drops the further ones.
        lost = np.maximum(_best(scores, ~kept), scores.min(axis=2))  # [steps, batch]
        step = np.arange(len(scores))[:, None]
        bound = self.score_bound
        bounds = np.maximum(bound.unfinished(lost, step), bound.finished(lost, step)).max(axis=0)
        # Hypotheses that were still active when their sentence ended are dropped, too.
        at_the_end = last, np.arange(self.batch)
        active_bound = bound.unfinished(_best(scores, continuing), step)[at_the_end]
        bounds = np.maximum(bounds, active_bound)
        exact = (lost == -np.inf).all(axis=0) & ~self.is_cut & (active_bound == -np.inf)
        mass = np.full(self.batch, np.nan)
        if self.add_up_mass:
            p = np.exp(scores, dtype=np.float64)
            active = (p * continuing).sum(axis=2)
            masked = np.zeros_like(active)
            for number, sentences, found in self.masked:
                masked[number, sentences] += found
            total = np.concatenate([np.ones((1, self.batch)), active[:-1]]) - masked
            for number, sentences, found in self.totals:
                total[number, sentences] = found
            others = np.maximum(total - (p * kept).sum(axis=2), 0.0)
            mass = (masked + np.where(lost > -np.inf, others, 0.0)).sum(axis=0) + active[at_the_end]
        for sentence, unlisted in self.unlisted:
            exact[sentence] = False
            best = bound.finished(unlisted, last[sentence]).max()
            bounds[sentence] = max(bounds[sentence], best)
            mass[sentence] += np.exp(unlisted, dtype=np.float64).sum()
        exact[self.is_unknown] = False
        bounds[self.is_unknown], mass[self.is_unknown] = np.inf, np.nan
        return Verdicts(exact, bounds, mass, last + 1)

    def _stack(self) -> tuple[np.ndarray, ...]:
        """Return the scores of all candidates, -inf in sentences that have ended, and their masks,
        each ``[steps, batch, 2 * beam]``, and the number of each sentence's last step."""
        shape = (len(self.recorded), self.batch, 2 * self.beam)
        scores = np.full(shape, -np.inf, dtype=np.float32)
        finishing, continuing = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        last = np.zeros(self.batch, dtype=np.intp)
        for step, (sentences, *found) in enumerate(self.recorded):
            last[sentences] = step
            for stack, values in zip((scores, finishing, continuing), found, strict=True):
                stack[step, sentences] = values
        return scores, finishing, continuing, last


def _best(scores: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the best score of the selected candidates of each sentence; -inf without any."""
    return np.where(which, scores, np.float32(-np.inf)).max(axis=-1)


def _mass(log_probs: Tensor, prefix_scores: Tensor) -> np.ndarray:
    """Sum the probabilities of all continuations, ``[sentences]``."""
    # exp(-inf) is slow on a CPU; exp(_NEGLIGIBLE) is as good as 0
    mass = log_probs.clamp(min=_NEGLIGIBLE).exp_().sum(dim=-1)  # [sentences, beam]
    return (mass.double() * prefix_scores.double().exp()).sum(dim=-1).numpy(force=True)
