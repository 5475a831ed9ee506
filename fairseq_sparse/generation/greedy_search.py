"""Beam search with a beam of one, where there are no hypotheses to order, copy or wait for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from fairseq_sparse.generation.sparse_sequence_generator import SparseSequenceGenerator


class GreedySearch:
    """Takes the most probable token at each step, for the sentences that still go on.

    The result is that of the step-by-step search with ``beam`` 1, certificates included; only the
    time for its bookkeeping is saved, which for a small model is as long as the model's own.

    Args:
        generator: what the limits and penalties are read from, and whose ``search`` keeps the
            account of the batch.
        net_input: of the batch.
        max_len: number of tokens of the longest hypothesis, EOS not counted.
        bos_token: the first token of the decoder's input (default: EOS, as everywhere in fairseq).
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
        self.max_len = max_len
        source = net_input["src_tokens"]
        self.state = generator.search.begin(len(source), beam=1)
        self.encoder_outs = self.model.forward_encoder(net_input)
        self.incremental_states: list[dict] = [{} for _ in range(self.model.models_size)]
        # The decoder's input of the sentences that go on, and the log-probabilities of the same.
        self.tokens = source.new_full((len(source), max_len + 2), generator.pad)
        self.tokens[:, 0] = generator.eos if bos_token is None else bos_token
        self.scores = torch.zeros(len(source), 1, device=source.device)
        # What all sentences of the batch have come to.
        self.chosen = np.full((len(source), max_len + 1), generator.eos)
        self.cumulative = np.zeros((len(source), max_len + 1), dtype=np.float32)
        self.attention: list[tuple[np.ndarray, Tensor]] = []
        self.last = np.zeros(len(source), dtype=np.intp)
        self.incomplete = np.zeros(len(source), dtype=bool)

    def run(self) -> list[list[dict]]:
        """Decode the batch.

        Returns:
            the hypothesis of each sentence, as ``SequenceGenerator`` returns them
        """
        for step in range(self.max_len + 1):
            scores, words = self._candidates(step)
            going_on = self._note(step, scores.numpy(force=True), words.numpy(force=True))
            if not self._go_on(step, scores, words, np.flatnonzero(going_on)):
                break
        return self._hypotheses()

    def _candidates(self, step: int) -> tuple[Tensor, Tensor]:
        """The scores and tokens of the two best continuations, ``[rows, 2]``."""
        log_probs, attention = self.model.forward_live(
            self.tokens[:, : step + 1],
            self.encoder_outs,
            self.incremental_states,
            self.generator.temperature,
        )
        if attention is not None:
            self.attention.append((self.state.sentences, attention))
        log_probs.nan_to_num_(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        unlimited = self._limit(step, log_probs)
        self.generator.search.look_at(step, log_probs.unsqueeze(1), self.scores, unlimited)
        best, words = log_probs.topk(2, dim=1)
        return best + self.scores, words

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

    def _note(self, step: int, scores: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Write down what the sentences come to; gives which of them go on."""
        sentences, eos = self.state.sentences, self.generator.eos
        self.state.certificate.note(sentences, scores, words == eos)
        # Where nothing is alive, the prefix so far is ended by an EOS without a score of its own.
        dead = scores[:, 0] == -np.inf
        prefix = self.cumulative[sentences, step - 1]  # at first the last column, which is 0
        chosen = np.where(dead, eos, words[:, 0])
        self.chosen[sentences, step] = chosen
        self.cumulative[sentences, step] = np.where(dead, prefix, scores[:, 0])
        self.last[sentences], self.incomplete[sentences] = step, dead
        return chosen != eos

    def _go_on(self, step: int, scores: Tensor, words: Tensor, rows: np.ndarray) -> bool:
        """Continue these rows with their first candidates; says whether there are any."""
        if len(rows) < len(words):
            if len(rows) == 0:
                return False
            kept = torch.as_tensor(rows, device=words.device)
            scores, words, self.tokens = scores[kept], words[kept], self.tokens[kept]
            self.encoder_outs = self.model.keep(kept, self.encoder_outs, self.incremental_states)
            self.state.keep(kept)
        self.tokens[:, step + 1], self.scores = words[:, 0], scores[:, :1]
        return True

    def _hypotheses(self) -> list[list[dict]]:
        device = self.tokens.device
        certificate = self.state.certificate
        ends = np.arange(len(self.last)), self.last
        finals = certificate.score_bound.finished(self.cumulative[ends], self.last)
        positional = np.diff(self.cumulative, axis=1, prepend=np.float32(0.0))
        tokens, scores, positional = (
            torch.from_numpy(values).to(device) for values in (self.chosen, finals, positional)
        )
        attention = self._joined_attention()
        hypotheses = []
        for row, length in enumerate((self.last + 1).tolist()):
            hypothesis = {
                "tokens": tokens[row, :length],
                "score": scores[row],
                "attention": torch.empty(0) if attention is None else attention[row, :, :length],
                "alignment": torch.empty(0),
                "positional_scores": positional[row, :length],
            }
            if self.incomplete[row]:
                hypothesis["incomplete"] = True
            hypotheses.append([hypothesis])
        return hypotheses

    def _joined_attention(self) -> Optional[Tensor]:
        """That of all steps, ``[batch, source, steps]``."""
        if not self.attention:
            return None
        first = self.attention[0][1]
        joined = first.new_zeros(*first.shape, len(self.attention))
        for step, (sentences, weights) in enumerate(self.attention):
            joined[torch.as_tensor(sentences, device=first.device), :, step] = weights
        return joined
