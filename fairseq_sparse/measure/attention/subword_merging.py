"""Attention between the words of a batch, from attention between subwords.

As in ReLA (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units"), weights are merged
as in Zenkel, Wuebker, DeNero (2019, "Adding Interpretable Attention to Neural Translation Models
Improves Word Alignment"): summed over the subwords of a word that is attended to, averaged over
those of a word that attends.

EOS is a word of its own. A query of the decoder stands for the word that it predicts, as in
``word_alignment``; a key of the decoder stands for its input word, the first of which is the EOS
that fairseq begins with.
"""

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_sparse.measure.alignment.word_alignment import Words, words_of
from fairseq_sparse.ops.precision import at_least_fp32


class SubwordMerger:
    """Converter of a batch's attention between subwords to attention between words.

    Args:
        source: the source dictionary.
        target: the target dictionary, with the same index for padding.
        subwords: as for :func:`words_of`; ``none`` takes each token as a word.
    """

    def __init__(self, source: Dictionary, target: Dictionary, subwords: str):
        self.dictionaries, self.subwords = (source, target), subwords
        self.padding_index = source.pad()

    def batch(self, net_input: Mapping[str, Tensor]) -> "BatchWords":
        """Find the words of a fairseq batch."""
        tokens = net_input["src_tokens"], net_input["prev_output_tokens"]
        masks = [side != self.padding_index for side in tokens]
        # EOS is last in the source, and first in the input of the decoder.
        parts = slice(None, -1), slice(1, None)
        words = [
            [
                words_of([dictionary[x] for x in row[real][part].tolist()], self.subwords)
                for row, real in zip(side, mask, strict=True)
            ]
            for dictionary, side, mask, part in zip(
                self.dictionaries, tokens, masks, parts, strict=True
            )
        ]
        return BatchWords(masks, *words)


def subword_merger(task: Any, subwords: str) -> Optional[SubwordMerger]:
    """Return the merger for the data of a task; None for ``none``, which measures tokens."""
    if subwords == "none":
        return None
    return SubwordMerger(task.source_dictionary, task.target_dictionary, subwords)


class BatchWords:
    """The words of the sentences of a batch; see :class:`SubwordMerger`.

    Attributes:
        targets: the text of the target words of each sentence, without EOS.
    """

    def __init__(self, masks: list[Tensor], sources: list[Words], targets: list[Words]):
        self._masks = masks
        self._source_ids, self._predicted_ids = (
            [each.of_positions(n) for each, n in zip(words, mask.sum(1).tolist(), strict=True)]
            for words, mask in zip((sources, targets), masks, strict=True)
        )
        # The input of a query is what the query before it predicts; the first input is EOS.
        self._input_ids = [np.append(0, ids[:-1] + 1) for ids in self._predicted_ids]
        self.targets = [words.text for words in targets]

    def merge(self, place: str, weights: Tensor, masked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Merge the weights of a place of attention.

        Args:
            place: one of ``PLACES``.
            weights: ``[heads, batch, queries, keys]``.
            masked: as :func:`watch_attention` gives it.

        Returns:
            The weights, ``[heads, batch, query words, key words]``, in fp32 or better; the mask of
            the pairs of words without a visible pair of subwords, ``[batch, query words, key
            words]``; and the mask of the query words that are padding, ``[batch, query words]``.
            A weight is exactly 0 if all weights between the subwords are.
        """
        source, target = self._masks
        of_source = place == "encoder"
        padding = ~(source if of_source else target)
        # The encoder of an LSTM moves its padding to the end.
        visible_keys = target if place == "decoder" else ~masked[:, 0].expand(source.shape)
        rows = _members(self._source_ids if of_source else self._predicted_ids, ~padding)
        columns = _members(
            self._input_ids if place == "decoder" else self._source_ids, visible_keys
        )
        unseen = (masked | padding[:, :, None]).expand(weights.shape[1:])
        weights = at_least_fp32(weights).masked_fill(unseen, 0)
        mean = rows / rows.sum(-1, keepdim=True).clamp(min=1)
        columns = columns.to(weights).transpose(1, 2)
        merged = mean.to(weights) @ weights @ columns
        seen = rows.to(weights) @ (~unseen).to(weights) @ columns
        return merged, seen == 0, ~rows.any(-1)


def _members(ids: list[np.ndarray], mask: Tensor) -> Tensor:
    """Return a boolean mask of the positions of each word, ``[batch, words, length]``."""
    numbers = torch.full(mask.shape, -1, device=mask.device)
    numbers[mask] = torch.from_numpy(np.concatenate(ids)).to(numbers)
    words = torch.arange(max(int(row.max()) for row in ids) + 1, device=mask.device)
    return numbers[:, None, :] == words[:, None]
