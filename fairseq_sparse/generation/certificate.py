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
        beam: beam size. An EOS among the first *beam* candidates of a step finishes a hypothesis;
            the search continues the first *beam* of the other candidates.
        add_up_mass: whether to add up the probability of what is dropped.
    """

    def __init__(self, score_bound: ScoreBound, batch: int, beam: int, add_up_mass: bool):
        self.score_bound = score_bound
        self.batch = batch
        self.beam = beam
        self.add_up_mass = add_up_mass
        self.recorded: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.masses: list[Optional[np.ndarray]] = []
        self.padding: list[tuple[np.ndarray, np.ndarray]] = []
        self.is_cut = np.zeros(batch, dtype=bool)
        self.cut_mass = np.zeros(batch)
        self.unlisted: list[tuple[int, np.ndarray]] = []
        self.is_unknown = np.zeros(batch, dtype=bool)

    def record_padding(
        self, sentences: np.ndarray, log_probs: Tensor, prefix_scores: np.ndarray
    ) -> None:
        """Record the probability of padding at a step: it is dropped, because no search chooses it.

        Args:
            sentences: batch indices of the active sentences, ``[sentences]``.
            log_probs: log-probabilities of padding after their hypotheses, ``[sentences, beam]``.
            prefix_scores: log-probabilities of these hypotheses, ``[sentences, beam]``.
        """
        if self.add_up_mass:
            scores = log_probs.double().numpy(force=True) + prefix_scores
            self.padding.append((sentences, np.exp(scores).sum(axis=1)))

    def observe(
        self,
        sentences: np.ndarray,
        log_probs: Tensor,
        prefix_scores: Tensor,
        at_limit: np.ndarray,
        unlimited: Tensor,
        sums_to_one: bool,
    ) -> None:
        """Add up all continuations at a step, before candidates are chosen.

        Args:
            sentences: batch indices of the active sentences, ``[sentences]``.
            log_probs: log-probabilities of the continuations of their hypotheses,
                ``[sentences, beam, vocabulary]``.
            prefix_scores: log-probabilities of these hypotheses, ``[sentences, beam]``.
            at_limit: rows of the sentences that have reached their length limit.
            unlimited: for these rows, ``log_probs`` before the limit left only EOS. What the limit
                cuts off counts as dropped, but not in the bound, because it is too long.
            sums_to_one: whether the probabilities after each hypothesis are known to sum to 1, and
                need not be added up.
        """
        mass = None
        if self.add_up_mass and not (sums_to_one and len(at_limit) == 0):
            mass = _mass(log_probs, prefix_scores)
        self.masses.append(mass)
        if len(at_limit) > 0:
            ending, prefix_scores = sentences[at_limit], prefix_scores[at_limit]
            before, after = (
                _count(each, prefix_scores) for each in (unlimited, log_probs[at_limit])
            )
            self.is_cut[ending] = before > after
            if mass is not None:
                lost = _mass(unlimited, prefix_scores) - mass[at_limit]
                self.cut_mass[ending] = np.maximum(lost, 0.0)

    def record(self, sentences: np.ndarray, scores: np.ndarray, is_eos: np.ndarray) -> None:
        """Record the candidates of a step.

        Args:
            sentences: as for :meth:`observe`.
            scores: scores of the candidates, ``[sentences, 2 * beam]``, best first, -inf if dead.
            is_eos: which candidates are EOS.
        """
        self.recorded.append((sentences, scores.copy(), is_eos))

    def record_unlisted(self, sentence: int, scores: np.ndarray) -> None:
        """Record finished hypotheses of a sentence that do not fit into its list."""
        self.unlisted.append((sentence, scores))

    def record_unknown(self, sentences: np.ndarray) -> None:
        """Record sentences in which a probability was NaN: nothing can be proven about them."""
        self.is_unknown[sentences] = True

    def active_bounds(self) -> np.ndarray:
        """Return bounds of the final scores of the continued hypotheses, ``[sentences]``."""
        sentences, scores, is_eos = self.recorded[-1]
        bound = self.score_bound.of(sentences)
        return bound.unfinished(_best(scores, ~is_eos), len(self.recorded) - 1)

    def verdicts(self) -> Verdicts:
        """Evaluate the recorded candidates."""
        scores, is_eos, last = self._stack()
        is_active = scores > -np.inf
        finishing, others = is_active & is_eos, is_active & ~is_eos
        finishing[..., self.beam :] = False
        continuing = others & (others.cumsum(axis=2) <= self.beam)
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
            padding = self._per_step(self.padding)
            masses = self._masses(active, padding) - (p * kept).sum(axis=2)
            masses = np.where(lost > -np.inf, np.maximum(masses, 0.0), 0.0)
            mass = (masses + padding).sum(axis=0) + self.cut_mass + active[at_the_end]
        for sentence, unlisted in self.unlisted:
            exact[sentence] = False
            best = bound.finished(unlisted, last[sentence]).max()
            bounds[sentence] = max(bounds[sentence], best)
            mass[sentence] += np.exp(unlisted, dtype=np.float64).sum()
        exact[self.is_unknown] = False
        bounds[self.is_unknown], mass[self.is_unknown] = np.inf, np.nan
        return Verdicts(exact, bounds, mass, last + 1)

    def _stack(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the scores of all candidates, -inf in sentences that have ended, and which are
        EOS, both ``[steps, batch, 2 * beam]``, and the number of each sentence's last step."""
        shape = (len(self.recorded), self.batch, 2 * self.beam)
        scores = np.full(shape, -np.inf, dtype=np.float32)
        is_eos = np.zeros(shape, dtype=bool)
        last = np.zeros(self.batch, dtype=np.intp)
        for step, (sentences, found, eos) in enumerate(self.recorded):
            scores[step, sentences], is_eos[step, sentences], last[sentences] = found, eos, step
        return scores, is_eos, last

    def _per_step(self, recorded: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return recorded values of sentences, 0 where a sentence has ended, ``[steps, batch]``."""
        values = np.zeros((len(recorded), self.batch))
        for step, (sentences, found) in enumerate(recorded):
            values[step, sentences] = found
        return values

    def _masses(self, active: np.ndarray, padding: np.ndarray) -> np.ndarray:
        """Return the total probability of all continuations but padding at each step,
        ``[steps, batch]``; *active* is that of the hypotheses continued after the step."""
        masses = np.concatenate([np.ones((1, self.batch)), active[:-1]]) - padding
        for step, (mass, (sentences, _, _)) in enumerate(
            zip(self.masses, self.recorded, strict=True)
        ):
            if mass is not None:
                masses[step, sentences] = mass
        return masses


def _best(scores: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the best score of the selected candidates of each sentence; -inf without any."""
    return np.where(which, scores, np.float32(-np.inf)).max(axis=-1)


def _count(log_probs: Tensor, prefix_scores: Tensor) -> np.ndarray:
    """Count the continuations of probability above 0, ``[sentences]``."""
    possible = (log_probs > -math.inf).sum(dim=-1)  # [sentences, beam]
    return possible.masked_fill(prefix_scores.isneginf(), 0).sum(dim=-1).numpy(force=True)


def _mass(log_probs: Tensor, prefix_scores: Tensor) -> np.ndarray:
    """Sum the probabilities of all continuations, ``[sentences]``."""
    # exp(-inf) is slow on a CPU; exp(_NEGLIGIBLE) is as good as 0
    mass = log_probs.clamp(min=_NEGLIGIBLE).exp_().sum(dim=-1)  # [sentences, beam]
    return (mass.double() * prefix_scores.double().exp()).sum(dim=-1).numpy(force=True)
