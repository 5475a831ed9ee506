"""What a beam search can prove about its result, from what it threw away."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

import numpy as np
from torch import Tensor

# A log-probability that should be at most 0 can be greater by rounding, once for each token.
ROUNDING = 1e-5
_NEGLIGIBLE = -80.0

# The number of a step, from 0, or of several, in an array that broadcasts with scores.
Step = Union[int, np.ndarray]


@dataclass(frozen=True)
class ScoreBound:
    """The best score that a hypothesis can end with, given its score so far.

    No probability is greater than 1, so that the log-probability of a prefix is a bound for all its
    continuations. Where scores are divided by a power of the length, the longest continuation (with
    a negative power, the shortest) has the best score for the same log-probability.

    Args:
        max_len: number of tokens of the longest hypothesis, EOS not counted.
        len_penalty: the power of the length, EOS counted, that divides a score; None for none.
        holds: whether a token's score is at most 0, as a log-probability is. Without it there is no
            bound: the weights of alpha-ReLU can be greater than 1.
    """

    max_len: int
    len_penalty: Optional[float]
    holds: bool

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
    """What is proven about the hypotheses of each sentence; each array is ``[batch]``.

    Attributes:
        exact: whether nothing of nonzero probability was dropped.
        bound: the best final score that anything dropped could have had; -inf if nothing was.
        mass: sum of the probabilities of what was dropped (of prefixes, all their continuations);
            NaN unless it was to be added up.
        steps: the number of steps that the sentence was searched for.
    """

    exact: np.ndarray
    bound: np.ndarray
    mass: np.ndarray
    steps: np.ndarray


class Certificate:
    """Keeps account of the hypotheses that a beam search drops, for each sentence of a batch.

    A hypothesis is dropped if its probability is above 0 and the search neither finishes it nor
    goes on with it. Whether there are any is *counted*, candidate by candidate, so that no rounding
    can change the answer; their probability is a sum in floating point, and tells how much it was.

    The candidates of each step are recorded, in NumPy, and added up when the batch is done: many
    small sums at each step would take as long as the search itself.

    Args:
        score_bound: what a hypothesis can still become.
        batch: number of sentences.
        beam: of the candidates of a step, the EOS among the first *beam* finish a hypothesis, and
            the search goes on with the first *beam* of the others.
        add_up_mass: whether the probability of what is dropped is wanted.
    """

    def __init__(self, score_bound: ScoreBound, batch: int, beam: int, add_up_mass: bool = True):
        self.score_bound = score_bound
        self.batch = batch
        self.beam = beam
        self.add_up_mass = add_up_mass
        self.recorded: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.masses: list[Optional[np.ndarray]] = []
        self.is_cut = np.zeros(batch, dtype=bool)
        self.cut_mass = np.zeros(batch)
        self.unlisted: list[tuple[int, np.ndarray]] = []

    def observe(
        self,
        sentences: np.ndarray,
        log_probs: Tensor,
        prefix_scores: Tensor,
        unlimited: Optional[Tensor] = None,
        sums_to_one: bool = False,
    ) -> None:
        """Add up what is possible at a step, before candidates are chosen.

        Args:
            sentences: the numbers in the batch of the active ones, ``[sentences]``.
            log_probs: log-probabilities of the continuations of their hypotheses,
                ``[sentences, beam, vocabulary]``.
            prefix_scores: the log-probabilities of these, ``[sentences, beam]``.
            unlimited: at the last step, ``log_probs`` before the limit of the length left EOS only.
                What it cuts off is dropped, but has no bound: it is beyond the limit.
            sums_to_one: whether the probabilities after each hypothesis are known to sum to 1; it
                saves adding them up.
        """
        if not self.add_up_mass and unlimited is None:
            return
        mass = None
        if self.add_up_mass and not (sums_to_one and unlimited is None):
            mass = _mass(log_probs, prefix_scores)
        self.masses.append(mass)
        if unlimited is not None:
            before, after = (_count(each, prefix_scores) for each in (unlimited, log_probs))
            self.is_cut[sentences] = before > after
            if self.add_up_mass:
                lost = _mass(unlimited, prefix_scores) - mass
                self.cut_mass[sentences] = np.maximum(lost, 0.0)

    def record(self, sentences: np.ndarray, scores: np.ndarray, is_eos: np.ndarray) -> None:
        """Record the candidates of a step.

        Args:
            sentences: as before.
            scores: of the candidates that the search chooses from, ``[sentences, 2 * beam]``, best
                first, -inf if dead.
            is_eos: which of them are EOS.
        """
        self.recorded.append((sentences, scores.copy(), is_eos))

    def record_unlisted(self, sentence: int, scores: np.ndarray) -> None:
        """Record the finished hypotheses of a sentence for which its list has no room."""
        self.unlisted.append((sentence, scores))

    def active_bounds(self) -> np.ndarray:
        """Return bounds of the final scores of what the search goes on with, ``[sentences]``."""
        _, scores, is_eos = self.recorded[-1]
        return self.score_bound.unfinished(_best(scores, ~is_eos), len(self.recorded) - 1)

    def verdicts(self) -> Verdicts:
        """Add up what was recorded."""
        scores, is_eos, last = self._stack()
        is_active = scores > -np.inf
        finishing, others = is_active & is_eos, is_active & ~is_eos
        finishing[..., self.beam :] = False
        continuing = others & (others.cumsum(axis=2) <= self.beam)
        kept = finishing | continuing
        # Where all candidates offered are active, there may be more, no better than the worst. If
        # all are kept, then a full list of finished ones: the sentence ends, and drops the others.
        lost = np.maximum(_best(scores, ~kept), scores.min(axis=2))  # [steps, batch]
        step = np.arange(len(scores))[:, None]
        bound = self.score_bound
        bounds = np.maximum(bound.unfinished(lost, step), bound.finished(lost, step)).max(axis=0)
        # What was still active when its sentence ended is dropped, too.
        at_the_end = last, np.arange(self.batch)
        active_bound = bound.unfinished(_best(scores, continuing), step)[at_the_end]
        bounds = np.maximum(bounds, active_bound)
        exact = (lost == -np.inf).all(axis=0) & ~self.is_cut & (active_bound == -np.inf)
        mass = np.full(self.batch, np.nan)
        if self.add_up_mass:
            p = np.exp(scores, dtype=np.float64)
            active = (p * continuing).sum(axis=2)
            masses = self._masses(active) - (p * kept).sum(axis=2)
            masses = np.where(lost > -np.inf, np.maximum(masses, 0.0), 0.0)
            mass = masses.sum(axis=0) + self.cut_mass + active[at_the_end]
        for sentence, unlisted in self.unlisted:
            exact[sentence] = False
            best = bound.finished(unlisted, last[sentence]).max()
            bounds[sentence] = max(bounds[sentence], best)
            mass[sentence] += np.exp(unlisted, dtype=np.float64).sum()
        return Verdicts(exact, bounds, mass, last + 1)

    def _stack(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores and EOS of all candidates, ``[steps, batch, 2 * beam]``, dead in sentences
        that have ended, and the number of each sentence's last step."""
        shape = (len(self.recorded), self.batch, 2 * self.beam)
        scores = np.full(shape, -np.inf, dtype=np.float32)
        is_eos = np.zeros(shape, dtype=bool)
        last = np.zeros(self.batch, dtype=np.intp)
        for step, (sentences, found, eos) in enumerate(self.recorded):
            scores[step, sentences], is_eos[step, sentences], last[sentences] = found, eos, step
        return scores, is_eos, last

    def _masses(self, active: np.ndarray) -> np.ndarray:
        """Return the probabilities of all candidates of each step, ``[steps, batch]``; *active* is
        that of the hypotheses that were continued after it."""
        masses = np.concatenate([np.ones((1, self.batch)), active[:-1]])
        for step, (mass, (sentences, _, _)) in enumerate(
            zip(self.masses, self.recorded, strict=True)
        ):
            if mass is not None:
                masses[step, sentences] = mass
        return masses


def _best(scores: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the best score of some of the candidates of a sentence; -inf if there are none."""
    return np.where(which, scores, np.float32(-np.inf)).max(axis=-1)


def _count(log_probs: Tensor, prefix_scores: Tensor) -> np.ndarray:
    """Count the continuations of probability above 0, ``[sentences]``."""
    possible = (log_probs > -math.inf).sum(dim=-1)  # [sentences, beam]
    return possible.masked_fill(prefix_scores.isneginf(), 0).sum(dim=-1).numpy(force=True)


def _mass(log_probs: Tensor, prefix_scores: Tensor) -> np.ndarray:
    """Sum the probabilities of all continuations, ``[sentences]``."""
    # exp(-inf) is slow on a CPU; that of _NEGLIGIBLE is as good as 0
    mass = log_probs.clamp(min=_NEGLIGIBLE).exp_().sum(dim=-1)  # [sentences, beam]
    return (mass.double() * prefix_scores.double().exp()).sum(dim=-1).numpy(force=True)
