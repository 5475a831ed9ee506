"""What a beam search can prove about its result, from what it threw away."""

import math
from dataclasses import dataclass
from typing import Optional

import numpy as np
from torch import Tensor

# A log-probability that should be at most 0 can be greater by rounding, once for each token.
ROUNDING = 1e-5
_NEGLIGIBLE = -80.0


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

    def finished(self, scores: np.ndarray, step: int) -> np.ndarray:
        """The final scores of hypotheses that end after *step* tokens."""
        if self.len_penalty is None:
            return scores
        return scores / (step + 1) ** self.len_penalty

    def unfinished(self, scores: np.ndarray, step: int) -> np.ndarray:
        """Upper bounds of the final scores of hypotheses that have *step* + 1 tokens."""
        if not self.holds:
            return np.where(np.isneginf(scores), scores, np.float32(np.inf))
        last = self.max_len
        if self.len_penalty is not None and self.len_penalty < 0:
            last = min(step + 1, last)
        return self.finished(np.minimum(scores + ROUNDING, 0.0), last)


class Certificate:
    """Keeps account of the hypotheses that a beam search drops, for each sentence of a batch.

    A hypothesis is dropped if its probability is above 0 and the search neither finishes it nor
    goes on with it. Whether there are any is *counted*, candidate by candidate, so that no rounding
    can change the answer; their probability is a sum in floating point, and tells how much it was.

    All arrays are ``[batch]``; sentences that have ended are taken out by :meth:`keep`. They are
    NumPy's: these are many small sums, which would cost more than the search itself on a GPU.

    Attributes:
        dropped: whether anything was dropped.
        mass: sum of the probabilities of what was dropped (of prefixes, all their continuations);
            NaN unless it is to be added up.
        bound: the best final score that anything dropped could have had; -inf if nothing was.
        live_mass, live_bound: the same of the hypotheses that the search goes on with.
    """

    def __init__(self, score_bound: ScoreBound, batch: int, add_up_mass: bool = True):
        self.score_bound = score_bound
        self.add_up_mass = add_up_mass
        self.dropped = np.zeros(batch, dtype=bool)
        self.mass = np.full(batch, 0.0 if add_up_mass else np.nan)
        self.bound = np.full(batch, -np.inf, dtype=np.float32)
        self.live_mass = np.ones(batch)  # of the empty hypothesis
        self.live_bound = np.full(batch, np.inf, dtype=np.float32)

    def look_at(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor,
        unlimited: Optional[Tensor] = None,
        sums_to_one: bool = False,
    ) -> None:
        """Take note of all candidates of a step, before any is chosen.

        Args:
            step: number of tokens that each hypothesis has.
            lprobs: log-probabilities of their continuations, ``[batch, beam, vocabulary]``.
            scores: their cumulative scores, ``[batch, beam, step]``.
            unlimited: at the last step, ``lprobs`` before the limit of the length left EOS only.
                What it cuts off is dropped, but has no bound: it is beyond the limit.
            sums_to_one: whether the probabilities after each hypothesis are known to sum to 1; it
                saves adding them up.
        """
        if step == 0:  # all beams are the same empty hypothesis
            prefix = lprobs.new_zeros(len(lprobs), 1)
        else:
            prefix = scores[:, :, step - 1]
        if not self.add_up_mass:
            pass
        elif sums_to_one and unlimited is None:
            self.candidate_mass = self.live_mass
        else:
            self.candidate_mass = _candidate_mass(lprobs, prefix)
        if unlimited is not None:
            cut = _candidates(unlimited, prefix) > _candidates(lprobs, prefix)
            self.dropped |= cut
            if self.add_up_mass:
                mass = _candidate_mass(unlimited, prefix) - self.candidate_mass
                self.mass += np.where(cut, np.maximum(mass, 0.0), 0.0)

    def settle(
        self, step: int, scores: np.ndarray, finishing: np.ndarray, continuing: np.ndarray
    ) -> None:
        """Count what a step dropped.

        Args:
            step: as before.
            scores: of the candidates that the search chose from, ``[batch, 2 * beam]``, best first,
                -inf if dead.
            finishing: which of them become finished hypotheses.
            continuing: which of them the search goes on with.
        """
        kept = finishing | continuing
        # Where all candidates offered are alive, there may be more, no better than the worst. If
        # all are kept, then a full list of finished ones: the sentence ends, and drops the others.
        best_lost = np.where(kept, -np.inf, scores).max(axis=1)  # -inf also if it is dead
        best_lost = np.maximum(best_lost, scores.min(axis=1))
        dropped_now = best_lost > -np.inf
        self.dropped |= dropped_now
        if self.add_up_mass:
            masses = np.exp(scores, dtype=np.float64)
            mass = self.candidate_mass - (masses * kept).sum(axis=1)
            self.mass += np.where(dropped_now, np.maximum(mass, 0.0), 0.0)
            self.live_mass = (masses * continuing).sum(axis=1)
        bound = self.score_bound
        end = np.maximum(bound.unfinished(best_lost, step), bound.finished(best_lost, step))
        self.bound = np.maximum(self.bound, end)
        best_live = np.where(continuing, scores, -np.inf).max(axis=1)
        self.live_bound = bound.unfinished(best_live, step)

    def keep(self, rows: np.ndarray) -> None:
        """Go on with these rows of the batch only."""
        for name in ("dropped", "mass", "bound", "live_mass", "live_bound"):
            setattr(self, name, getattr(self, name)[rows])


def _candidates(lprobs: Tensor, prefix: Tensor) -> np.ndarray:
    """How many continuations have a probability above 0, ``[batch]``."""
    possible = (lprobs[:, : prefix.size(1)] > -math.inf).sum(dim=-1)  # [batch, beam]
    return possible.masked_fill(prefix.isneginf(), 0).sum(dim=-1).numpy(force=True)


def _candidate_mass(lprobs: Tensor, prefix: Tensor) -> np.ndarray:
    """The sum of the probabilities of all continuations, ``[batch]``."""
    # exp(-inf) is slow on a CPU; that of _NEGLIGIBLE is as good as 0
    mass = lprobs[:, : prefix.size(1)].clamp(min=_NEGLIGIBLE).exp_().sum(dim=-1)  # [batch, beam]
    return (mass.double() * prefix.double().exp()).sum(dim=-1).numpy(force=True)
