"""A model ensemble that spends nothing on hypotheses of probability zero."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.sequence_generator import EnsembleModelWithAlignment
from torch import Tensor


@dataclass
class HeldRows:
    """What the rows of encoder outputs and incremental states are.

    Attributes:
        encoder_outs: of each model.
        sentence: the sentence of each row, ``[rows]``.
        row: that of each hypothesis, ``[hypotheses]``; of a dead one it is not looked at.
    """

    encoder_outs: Any
    sentence: Tensor
    row: Tensor


class SparseEnsemble(EnsembleModelWithAlignment):
    """Stock's ensemble, which runs the models for *live* hypotheses only.

    ``SequenceGenerator`` keeps ``beam`` hypotheses of each sentence and wants a distribution for
    all of them. Of a sparse model few may be live: the others have probability 0, and
    ``SparseSearch`` ends them with an EOS. And at the first step all hypotheses of a sentence are
    the same. So encoder outputs and incremental states hold one row for each live hypothesis (at
    the first step, for each sentence), and the distributions that come back are spread over the
    hypotheses; a dead one gets -inf for every token.

    It remembers the last distribution as well, which the length limit is about to cut.

    Args:
        models: of the ensemble.
        eos: the last token of a dead hypothesis.
        attention: whether to return the attention, as stock does. It is all but free in the model,
            yet ``SequenceGenerator`` takes it along through the whole search.
    """

    def __init__(self, models, eos: int, attention: bool = True):
        super().__init__(models)
        self.eos = eos
        self.attention = attention
        self.max_len: Optional[int] = None
        self.unlimited: Optional[Tensor] = None
        # fairseq's decoders look for these among all of their modules, at each step.
        parts = [model.decoder.modules() if self.has_incremental else () for model in models]
        self.stateful = [
            [part for part in modules if hasattr(part, "reorder_incremental_state")]
            for modules in parts
        ]

    def set_decoder_beam_size(self, beam_size: int) -> None:
        """Do nothing: the number of rows of a sentence changes from step to step."""

    def reorder_encoder_out(self, encoder_outs: Any, new_order: Tensor) -> HeldRows:
        """Take note of the order only; it is in :meth:`forward_decoder` that rows are chosen."""
        if isinstance(encoder_outs, HeldRows):
            encoder_outs.row = encoder_outs.row[new_order]
            return encoder_outs
        return HeldRows(encoder_outs, torch.unique_consecutive(new_order), new_order)

    def reorder_incremental_state(self, incremental_states: list[dict], new_order: Tensor) -> None:
        """Do nothing: ``reorder_encoder_out`` is always called as well, with the same order."""

    def forward_decoder(
        self,
        tokens: Tensor,
        encoder_outs: HeldRows,
        incremental_states: list[dict],
        temperature: float = 1.0,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """The distributions after each hypothesis; arguments and result are stock's.

        Args:
            tokens: ``[hypotheses, step + 1]``, the hypotheses of a sentence one after another.
            encoder_outs: what ``reorder_encoder_out`` gave.
            incremental_states: of each model.
            temperature: divides the logits.

        Returns:
            Log-probabilities ``[hypotheses, vocabulary]`` and, if it is wanted, the attention
            ``[hypotheses, source length]``, 0 for dead hypotheses.
        """
        held, count = encoder_outs, len(tokens)
        if tokens.size(1) == 1:  # the first step: one hypothesis of each sentence will do
            live, row = torch.searchsorted(held.row, held.sentence), held.row
        else:
            live = tokens[:, -1].ne(self.eos).nonzero().squeeze(1)
            number = torch.arange(len(live), device=live.device)
            self.hold(held, _pick(held.row, live), number, incremental_states)
            row = spread(number, live, count, 0)
        found, attention = self.forward_live(
            _pick(tokens, live), held.encoder_outs, incremental_states, temperature
        )
        if tokens.size(1) == 1:
            found = found[row]
            attention = None if attention is None else attention[row]
        else:
            found = spread(found, live, count, -math.inf)
            attention = None if attention is None else spread(attention, live, count, 0.0)
        held.row = row
        if tokens.size(1) - 1 == self.max_len:
            self.unlimited = found.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        elif self.unlimited is not None:
            self.unlimited = None
        return found, attention

    def forward_live(
        self,
        tokens: Tensor,
        encoder_outs: list,
        incremental_states: list[dict],
        temperature: float = 1.0,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """The same where every hypothesis is live and has a row of its own."""
        found, attention = super().forward_decoder(
            tokens, encoder_outs, incremental_states, temperature
        )
        return found, attention if self.attention else None

    def hold(
        self, held: HeldRows, rows: Tensor, number: Tensor, incremental_states: list[dict]
    ) -> None:
        """Go on with these of the rows, in this order; *number* counts them from 0."""
        before = held.sentence
        if torch.equal(rows, number) and len(rows) == len(before):
            return
        held.sentence = before[rows]
        if not torch.equal(before, held.sentence):
            if self.has_encoder():
                held.encoder_outs = super().reorder_encoder_out(held.encoder_outs, rows)
            if len(before) == len(rows):
                # fairseq's cross-attention takes as many rows as before for the same sentences.
                self._reorder(incremental_states, torch.cat([rows, rows[:1]]))
                rows = number
        self._reorder(incremental_states, rows)

    def _reorder(self, incremental_states: list[dict], rows: Tensor) -> None:
        for modules, state in zip(self.stateful, incremental_states, strict=True):
            for module in modules:
                module.reorder_incremental_state(state, rows)


def _pick(values: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a tensor, in their order."""
    return values if len(rows) == len(values) else values[rows]


def spread(values: Tensor, rows: Tensor, count: int, filling: float) -> Tensor:
    """A tensor of *count* rows that has the values in the given ones."""
    if len(rows) == count:
        return values
    result = values.new_full((count, *values.shape[1:]), filling)
    result[rows] = values
    return result
