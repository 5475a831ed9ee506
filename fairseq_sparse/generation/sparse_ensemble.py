"""A model ensemble that does no work for hypotheses of probability zero."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.sequence_generator import EnsembleModelWithAlignment
from torch import Tensor


@dataclass
class DecoderRows:
    """The state of an ensemble, with one row for each active hypothesis of a batch.

    Attributes:
        encoder_outs: the encoder output of each model; None for language models.
        incremental_states: the incremental state of each model.
        sentence: the sentence of each row, ``[rows]``.
        row: the row of each hypothesis, ``[hypotheses]``, arbitrary for dead ones. Only needed in
            fairseq's loop, which numbers hypotheses instead of rows.
    """

    encoder_outs: Any
    incremental_states: list[dict]
    sentence: Tensor
    row: Optional[Tensor] = None


class SparseEnsemble(EnsembleModelWithAlignment):
    """A variant of fairseq's ensemble that runs the models for *active* hypotheses only.

    A search keeps ``beam`` hypotheses of each sentence and needs a distribution for each of them.
    With a sparse model, few may be active: the others have probability 0. At the first step, all
    hypotheses of a sentence are the same. So encoder outputs and incremental states have one row
    for each active hypothesis (at the first step, for each sentence).

    ``BeamSearch`` calls :meth:`encode`, :meth:`next_log_probs` and :meth:`select`. fairseq's loop,
    which the other strategies use, calls the methods of fairseq's ensemble.

    Args:
        models: the models of the ensemble.
        eos: the last token of a dead hypothesis in fairseq's loop.
        attention: whether to return the attention, as fairseq does. The model computes it almost
            for free, but a search must carry it from step to step.
    """

    def __init__(self, models, eos: int, attention: bool = True):
        super().__init__(models)
        self.eos = eos
        self.attention = attention
        # Token that replaces EOS wherever EOS would wrongly end a hypothesis in fairseq's loop.
        self.stands_for_eos: Optional[int] = None
        # Modules with a state. fairseq's decoders search all their modules for them at each step.
        parts = [model.decoder.modules() if self.has_incremental else () for model in models]
        self.stateful = [
            [part for part in modules if hasattr(part, "reorder_incremental_state")]
            for modules in parts
        ]

    def encode(self, net_input: dict[str, Any], batch: int, device: torch.device) -> DecoderRows:
        """Return the rows of the first step, one for each sentence."""
        sentence = torch.arange(batch, device=device)
        return DecoderRows(self.forward_encoder(net_input), self._new_states(), sentence)

    def _new_states(self) -> list[dict]:
        return [{} for _ in range(self.models_size)]

    def next_log_probs(self, tokens: Tensor, rows: DecoderRows) -> tuple[Tensor, Optional[Tensor]]:
        """Run the models on active hypotheses.

        Args:
            tokens: a hypothesis for each row, ``[rows, step + 1]``.
            rows: the state of the models for these hypotheses, advanced by one step.

        Returns:
            log-probabilities of the next token, ``[rows, vocabulary]``, and the attention,
            ``[rows, source length]``, if it is wanted and the models have it
        """
        found, attention = super().forward_decoder(
            tokens, rows.encoder_outs, rows.incremental_states
        )
        return found, attention if self.attention else None

    def select(self, rows: DecoderRows, index: Tensor) -> None:
        """Keep only these rows, in this order; a row can be chosen more than once."""
        before = rows.sentence
        rows.sentence = before[index]
        if not torch.equal(before, rows.sentence):
            if self.has_encoder():
                rows.encoder_outs = super().reorder_encoder_out(rows.encoder_outs, index)
            if len(before) == len(index):
                # fairseq's cross-attention ignores an order that keeps the number of rows: add a
                # row, and remove it again.
                self._reorder(rows.incremental_states, torch.cat([index, index[:1]]))
                index = torch.arange(len(index), device=index.device)
        self._reorder(rows.incremental_states, index)

    def _reorder(self, incremental_states: list[dict], index: Tensor) -> None:
        for modules, state in zip(self.stateful, incremental_states, strict=True):
            for module in modules:
                module.reorder_incremental_state(state, index)

    # Methods that fairseq's loop calls.

    def set_decoder_beam_size(self, beam_size: int) -> None:
        """Set a beam size of 1, because the number of rows per sentence can change."""
        for model in self.models:
            if hasattr(model, "set_beam_size"):
                model.set_beam_size(1)

    def reorder_encoder_out(self, encoder_outs: Any, new_order: Tensor) -> DecoderRows:
        """Record the order only; :meth:`forward_decoder` selects the rows."""
        if isinstance(encoder_outs, DecoderRows):
            encoder_outs.row = encoder_outs.row[new_order]
            return encoder_outs
        sentence = torch.unique_consecutive(new_order)
        return DecoderRows(encoder_outs, self._new_states(), sentence, new_order)

    def reorder_incremental_state(self, incremental_states: list[dict], new_order: Tensor) -> None:
        """Do nothing: ``reorder_encoder_out`` is always called as well, with the same order."""

    def forward_decoder(
        self,
        tokens: Tensor,
        encoder_outs: DecoderRows,
        incremental_states: list[dict],
        temperature: float = 1.0,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Run the models; arguments and result are those of fairseq's ensemble.

        Args:
            tokens: ``[hypotheses, step + 1]``, the hypotheses of a sentence one after another.
            encoder_outs: the result of ``reorder_encoder_out``.
            incremental_states: ignored; the rows have states of their own.
            temperature: ignored, because the models have it (see ``at_temperature``).

        Returns:
            log-probabilities ``[hypotheses, vocabulary]``, -inf for dead hypotheses, and, if it is
            wanted, the attention ``[hypotheses, source length]``, 0 for dead hypotheses
        """
        rows, count = encoder_outs, len(tokens)
        if tokens.size(1) == 1:  # the first step: one hypothesis of each sentence will do
            first = torch.searchsorted(rows.row, rows.sentence)
            found, attention = self.next_log_probs(tokens[first], rows)
            return found[rows.row], None if attention is None else attention[rows.row]
        active = tokens[:, -1].ne(self.eos).nonzero().squeeze(1)
        number, index = torch.arange(len(active), device=active.device), rows.row
        if len(active) < count:
            tokens, index = tokens[active], index[active]
        if len(index) != len(rows.sentence) or not torch.equal(index, number):
            self.select(rows, index)
        if self.stands_for_eos is not None:
            tokens = tokens.masked_fill(tokens == self.stands_for_eos, self.eos)
        found, attention = self.next_log_probs(tokens, rows)
        rows.row = spread(number, active, count, 0)
        return (
            spread(found, active, count, -math.inf),
            None if attention is None else spread(attention, active, count, 0.0),
        )


def spread(values: Tensor, rows: Tensor, count: int, filling: float) -> Tensor:
    """Return a tensor of *count* rows with the values in the given rows, *filling* elsewhere."""
    if len(rows) == count:
        return values
    result = values.new_full((count, *values.shape[1:]), filling)
    result[rows] = values
    return result
