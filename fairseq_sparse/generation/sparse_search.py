"""A search strategy that knows that a probability can be exactly zero."""

import math
from collections.abc import Callable
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.search import BeamSearch, DiverseBeamSearch, Sampling, Search
from torch import Tensor

from fairseq_sparse.generation.certificate import Certificate, ScoreBound
from fairseq_sparse.generation.live_strategies import keep_to_the_living, room_for_the_dead


class SearchState:
    """What a search knows of its batch. Stock takes the sentences that have ended out of it.

    Args:
        batch: number of sentences.

    Attributes:
        sentences: of the first step's batch, those that are still in work, ``[batch]``.
        targets: the final score that a hypothesis must exceed to be of use, ``[batch]``; None as
            long as all are.
        exhausted: row numbers of the sentences that must end now.
        marked: those of them whose one live candidate is not a hypothesis of the model's.
        certificate: the account of what was dropped, if one is kept.
        offered: how many candidates the strategy gave to each sentence.
        order: where they are in the strategy's own order, ``[batch, 2 * beam]``, if it differs.
    """

    def __init__(self, batch: int):
        self.sentences = np.arange(batch)
        self.targets: Optional[np.ndarray] = None
        self.exhausted: set[int] = set()
        self.marked: set[int] = set()
        self.certificate: Optional[Certificate] = None
        self.offered = 0
        self.order: Optional[Tensor] = None

    def aim(self, row: int, score: float) -> None:
        """Let a sentence end when nothing of it can get a better final score."""
        if self.targets is None:
            self.targets = np.full(len(self.sentences), -np.inf, dtype=np.float32)
        self.targets[row] = score

    def keep(self, batch_idxs: Tensor) -> None:
        """Go on with these rows of the batch only."""
        rows = batch_idxs.numpy(force=True)
        self.sentences = self.sentences[rows]
        if self.targets is not None:
            self.targets = self.targets[rows]
        if self.order is not None:
            self.order = self.order[batch_idxs]


class SparseSearch(Search):
    """Makes any of fairseq's search strategies safe for models with exact zeros.

    Stock search takes it for granted that every hypothesis has a continuation. A sparse model gives
    most tokens probability 0 (log-probability -inf); a hypothesis that contains one is *dead*: it
    can never become a translation. This class hands each step to the wrapped strategy and tidies
    up the candidates that come back, so that ``SequenceGenerator`` goes on as if none had died:

    - There are always ``2 * beam`` candidates, live ones first, in the strategy's own order and
      with its exact scores. Stock takes out the finished ones and continues the first ``beam`` of
      the others: a dead one never takes a slot from a live one, and every slot is filled.
    - Where nothing at all is alive, the best live prefix, ended by EOS, is offered as the one live
      candidate, because stock ends a sentence only when a hypothesis of it is finished.

    The *best live prefix* is the best-scored hypothesis among those that were still alive when the
    last ones died. They are equally long, and nothing in the beam lived longer. It keeps its own
    score: the EOS that ends it is not the model's and adds 0. If even the first step has nothing
    to offer, it is the empty prefix with score 0.

    Beam search also keeps a :class:`Certificate`, once :meth:`certify` was called: an account of
    what it dropped. With it, a sentence ends as soon as no live hypothesis can become better than
    its ``targets`` entry, in the same way as one that has nothing alive.

    What is known of the batch in work is in ``state``, which ``SparseSequenceGenerator`` reads.

    Args:
        tgt_dict (~fairseq.data.Dictionary): target dictionary
        strategy (~fairseq.search.Search): the strategy that chooses the candidates
        eos (int, optional): index of the symbol that ends a hypothesis (default: *tgt_dict*'s)
    """

    def __init__(self, tgt_dict, strategy: Search, eos: Optional[int] = None):
        super().__init__(tgt_dict)
        self.strategy = keep_to_the_living(strategy, tgt_dict)
        self.eos = tgt_dict.eos() if eos is None else eos
        self.supports_constraints = strategy.supports_constraints
        self.stop_on_max_len = strategy.stop_on_max_len
        self.needs_src_lengths = getattr(strategy, "needs_src_lengths", False)
        self.state = SearchState(0)
        self.score_bound: Optional[ScoreBound] = None
        self.unlimited: Callable[[], Optional[Tensor]] = lambda: None

    def certify(
        self,
        score_bound: ScoreBound,
        unlimited: Callable[[], Optional[Tensor]],
        sums_to_one_from: Optional[int] = None,
        add_up_mass: bool = True,
    ) -> None:
        """Keep an account of the next batch, if the strategy is plain beam search.

        Other strategies may hold the same hypothesis twice, or leave candidates out on purpose.

        Args:
            score_bound: what a hypothesis can still become.
            unlimited: gives, at the last step, the log-probabilities before the limit of the length
                was applied, ``[batch * beam, vocabulary]``, else None.
            sums_to_one_from: the step from which on probabilities are known to sum to 1.
            add_up_mass: whether the probability of what is dropped is wanted.
        """
        self.add_up_mass = add_up_mass
        self.sums_to_one_from = math.inf if sums_to_one_from is None else sums_to_one_from
        self.score_bound = score_bound if type(self.strategy) is BeamSearch else None
        self.unlimited = unlimited

    def begin(self, batch: int, beam: int) -> SearchState:
        """Start with a new batch of sentences."""
        self.state = SearchState(batch)
        if self.score_bound is not None:
            self.state.certificate = Certificate(self.score_bound, batch, beam, self.add_up_mass)
        return self.state

    def look_at(
        self, step: int, lprobs: Tensor, prefix: Tensor, unlimited: Optional[Tensor]
    ) -> None:
        """Have the certificate look at a step, before candidates are chosen.

        Args:
            step: number of tokens that each hypothesis has
            lprobs: log-probabilities, [batch, beam, vocabulary]
            prefix: the cumulative scores of the hypotheses, [batch, beam], or at first [batch, 1]
            unlimited: as for :meth:`certify`; changed in place
        """
        if unlimited is not None:
            unlimited = unlimited.view_as(lprobs)
            unlimited[:, :, self.pad] = -math.inf
        known = step >= self.sums_to_one_from
        self.state.certificate.look_at(self.state.sentences, lprobs, prefix, unlimited, known)

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
            score -inf and token EOS, which stock never takes for a finished hypothesis.
        """
        batch, beam, _ = lprobs.size()
        if step == 0:
            self.begin(batch, beam)
        state = self.state
        if state.certificate is not None:
            # At first all beams are the same empty hypothesis.
            prefix = scores[:, :, step - 1] if step > 0 else lprobs.new_zeros(batch, 1)
            self.look_at(step, lprobs, prefix, self.unlimited())

        cand_scores, cand_tokens, cand_beams = self._candidates(
            step, lprobs, scores, prev_output_tokens, original_batch_idxs
        )
        # One look at the few candidates, and few operations where nothing has died.
        found, tokens = cand_scores.numpy(force=True), cand_tokens.numpy(force=True)
        dead, ends = found == -np.inf, tokens == self.eos
        marked, exhausted = dead[:, 0], (ends | dead).all(axis=1)
        if state.certificate is not None:
            state.certificate.note(state.sentences, found, ends)
            if state.targets is not None:
                marked = marked | self.beaten((ends & ~dead)[:, :beam])
                exhausted = exhausted | marked
        state.exhausted, state.marked = _rows(exhausted), set()
        if dead.any():
            cand_tokens = cand_tokens.masked_fill(cand_scores.isneginf(), self.eos)
        if state.exhausted and marked.any():
            state.marked = _rows(marked)
            rows = torch.tensor(sorted(state.marked), device=cand_scores.device)
            cand_scores[rows], cand_tokens[rows] = -math.inf, self.eos
            if step > 0:
                cand_scores[rows, 0], cand_beams[rows, 0] = scores[rows, :, step - 1].max(dim=1)
            else:
                cand_scores[rows, 0], cand_beams[rows, 0] = 0.0, 0
        return cand_scores, cand_tokens, cand_beams

    def beaten(self, finishing: np.ndarray) -> np.ndarray:
        """Which sentences nothing live can improve, and nothing finishes in this step: of the
        candidates that do, *finishing* says which, ``[batch, beam]``."""
        bounds = self.state.certificate.live_bounds()
        going_on = bounds > -np.inf
        return going_on & (bounds <= self.state.targets) & ~finishing.any(axis=1)

    def _candidates(
        self, step: int, lprobs: Tensor, scores: Tensor, prev_output_tokens, original_batch_idxs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The strategy's candidates, ``[batch, 2 * beam]``, the dead ones (-inf) last."""
        batch, beam, _ = lprobs.size()
        plain = type(self.strategy) is BeamSearch
        if plain:
            candidates = self.strategy.step(step, lprobs, scores)
        else:
            if isinstance(self.strategy, DiverseBeamSearch):
                # It indexes a table of its own, of the first step's batch, by these.
                original_batch_idxs = torch.as_tensor(self.state.sentences, device=lprobs.device)
            sampling = isinstance(self.strategy, Sampling)
            if sampling:  # cannot draw from a row of zeros: let it draw EOS, and discard that below
                barren = lprobs.isneginf().all(dim=2)  # [batch, beam]
                lprobs[:, :, self.eos].masked_fill_(barren, 0.0)
            lprobs = room_for_the_dead(self.strategy, lprobs)
            cand_scores, cand_tokens, cand_beams = self.strategy.step(
                step, lprobs, scores, prev_output_tokens, original_batch_idxs
            )
            if sampling:
                cand_scores = cand_scores.masked_fill(barren.gather(1, cand_beams), -math.inf)
            candidates = cand_scores, cand_tokens, cand_beams
        self.state.offered = candidates[0].size(1)
        missing = 2 * beam - self.state.offered
        if missing > 0:
            candidates = tuple(
                F.pad(part, (0, missing), value=filling)
                for part, filling in zip(candidates, (-math.inf, 0, 0), strict=True)
            )
        if not plain:  # whose best come first, and so the dead last
            order = candidates[0].isneginf().byte().sort(dim=1, stable=True).indices
            candidates = tuple(part.gather(1, order) for part in candidates)
            self.state.order = order
        return candidates

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        self.strategy.set_src_lengths(src_lengths)

    def init_constraints(self, batch_constraints: Optional[Tensor], beam_size: int) -> None:
        self.strategy.init_constraints(batch_constraints, beam_size)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.state.keep(batch_idxs)
        self.strategy.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        if self.state.order is None:
            return
        # The strategy numbers the candidates in its own order; a filled-up one may take any state.
        chosen = self.state.order.gather(1, active_hypos).clamp(max=self.state.offered - 1)
        self.strategy.update_constraints(chosen)


def _rows(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(mask).tolist())
