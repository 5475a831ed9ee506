"""What a beam search can prove about its result, from what it threw away."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
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

    def finished(self, scores: Tensor, step: int) -> Tensor:
        """The final scores of hypotheses that end after *step* tokens."""
        if self.len_penalty is None:
            return scores
        return scores / (step + 1) ** self.len_penalty

    def unfinished(self, scores: Tensor, step: int) -> Tensor:
        """Upper bounds of the final scores of hypotheses that have *step* + 1 tokens."""
        if not self.holds:
            return torch.where(scores.isneginf(), scores, math.inf)
        last = self.max_len
        if self.len_penalty is not None and self.len_penalty < 0:
            last = min(step + 1, last)
        return self.finished((scores + ROUNDING).clamp(max=0.0), last)


class Certificate:
    """Keeps account of the hypotheses that a beam search drops, for each sentence of a batch.

    A hypothesis is dropped if its probability is above 0 and the search neither finishes it nor
    goes on with it. Whether there are any is *counted*, candidate by candidate, so that no rounding
    can change the answer; their probability is a sum in floating point, and tells how much it was.

    All tensors are ``[batch]``; sentences that have ended are taken out by :meth:`keep`.

    Attributes:
        dropped: whether anything was dropped.
        mass: sum of the probabilities of what was dropped (of prefixes, all their continuations);
            NaN unless it is to be added up.
        bound: the best final score that anything dropped could have had; -inf if nothing was.
        live_mass, live_bound: the same of the hypotheses that the search goes on with.
    """

    def __init__(
        self, score_bound: ScoreBound, batch: int, device: torch.device, add_up_mass: bool = True
    ):
        self.score_bound = score_bound
        self.add_up_mass = add_up_mass
        self.dropped = torch.zeros(batch, dtype=torch.bool, device=device)
        self.mass = torch.zeros(batch, dtype=torch.float64, device=device)
        self.bound = torch.full((batch,), -math.inf, device=device)

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
            self.candidate_mass = torch.full_like(self.mass, math.nan)
        elif sums_to_one and unlimited is None:
            self.candidate_mass = prefix.double().exp_().sum(dim=-1)
        else:
            self.candidate_mass = _candidate_mass(lprobs, prefix)
        if unlimited is not None:
            cut = _candidates(unlimited, prefix) > _candidates(lprobs, prefix)
            mass = _candidate_mass(unlimited, prefix) - self.candidate_mass
            self.dropped |= cut
            self.mass += mass.clamp(min=0.0).masked_fill(~cut, 0.0)

    def settle(self, step: int, scores: Tensor, finishing: Tensor, continuing: Tensor) -> None:
        """Count what a step dropped.

        Args:
            step: as before.
            scores: of the candidates that the search chose from, ``[batch, 2 * beam]``, best first,
                -inf if dead.
            finishing: which of them become finished hypotheses.
            continuing: which of them the search goes on with.
        """
        kept = finishing | continuing
        offered = scores > -math.inf
        # Where all candidates offered are alive, there may be more, no better than the worst. If
        # all are kept, then a full list of finished ones: the sentence ends, and drops the others.
        full = offered.all(dim=1)
        lost = scores.masked_fill(kept, -math.inf)  # -inf also if it is dead
        best_lost = lost.amax(dim=1)
        best_lost = torch.where(full, torch.maximum(best_lost, scores[:, -1]), best_lost)
        dropped_now = best_lost > -math.inf
        self.dropped |= dropped_now
        masses = scores.double().exp_()
        mass = self.candidate_mass - (masses * kept).sum(dim=1)
        self.mass += mass.clamp(min=0.0).masked_fill(~dropped_now, 0.0)
        bound = self.score_bound
        end = torch.maximum(bound.unfinished(best_lost, step), bound.finished(best_lost, step))
        self.bound = torch.maximum(self.bound, end)
        self.live_mass = (masses * continuing).sum(dim=1)
        best_live = scores.masked_fill(~continuing, -math.inf).amax(dim=1)
        self.live_bound = bound.unfinished(best_live, step)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the batch only."""
        for name in ("dropped", "mass", "bound", "live_mass", "live_bound"):
            setattr(self, name, getattr(self, name)[rows])


def _candidates(lprobs: Tensor, prefix: Tensor) -> Tensor:
    """How many continuations have a probability above 0, ``[batch]``."""
    possible = (lprobs[:, : prefix.size(1)] > -math.inf).sum(dim=-1)  # [batch, beam]
    return possible.masked_fill(prefix.isneginf(), 0).sum(dim=-1)


def _candidate_mass(lprobs: Tensor, prefix: Tensor) -> Tensor:
    """The sum of the probabilities of all continuations, ``[batch]``."""
    # exp(-inf) is slow on a CPU; that of _NEGLIGIBLE is as good as 0
    mass = lprobs[:, : prefix.size(1)].clamp(min=_NEGLIGIBLE).exp_().sum(dim=-1)  # [batch, beam]
    return (mass.double() * prefix.double().exp()).sum(dim=-1)
