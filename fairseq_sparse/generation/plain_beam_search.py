"""Plain beam search whose bookkeeping takes less time than a small model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_sparse.generation.sparse_ensemble import HeldRows, spread

if TYPE_CHECKING:
    from fairseq_sparse.generation.sparse_sequence_generator import SparseSequenceGenerator


class Candidates(NamedTuple):
    """The best continuations of each sentence, ``[batch, 2 * beam]``, the best first."""

    scores: np.ndarray  # cumulative; -inf if dead
    words: np.ndarray
    slots: np.ndarray  # which of the sentence's hypotheses is continued

    def take(self, rows: np.ndarray, columns: np.ndarray) -> Candidates:
        """Those of some rows, ``[rows, columns]``."""
        return Candidates(*(np.take_along_axis(part[rows], columns, axis=1) for part in self))


class Ended(NamedTuple):
    """A hypothesis that has ended."""

    tokens: np.ndarray  # with EOS
    cumulative: np.ndarray  # the score after each token
    score: float  # final
    attention: Optional[Tensor]  # [source, tokens]
    incomplete: bool = False


class PlainBeamSearch:
    """Beam search without constraints, prefixes or penalties that look at more than a token.

    Its hypotheses are those that ``SequenceGenerator`` and ``SparseSearch`` find together, step by
    step, certificates included. Stock's loop makes dozens of small tensors at each step, which for
    a small model takes as long as the model; here they are rows of NumPy arrays, and the models are
    run for live hypotheses only.

    Args:
        generator: what limits and penalties are read from, and whose ``search`` keeps the account
            of the batch.
        net_input: of the batch.
        max_len: number of tokens of the longest hypothesis, EOS not counted.
        bos_token: the first token of the decoder's input (default: EOS, as everywhere in fairseq).

    Attributes:
        ended: for each sentence the last step, and the scores of those of its ends that the list of
            hypotheses had no room for.
    """

    def __init__(
        self,
        generator: SparseSequenceGenerator,
        net_input: dict,
        max_len: int,
        bos_token: Optional[int] = None,
    ):
        self.generator = generator
        self.model = generator.model
        self.beam = generator.beam_size
        self.max_len = max_len
        source = net_input["src_tokens"]
        self.device, batch = source.device, len(source)
        self.state = generator.search.begin(batch, self.beam)
        everyone = torch.arange(batch, device=self.device)
        # Which row a hypothesis has is in self.rows.
        self.held = HeldRows(self.model.forward_encoder(net_input), everyone, everyone)
        self.incremental_states: list[dict] = [{} for _ in range(self.model.models_size)]
        # The hypotheses of all sentences that go on, one after another: at first one of each, then
        # as many as the beam; with a cumulative score of -inf if dead.
        self.tokens = np.full((batch, max_len + 2), generator.pad)
        self.tokens[:, 0] = generator.eos if bos_token is None else bos_token
        self.cumulative = np.zeros((batch, max_len + 1), dtype=np.float32)
        self.prefix = np.zeros((batch, 1), dtype=np.float32)  # [batch, hypotheses], the last of it
        self.rows = np.arange(batch)  # of the models' states
        self.attention: Optional[Tensor] = None  # [hypotheses, source, tokens]
        # What the sentences have come to.
        self.found: list[list[Ended]] = [[] for _ in range(batch)]
        self.ended: dict[int, tuple[int, np.ndarray]] = {}

    def run(self) -> list[list[dict]]:
        """Decode the batch.

        Returns:
            the hypotheses of each sentence, best first, as ``SequenceGenerator`` returns them
        """
        for step in range(self.max_len + 1):
            candidates = self._candidates(step)
            alive = candidates.scores > -np.inf
            is_eos = candidates.words == self.generator.eos
            self.state.certificate.note(self.state.sentences, candidates.scores, is_eos)
            done = self._end(step, candidates, alive, is_eos)
            if done.all():
                break
            self._go_on(step, candidates, alive, is_eos, np.flatnonzero(~done))
        return self._hypotheses()

    def _candidates(self, step: int) -> Candidates:
        log_probs = self._log_probs(step)  # [hypotheses, vocabulary]
        log_probs.nan_to_num_(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        unlimited = self._limit(step, log_probs)
        vocabulary = log_probs.size(1)
        log_probs = log_probs.view(*self.prefix.shape, vocabulary)
        prefix = torch.from_numpy(self.prefix).to(self.device)
        self.generator.search.look_at(step, log_probs, prefix, unlimited)
        scores = log_probs.add_(prefix.unsqueeze(2)).flatten(1)
        wanted = 2 * self.beam
        best, places = scores.topk(min(wanted, scores.size(1) - 1), dim=1)
        if best.size(1) < wanted:
            missing = (0, wanted - best.size(1))
            best, places = F.pad(best, missing, value=-math.inf), F.pad(places, missing)
        found = places.numpy(force=True)
        return Candidates(best.numpy(force=True), found % vocabulary, found // vocabulary)

    def _log_probs(self, step: int) -> Tensor:
        """Those after each hypothesis, ``[hypotheses, vocabulary]``, -inf after dead ones."""
        count = len(self.rows)
        live = np.flatnonzero(self.prefix > -np.inf)
        rows, number = self.rows[live], np.arange(len(live))
        if len(rows) != len(self.held.sentence) or (rows != number).any():
            rows, numbers = (torch.from_numpy(x).to(self.device) for x in (rows, number))
            self.model.hold(self.held, rows, numbers, self.incremental_states)
        self.rows[live] = number
        tokens = torch.from_numpy(self.tokens[live, : step + 1]).to(self.device)
        found, attention = self.model.forward_live(
            tokens, self.held.encoder_outs, self.incremental_states, self.generator.temperature
        )
        if len(live) < count:
            which = torch.from_numpy(live).to(self.device)
            found = spread(found, which, count, -math.inf)
            attention = None if attention is None else spread(attention, which, count, 0.0)
        if attention is not None:
            before = [] if self.attention is None else [self.attention]
            self.attention = torch.cat([*before, attention.float().unsqueeze(2)], dim=2)
        return found

    def _limit(self, step: int, log_probs: Tensor) -> Optional[Tensor]:
        """Take out what may not come next; gives what was there, where only EOS may."""
        generator, unlimited = self.generator, None
        if step == self.max_len:
            unlimited = log_probs.clone()
            log_probs[:, : generator.eos] = -math.inf
            log_probs[:, generator.eos + 1 :] = -math.inf
        log_probs[:, generator.pad] = -math.inf
        if generator.unk_penalty != 0:
            log_probs[:, generator.unk] -= generator.unk_penalty
        if step < generator.min_len:
            log_probs[:, generator.eos] = -math.inf
        return unlimited

    def _end(
        self, step: int, candidates: Candidates, alive: np.ndarray, is_eos: np.ndarray
    ) -> np.ndarray:
        """Write down the hypotheses that end; gives which of the sentences do."""
        finishing = alive & is_eos
        finishing[:, self.beam :] = False
        # Nothing is alive, or nothing of use.
        given_up = ~alive[:, 0]
        if self.state.targets is not None:
            given_up = given_up | self.generator.search.beaten(finishing)
        done = given_up | (is_eos | ~alive).all(axis=1)
        if step == self.max_len:
            done[:] = True
        for row in np.flatnonzero(finishing.any(axis=1)):
            done[row] |= self._finish(step, row, candidates, np.flatnonzero(finishing[row]))
        for row in np.flatnonzero(done):
            sentence = int(self.state.sentences[row])
            if not self.found[sentence]:
                self._cut_off(step, row)
            self.ended.setdefault(sentence, (step, candidates.scores[row, :0]))
        return done

    def _finish(self, step: int, row: int, candidates: Candidates, columns: np.ndarray) -> bool:
        """Write down the ends among a sentence's candidates; says whether it needs no more."""
        sentence = int(self.state.sentences[row])
        found = self.found[sentence]
        scores = candidates.scores[row, columns]
        finals = self.state.certificate.score_bound.finished(scores, step)
        slots = candidates.slots[row, columns]
        room = self.beam - len(found)
        for slot, score, final in zip(slots[:room], scores[:room], finals[:room], strict=True):
            found.append(self._ended(step, row, slot, score, float(final)))
        if len(found) == self.beam:
            self.ended[sentence] = step, scores[room:]
            return True
        if len(found) < self.generator.nbest:
            return False
        target = sorted((each.score for each in found), reverse=True)[self.generator.nbest - 1]
        self.state.aim(row, target)
        return bool(self.state.certificate.live_bounds()[row] <= target)

    def _cut_off(self, step: int, row: int) -> None:
        """End the best live prefix of a sentence by an EOS without a score of its own."""
        slot = int(self.prefix[row].argmax())
        score = self.prefix[row, slot]
        final = float(self.state.certificate.score_bound.finished(score, step))
        ended = self._ended(step, row, slot, score, final)
        sentence = int(self.state.sentences[row])
        self.found[sentence].append(ended._replace(incomplete=True))

    def _ended(self, step: int, row: int, slot: int, score: np.float32, final: float) -> Ended:
        """A hypothesis of a sentence with an EOS of this step behind it."""
        number = row * self.prefix.shape[1] + slot
        tokens = np.append(self.tokens[number, 1 : step + 1], self.generator.eos)
        cumulative = np.append(self.cumulative[number, :step], score)
        attention = self.attention
        if attention is not None:
            attention = attention[number].clone()
        return Ended(tokens, cumulative, final, attention)

    def _go_on(
        self,
        step: int,
        candidates: Candidates,
        alive: np.ndarray,
        is_eos: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        """Continue these sentences with the first candidates that do not end."""
        columns = (alive & is_eos)[rows].argsort(axis=1, kind="stable")[:, : self.beam]
        chosen = candidates.take(rows, columns)
        parents = (rows[:, None] * self.prefix.shape[1] + chosen.slots).ravel()
        self.tokens = self.tokens[parents]
        self.cumulative = self.cumulative[parents].astype(chosen.scores.dtype, copy=False)
        self.rows = self.rows[parents]
        self.tokens[:, step + 1] = chosen.words.ravel()
        self.cumulative[:, step] = chosen.scores.ravel()
        self.prefix = chosen.scores
        if self.attention is not None:
            self.attention = self.attention[torch.from_numpy(parents).to(self.device)]
        if len(rows) < len(candidates.scores):
            self.state.keep(torch.from_numpy(rows))

    def _hypotheses(self) -> list[list[dict]]:
        """What was written down, on the models' device."""
        for hypotheses in self.found:
            hypotheses.sort(key=lambda each: -each.score)
        every = [each for hypotheses in self.found for each in hypotheses]
        size = self.max_len + 1
        tokens = np.full((len(every), size), self.generator.pad)
        dtype = every[0].cumulative.dtype
        cumulative = np.zeros((len(every), size), dtype)
        for row, each in enumerate(every):
            tokens[row, : len(each.tokens)] = each.tokens
            cumulative[row, : len(each.tokens)] = each.cumulative
        positional = np.diff(cumulative, axis=1, prepend=dtype.type(0))
        finals = np.array([each.score for each in every], dtype)
        tensors = (torch.from_numpy(x).to(self.device) for x in (tokens, finals, positional))
        rows = iter(zip(every, *tensors, strict=True))
        return [[_as_stock(*next(rows)) for _ in hypotheses] for hypotheses in self.found]


def _as_stock(ended: Ended, tokens: Tensor, score: Tensor, positional: Tensor) -> dict:
    """A hypothesis as ``SequenceGenerator`` returns it."""
    length = len(ended.tokens)
    hypothesis = {
        "tokens": tokens[:length],
        "score": score,
        "attention": torch.empty(0) if ended.attention is None else ended.attention,
        "alignment": torch.empty(0),
        "positional_scores": positional[:length],
    }
    if ended.incomplete:
        hypothesis["incomplete"] = True
    return hypothesis
