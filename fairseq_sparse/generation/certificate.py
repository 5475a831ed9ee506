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
        """The final scores of hypotheses that end after *step* tokens."""
        if self.len_penalty is None:
            return scores
        return scores / ((np.asarray(step) + 1.0) ** self.len_penalty).astype(scores.dtype)

    def unfinished(self, scores: np.ndarray, step: Step) -> np.ndarray:
        """Upper bounds of the final scores of hypotheses that have *step* + 1 tokens."""
        if not self.holds:
            return np.where(np.isneginf(scores), scores, np.float32(np.inf))
        last = self.max_len
        if self.len_penalty is not None and self.len_penalty < 0:
            last = np.minimum(np.add(step, 1), last)
        return self.finished(np.minimum(scores + ROUNDING, 0.0), last)


class Verdicts(NamedTuple):
    """What a search dropped, and what it could still go on with when it ended a sentence.

    Attributes:
        dropped: whether anything was dropped.
        mass: sum of the probabilities of what was dropped (of prefixes, all their continuations);
            NaN unless it was to be added up.
        bound: the best final score that anything dropped could have had; -inf if nothing was.
        live_mass, live_bound: the same of the hypotheses that were live at the end.
    """

    dropped: np.ndarray
    mass: np.ndarray
    bound: np.ndarray
    live_mass: np.ndarray
    live_bound: np.ndarray


class Certificate:
    """Keeps account of the hypotheses that a beam search drops, for each sentence of a batch.

    A hypothesis is dropped if its probability is above 0 and the search neither finishes it nor
    goes on with it. Whether there are any is *counted*, candidate by candidate, so that no rounding
    can change the answer; their probability is a sum in floating point, and tells how much it was.

    The candidates of each step are noted, in NumPy, and added up when the batch is done: many small
    sums at each step would take as long as the search itself.

    Args:
        score_bound: what a hypothesis can still become.
        batch: number of sentences.
        beam: stock finishes the EOS among the first *beam* candidates of a step and goes on with
            the first *beam* of the others.
        add_up_mass: whether the probability of what is dropped is wanted.
    """

    def __init__(self, score_bound: ScoreBound, batch: int, beam: int, add_up_mass: bool = True):
        self.score_bound = score_bound
        self.batch = batch
        self.beam = beam
        self.add_up_mass = add_up_mass
        self.noted: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.masses: list[Optional[np.ndarray]] = []
        self.cut = np.zeros(batch, dtype=bool)
        self.cut_mass = np.zeros(batch)

    def look_at(
        self,
        sentences: np.ndarray,
        lprobs: Tensor,
        prefix: Tensor,
        unlimited: Optional[Tensor] = None,
        sums_to_one: bool = False,
    ) -> None:
        """Take note of what is possible at a step, before candidates are chosen.

        Args:
            sentences: the numbers in the batch of those that are still in work, ``[rows]``.
            lprobs: log-probabilities of the continuations of their hypotheses,
                ``[rows, beam, vocabulary]``.
            prefix: the log-probabilities of these, ``[rows, beam]``, or of the one hypothesis that
                they all are, ``[rows, 1]``.
            unlimited: at the last step, ``lprobs`` before the limit of the length left EOS only.
                What it cuts off is dropped, but has no bound: it is beyond the limit.
            sums_to_one: whether the probabilities after each hypothesis are known to sum to 1; it
                saves adding them up.
        """
        if not self.add_up_mass and unlimited is None:
            return
        mass = None
        if self.add_up_mass and not (sums_to_one and unlimited is None):
            mass = _candidate_mass(lprobs, prefix)
        self.masses.append(mass)
        if unlimited is not None:
            self.cut[sentences] = _candidates(unlimited, prefix) > _candidates(lprobs, prefix)
            if self.add_up_mass:
                lost = _candidate_mass(unlimited, prefix) - mass
                self.cut_mass[sentences] = np.maximum(lost, 0.0)

    def note(self, sentences: np.ndarray, scores: np.ndarray, ends: np.ndarray) -> None:
        """Note the candidates of a step.

        Args:
            sentences: as before.
            scores: of the candidates that the search chooses from, ``[rows, 2 * beam]``, best
                first, -inf if dead.
            ends: which of them are EOS.
        """
        self.noted.append((sentences, scores.copy(), ends))

    def live_bounds(self) -> np.ndarray:
        """Bounds of the final scores of what the search goes on with, after the last step."""
        _, scores, ends = self.noted[-1]
        return self.score_bound.unfinished(_best(scores, ~ends), len(self.noted) - 1)

    def verdicts(self) -> Verdicts:
        """Add up what was noted; each array is ``[batch]``."""
        scores, ends, last = self._stack()
        alive = scores > -np.inf
        finishing = alive & ends
        others = alive & ~ends
        finishing[..., self.beam :] = False
        continuing = others & (others.cumsum(axis=2) <= self.beam)
        kept = finishing | continuing
        # Where all candidates offered are alive, there may be more, no better than the worst. If
        # all are kept, then a full list of finished ones: the sentence ends, and drops the others.
        lost = np.maximum(_best(scores, ~kept), scores.min(axis=2))  # [steps, batch]
        step = np.arange(len(scores))[:, None]
        bound = self.score_bound
        bounds = np.maximum(bound.unfinished(lost, step), bound.finished(lost, step))
        at_the_end = last, np.arange(self.batch)
        live_bound = bound.unfinished(_best(scores, continuing), step)[at_the_end]
        mass, live_mass = np.full((2, self.batch), np.nan)
        if self.add_up_mass:
            p = np.exp(scores, dtype=np.float64)
            live = (p * continuing).sum(axis=2)
            masses = self._candidate_masses(live) - (p * kept).sum(axis=2)
            masses = np.where(lost > -np.inf, np.maximum(masses, 0.0), 0.0)
            mass, live_mass = masses.sum(axis=0) + self.cut_mass, live[at_the_end]
        dropped = (lost > -np.inf).any(axis=0) | self.cut
        return Verdicts(dropped, mass, bounds.max(axis=0), live_mass, live_bound)

    def _stack(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores and EOS of all candidates, ``[steps, batch, 2 * beam]``, dead in sentences that
        have ended, and the number of each sentence's last step."""
        shape = (len(self.noted), self.batch, 2 * self.beam)
        scores = np.full(shape, -np.inf, dtype=np.float32)
        ends = np.zeros(shape, dtype=bool)
        last = np.zeros(self.batch, dtype=np.intp)
        for step, (sentences, found, eos) in enumerate(self.noted):
            scores[step, sentences], ends[step, sentences], last[sentences] = found, eos, step
        return scores, ends, last

    def _candidate_masses(self, live: np.ndarray) -> np.ndarray:
        """The probabilities of all candidates of each step, from what was live before it."""
        masses = np.concatenate([np.ones((1, self.batch)), live[:-1]])
        for step, (mass, (sentences, _, _)) in enumerate(zip(self.masses, self.noted, strict=True)):
            if mass is not None:
                masses[step, sentences] = mass
        return masses


def _best(scores: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The best score of some of the candidates of a sentence; -inf if there are none."""
    return np.where(which, scores, np.float32(-np.inf)).max(axis=-1)


def _candidates(lprobs: Tensor, prefix: Tensor) -> np.ndarray:
    """How many continuations have a probability above 0, ``[batch]``."""
    possible = (lprobs[:, : prefix.size(1)] > -math.inf).sum(dim=-1)  # [batch, beam]
    return possible.masked_fill(prefix.isneginf(), 0).sum(dim=-1).numpy(force=True)


def _candidate_mass(lprobs: Tensor, prefix: Tensor) -> np.ndarray:
    """The sum of the probabilities of all continuations, ``[batch]``."""
    # exp(-inf) is slow on a CPU; that of _NEGLIGIBLE is as good as 0
    mass = lprobs[:, : prefix.size(1)].clamp(min=_NEGLIGIBLE).exp_().sum(dim=-1)  # [batch, beam]
    return (mass.double() * prefix.double().exp()).sum(dim=-1).numpy(force=True)
