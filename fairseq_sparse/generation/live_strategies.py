"""fairseq's search strategies, where dead candidates would take the places of live ones."""

import math

import torch
import torch.nn.functional as F
from fairseq.search import (
    BeamSearch,
    DiverseBeamSearch,
    LexicallyConstrainedBeamSearch,
    Search,
)
from fairseq.token_generation_constraints import ConstraintState
from torch import Tensor


def keep_to_the_living(strategy: Search, tgt_dict) -> Search:
    """The strategy, or one in its place that leaves hypotheses of probability 0 out."""
    if type(strategy) is LexicallyConstrainedBeamSearch:
        return LiveConstrainedSearch(tgt_dict, strategy.representation)
    if isinstance(strategy, DiverseBeamSearch):
        strategy.beam = _LiveGroupSearch(tgt_dict, strategy.num_groups)
    return strategy


def room_for_the_dead(strategy: Search, lprobs: Tensor) -> Tensor:
    """The log-probabilities, with tokens of probability 0 that dead candidates can have."""
    if isinstance(strategy, DiverseBeamSearch):
        return F.pad(lprobs, (0, strategy.num_groups), value=-math.inf)
    return lprobs


class _LiveGroupSearch(BeamSearch):
    """Beam search for the groups of diverse beam search, one after another in each step.

    A group is penalised for tokens that the groups before it have used. Those of dead candidates
    are beyond the vocabulary, and each group has its own.
    """

    def __init__(self, tgt_dict, groups: int):
        super().__init__(tgt_dict)
        self.groups = groups
        self.group = 0

    def step(self, step, lprobs, scores, *args, **kwargs):
        found, tokens, beams = super().step(step, lprobs, scores, *args, **kwargs)
        nobody = lprobs.size(-1) - self.groups + self.group
        self.group = (self.group + 1) % self.groups
        return found, tokens.masked_fill(found.isneginf(), nobody), beams


class _LiveState:
    """A constraint state that offers only constraint words of nonzero probability."""

    def __init__(self, state: ConstraintState, log_probs: Tensor):
        self.state = state
        self.tokens = state.tokens
        self.log_probs = log_probs  # [vocabulary]

    def next_tokens(self) -> set[int]:
        return {token for token in self.state.next_tokens() if self.log_probs[token] > -math.inf}

    def advance(self, token: int) -> ConstraintState:
        return self.state.advance(token)


class LiveConstrainedSearch(LexicallyConstrainedBeamSearch):
    """Lexically constrained search that deals its places to live candidates only.

    Stock offers constraint words whatever their probability, and deals places by turns among the
    candidates that have met equally many constraints, so that dead ones displace live ones.
    """

    def init_constraints(self, batch_constraints, beam_size: int) -> None:
        if batch_constraints is None:  # --constraints, but no sentence has any
            self.constraint_states = []
        else:
            super().init_constraints(batch_constraints, beam_size)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        if self.constraint_states:
            super().prune_sentences(batch_idxs)

    def step_sentence(
        self, step, sentno, lprobs, constraint_states, beams_buf, indices_buf, scores_buf
    ):
        """Arguments and result are stock's; behind the live candidates come dead ones."""
        places = 2 * len(constraint_states)
        live = ~scores_buf.isneginf()
        scores, tokens, beams = scores_buf[live], indices_buf[live], beams_buf[live]
        states: list[ConstraintState] = []
        if live.any():
            if torch.unique(beams * self.vocab_size + tokens).numel() == 1:
                # Stock compares each candidate with its neighbour to find what it has twice, and so
                # takes a single one for its own duplicate: a dead one beside it is different.
                scores = F.pad(scores, (0, 1), value=-math.inf)
                tokens = F.pad(tokens, (0, 1), value=self.pad)
                beams = F.pad(beams, (0, 1))
            scores, tokens, beams, states = super().step_sentence(
                step,
                sentno,
                lprobs,
                [
                    _LiveState(state, lprobs[min(row, len(lprobs) - 1)])
                    for row, state in enumerate(constraint_states)
                ],
                beams,
                tokens,
                scores,
            )
        missing = places - len(scores)
        return (
            F.pad(scores, (0, missing), value=-math.inf),
            F.pad(tokens, (0, missing), value=self.eos),
            F.pad(beams, (0, missing)),
            states[:places] + constraint_states[:1] * missing,
        )
