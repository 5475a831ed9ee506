"""fairseq's search strategies, made safe for probabilities that are exactly zero."""

import math
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.search import (
    BeamSearch,
    DiverseBeamSearch,
    LexicallyConstrainedBeamSearch,
    Sampling,
    Search,
)
from fairseq.token_generation_constraints import ConstraintState
from torch import Tensor


class SparseSearch(Search):
    """A wrapper that makes any of fairseq's search strategies safe for models with exact zeros.

    fairseq's strategies assume that every hypothesis has a continuation. A sparse model gives most
    tokens probability 0 (log-probability -inf); a hypothesis that contains one is *dead*: it can
    never become a translation. This class passes each step to the wrapped strategy and rearranges
    its candidates so that ``SequenceGenerator`` can continue as if none were dead:

    - There are always ``2 * beam`` candidates, active ones first, in the strategy's own order and
      with its exact scores. fairseq takes out the finished ones and continues the first ``beam`` of
      the others: a dead one never takes a slot from an active one, and every slot is filled.
    - If no candidate is active, the best prefix, ended with EOS, is offered as the only active
      candidate, because fairseq ends a sentence only when a hypothesis of it is finished.

    The *best prefix* is the hypothesis with the best score among those that were still active
    before all candidates died. It keeps its score: the EOS that ends it is not from the model and
    adds 0. If no candidate is active at the first step, it is the empty prefix with score 0.

    Args:
        tgt_dict (~fairseq.data.Dictionary): target dictionary
        strategy (~fairseq.search.Search): the strategy that chooses the candidates
        eos (int, optional): index of the symbol that ends a hypothesis (default: *tgt_dict*'s)
        keep_truncated (bool): whether a sample without a possible continuation ends there and
            keeps its score, instead of being dead

    Attributes:
        sentences: batch indices of the active sentences.
        finished: the rows of the active sentences that must end at this step.
        incomplete: those of these rows whose only active candidate is their best prefix.
        truncated: (row, beam) of the samples that end at this step for want of a continuation.
        limits: the maximum number of tokens of each sentence, ``[batch]``; None if
            ``SequenceGenerator`` alone limits the length.
    """

    def __init__(
        self, tgt_dict, strategy: Search, eos: Optional[int] = None, keep_truncated: bool = False
    ):
        super().__init__(tgt_dict)
        self.keep_truncated = keep_truncated
        self.strategy = _with_active_candidates(strategy, tgt_dict)
        self.eos = tgt_dict.eos() if eos is None else eos
        self.supports_constraints = strategy.supports_constraints
        self.stop_on_max_len = strategy.stop_on_max_len
        self.needs_src_lengths = getattr(strategy, "needs_src_lengths", False)
        self.limits: Optional[np.ndarray] = None
        self.begin(0)

    def begin(self, batch: int) -> None:
        """Start with a new batch of sentences."""
        self.sentences = list(range(batch))
        self.finished: set[int] = set()
        self.incomplete: set[int] = set()
        self.truncated: set[tuple[int, int]] = set()
        # The number of candidates that the strategy gave each sentence, and the positions in its
        # order of the candidates that step returned, [batch, 2 * beam].
        self.offered = 0
        self.order: Optional[Tensor] = None

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor,
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take one search step; arguments and result are those of ``fairseq.search.Search.step``.

        Args:
            step: number of tokens that each hypothesis has
            lprobs: log-probabilities, [batch, beam, vocabulary]; may be changed in place
            scores: cumulative scores of the hypotheses so far, [batch, beam, step]; -inf if dead
            prev_output_tokens: the hypotheses, [batch * beam, step + 1]
            original_batch_idxs: ``sample["id"]`` of each sentence, [batch]

        Returns:
            scores, tokens and beams of the candidates, each [batch, 2 * beam]. A dead candidate has
            score -inf and token EOS, which fairseq never takes for a finished hypothesis.
        """
        if step == 0:
            self.begin(len(lprobs))
        if self.limits is not None:
            at_limit = self.limits[self.sentences] <= step
            if at_limit.any():
                rows = torch.from_numpy(at_limit.nonzero()[0]).to(lprobs.device)
                ends = lprobs[rows, :, self.eos]
                lprobs[rows] = -math.inf
                lprobs[rows, :, self.eos] = ends
        candidates = self._candidates(step, lprobs, scores, prev_output_tokens, original_batch_idxs)
        cand_scores, cand_tokens, cand_beams = candidates
        # Copy to the CPU once; as few operations as possible when no candidate is dead.
        dead = cand_scores.numpy(force=True) == -math.inf
        is_eos = cand_tokens.numpy(force=True) == self.eos
        self.finished = set((is_eos | dead).all(axis=1).nonzero()[0].tolist())
        self.incomplete = set(dead[:, 0].nonzero()[0].tolist())
        if dead.any():
            cand_tokens = cand_tokens.masked_fill(cand_scores.isneginf(), self.eos)
        if self.incomplete:
            rows = torch.tensor(sorted(self.incomplete), device=cand_scores.device)
            if step > 0:
                cand_scores[rows, 0], cand_beams[rows, 0] = scores[rows, :, step - 1].max(dim=1)
            else:
                cand_scores[rows, 0], cand_beams[rows, 0] = 0.0, 0
        return cand_scores, cand_tokens, cand_beams

    def _candidates(
        self, step: int, lprobs: Tensor, scores: Tensor, prev_output_tokens, original_batch_idxs
    ) -> tuple[Tensor, ...]:
        """Return the strategy's candidates, ``[batch, 2 * beam]``, the dead ones (-inf) last."""
        batch, beam, _ = lprobs.size()
        if isinstance(self.strategy, DiverseBeamSearch):
            # The strategy uses these as indices into its own table of the first step's batch.
            original_batch_idxs = torch.tensor(self.sentences, device=lprobs.device)
            lprobs = F.pad(lprobs, (0, self.strategy.num_groups), value=-math.inf)
        is_sampling = isinstance(self.strategy, Sampling)
        # Sampling cannot draw from a row of zeros. It draws EOS instead, which is discarded below.
        if is_sampling:
            is_dead_end = lprobs.isneginf().all(dim=2)  # [batch, beam]
            lprobs[:, :, self.eos].masked_fill_(is_dead_end, 0.0)
            # Tokens are drawn from p / sum p. The division is only needed for --sampling-topp,
            # which takes a share of this distribution, and for a sum that would underflow.
            log_sums = lprobs.logsumexp(dim=2)  # [batch, beam]
            if self.strategy.sampling_topp <= 0:
                log_sums = log_sums.masked_fill(log_sums > -50, 0.0)
            lprobs = lprobs - log_sums.unsqueeze(2)
        found, tokens, beams = self.strategy.step(
            step, lprobs, scores, prev_output_tokens, original_batch_idxs
        )
        if is_sampling:  # scores are those of p, not of p / sum p
            found = found + log_sums.gather(1, beams)
        if is_sampling and self.keep_truncated:
            self.truncated = {(row, beam) for row, beam in is_dead_end.nonzero().tolist()}
        elif is_sampling:
            found = found.masked_fill(is_dead_end.gather(1, beams), -math.inf)
        self.offered = found.size(1)
        if self.offered < 2 * beam:
            missing = (0, 2 * beam - self.offered)
            found = F.pad(found, missing, value=-math.inf)
            tokens, beams = F.pad(tokens, missing), F.pad(beams, missing)
        self.order = found.isneginf().byte().sort(dim=1, stable=True).indices
        return tuple(part.gather(1, self.order) for part in (found, tokens, beams))

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        self.strategy.set_src_lengths(src_lengths)

    def init_constraints(self, batch_constraints: Optional[Tensor], beam_size: int) -> None:
        self.strategy.init_constraints(batch_constraints, beam_size)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.sentences = [self.sentences[row] for row in batch_idxs.tolist()]
        if self.order is not None:
            self.order = self.order[batch_idxs]
        self.strategy.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        # The strategy numbers the candidates in its own order; a padded one may have any state.
        chosen = self.order.gather(1, active_hypos).clamp(max=self.offered - 1)
        self.strategy.update_constraints(chosen)


def _with_active_candidates(strategy: Search, tgt_dict) -> Search:
    """Return the strategy, or a replacement, whose dead candidates never displace active ones."""
    if type(strategy) is LexicallyConstrainedBeamSearch:
        return _ActiveConstrainedSearch(tgt_dict, strategy.representation)
    if isinstance(strategy, DiverseBeamSearch):
        strategy.beam = _ActiveGroupSearch(tgt_dict, strategy.num_groups)
    return strategy


class _ActiveGroupSearch(BeamSearch):
    """Beam search for the groups of diverse beam search, one after another in each step.

    A group is penalised for tokens that earlier groups have used. Dead candidates get a token
    beyond the vocabulary, a different one in each group, so that no group is penalised for it.
    """

    def __init__(self, tgt_dict, groups: int):
        super().__init__(tgt_dict)
        self.groups = groups
        self.group = 0

    def step(self, step, lprobs, scores, *args, **kwargs):
        found, tokens, beams = super().step(step, lprobs, scores, *args, **kwargs)
        dead_token = lprobs.size(-1) - self.groups + self.group
        self.group = (self.group + 1) % self.groups
        return found, tokens.masked_fill(found.isneginf(), dead_token), beams


class _PossibleState:
    """A constraint state that offers only constraint tokens of nonzero probability."""

    def __init__(self, state: ConstraintState, log_probs: Tensor):
        self.state = state
        self.tokens = state.tokens
        self.log_probs = log_probs  # [vocabulary]

    def next_tokens(self) -> set[int]:
        return {token for token in self.state.next_tokens() if self.log_probs[token] > -math.inf}

    def advance(self, token: int) -> ConstraintState:
        return self.state.advance(token)


class _ActiveConstrainedSearch(LexicallyConstrainedBeamSearch):
    """Lexically constrained search that gives its places to active candidates only.

    fairseq's class offers constraint tokens whatever their probability, and gives places in turn to
    groups of candidates that meet equally many constraints, so that dead ones displace active ones.
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
        """Take a step as in fairseq, and fill the places behind the active candidates."""
        places = 2 * len(constraint_states)
        is_active = ~scores_buf.isneginf()
        scores, tokens, beams = scores_buf[is_active], indices_buf[is_active], beams_buf[is_active]
        states: list[ConstraintState] = []
        if is_active.any():
            if torch.unique(beams * self.vocab_size + tokens).numel() == 1:
                # fairseq finds duplicates by comparing neighbours, and takes a single candidate for
                # its own duplicate: put a dead one beside it.
                scores = F.pad(scores, (0, 1), value=-math.inf)
                tokens = F.pad(tokens, (0, 1), value=self.pad)
                beams = F.pad(beams, (0, 1))
            possible = [
                _PossibleState(state, lprobs[min(row, len(lprobs) - 1)])
                for row, state in enumerate(constraint_states)
            ]
            scores, tokens, beams, states = super().step_sentence(
                step, sentno, lprobs, possible, beams, tokens, scores
            )
        missing = places - len(scores)
        return (
            F.pad(scores, (0, missing), value=-math.inf),
            F.pad(tokens, (0, missing), value=self.eos),
            F.pad(beams, (0, missing)),
            states[:places] + constraint_states[:1] * missing,
        )
