"""A search strategy that knows that a probability can be exactly zero."""

import math
from collections.abc import Callable
from typing import Optional

import torch
import torch.nn.functional as F
from fairseq.search import BeamSearch, DiverseBeamSearch, Sampling, Search
from torch import Tensor

from fairseq_sparse.generation.certificate import Certificate, ScoreBound
from fairseq_sparse.generation.live_strategies import keep_to_the_living, room_for_the_dead


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

    ``exhausted`` names the sentences that must end now; ``marked``, a part of them, those whose one
    live candidate is not a hypothesis of the model's. Both hold row numbers of the current batch
    (stock takes ended sentences out of it) and are read by ``SparseSequenceGenerator``.

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
        self.order: Optional[Tensor] = None
        self.exhausted: set[int] = set()
        self.marked: set[int] = set()
        self.score_bound: Optional[ScoreBound] = None
        self.certificate: Optional[Certificate] = None
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
            self.sentences = torch.arange(batch, device=lprobs.device)
            self.targets = lprobs.new_full((batch,), -math.inf)
            self.certificate = None
            if self.score_bound is not None:
                self.certificate = Certificate(
                    self.score_bound, batch, lprobs.device, self.add_up_mass
                )
        if isinstance(self.strategy, DiverseBeamSearch):
            # It indexes a table of its own, of the first step's batch, by these.
            original_batch_idxs = self.sentences

        if self.certificate is not None:
            unlimited = self.unlimited()
            if unlimited is not None:
                unlimited = unlimited.view_as(lprobs)
                unlimited[:, :, self.pad] = -math.inf
            known = step >= self.sums_to_one_from
            self.certificate.look_at(step, lprobs, scores, unlimited, sums_to_one=known)
        sampling = isinstance(self.strategy, Sampling)
        if sampling:  # cannot draw from a row of zeros: let it draw EOS, and discard that below
            barren = lprobs.isneginf().all(dim=2)  # [batch, beam]
            lprobs[:, :, self.eos].masked_fill_(barren, 0.0)
        cand_scores, cand_tokens, cand_beams = self.strategy.step(
            step,
            room_for_the_dead(self.strategy, lprobs),
            scores,
            prev_output_tokens,
            original_batch_idxs,
        )
        if sampling:
            cand_scores = cand_scores.masked_fill(barren.gather(1, cand_beams), -math.inf)

        self.offered = cand_scores.size(1)
        missing = 2 * beam - self.offered
        if missing > 0:
            cand_scores = F.pad(cand_scores, (0, missing), value=-math.inf)
            cand_tokens, cand_beams = (F.pad(x, (0, missing)) for x in (cand_tokens, cand_beams))
        if type(self.strategy) is not BeamSearch:  # whose best come first, and so the dead last
            self.order = cand_scores.isneginf().byte().sort(dim=1, stable=True).indices
            cand_scores, cand_tokens, cand_beams = (
                x.gather(1, self.order) for x in (cand_scores, cand_tokens, cand_beams)
            )

        marked = cand_scores[:, 0].isneginf()
        if self.certificate is not None:
            marked = marked | self._settle(step, cand_scores, cand_tokens, beam)
        if step > 0:
            prefix_score, prefix_beam = scores[:, :, step - 1].max(dim=1)
        else:
            prefix_score, prefix_beam = cand_scores.new_zeros(batch), cand_beams.new_zeros(batch)
        cand_scores = cand_scores.masked_fill(marked.unsqueeze(1), -math.inf)
        cand_tokens = cand_tokens.masked_fill(cand_scores.isneginf(), self.eos)
        cand_scores[:, 0] = torch.where(marked, prefix_score, cand_scores[:, 0])
        cand_beams[:, 0] = torch.where(marked, prefix_beam, cand_beams[:, 0])

        self.exhausted = _rows(cand_tokens.eq(self.eos).all(dim=1))
        self.marked = _rows(marked)
        return cand_scores, cand_tokens, cand_beams

    def _settle(self, step: int, scores: Tensor, tokens: Tensor, beam: int) -> Tensor:
        """Enter a step's candidates into the account; say which sentences nothing can improve.

        Stock finishes the EOS among the first *beam* candidates and goes on with the first *beam*
        of the others.
        """
        live = ~scores.isneginf()
        ends = live & tokens.eq(self.eos)
        finishing = ends.clone()
        finishing[:, beam:] = False
        others = live & ~ends
        continuing = others & (others.cumsum(dim=1) <= beam)
        self.certificate.settle(step, scores, finishing, continuing)
        beaten = self.certificate.live_bound <= self.targets
        return beaten & continuing.any(dim=1) & ~finishing.any(dim=1)

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        self.strategy.set_src_lengths(src_lengths)

    def init_constraints(self, batch_constraints: Optional[Tensor], beam_size: int) -> None:
        self.strategy.init_constraints(batch_constraints, beam_size)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.sentences = self.sentences[batch_idxs]
        self.targets = self.targets[batch_idxs]
        if self.order is not None:
            self.order = self.order[batch_idxs]
        if self.certificate is not None:
            self.certificate.keep(batch_idxs)
        self.strategy.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        if self.order is None:
            return
        # The strategy numbers the candidates in its own order; a filled-up one may take any state.
        chosen = self.order.gather(1, active_hypos).clamp(max=self.offered - 1)
        self.strategy.update_constraints(chosen)


def _rows(mask: Tensor) -> set[int]:
    return set(mask.nonzero().flatten().tolist())
