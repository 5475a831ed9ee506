"""The null rate of cross-attention heads by the preceding target word.

ReLA (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units") finds heads that are null
nearly everywhere except after certain words: one attends after auxiliaries and verbs, another after
commas. The word before a query is the last of its input, so a head can know it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from torch import nn

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.attention_statistics import attention_modules
from fairseq_sparse.measure.attention.null_ranking import null_rows
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger

# The name of the position before the first word.
BEGINNING = "(beginning)"


class NullByPrevious:
    """Counter of the null rows of every cross-attention head, by the word before the predicted one.

    Args:
        model: with an encoder and a decoder; it is put into eval mode.
        merger: finds the words. The row of a word is null if the rows of all its subwords are.
        tags: for each sentence of the data set, the tags of its target words, to count by the tag
            of the word before; None counts by the word itself.

    Raises:
        AnalysisError: the model has no cross-attention.
    """

    def __init__(
        self,
        model: nn.Module,
        merger: SubwordMerger,
        tags: Optional[Sequence[Sequence[str]]] = None,
    ):
        if not attention_modules(model)["cross"]:
            raise AnalysisError("the model has no cross-attention")
        self.model, self.merger, self.tags = model.eval(), merger, tags
        self.nulls: dict[str, np.ndarray] = {}  # [layers, heads]
        self.queries: dict[str, int] = {}

    def add_batch(self, sample: Mapping[str, Any]) -> None:
        """Run the model on a batch, teacher-forced, and count.

        Args:
            sample: a fairseq batch, with ``id`` and ``net_input``.

        Raises:
            AnalysisError: a sentence has different numbers of words and tags.
        """
        words = self.merger.batch(sample["net_input"])
        nulls = null_rows(self.model, sample["net_input"], words).cpu().numpy()
        for row, (number, text) in enumerate(
            zip(sample["id"].tolist(), words.targets, strict=True)
        ):
            # EOS, which is predicted last, comes after the last word.
            for word, name in enumerate([BEGINNING, *self._names(number, text)]):
                self.queries[name] = self.queries.get(name, 0) + 1
                self.nulls[name] = self.nulls.get(name, 0) + nulls[:, :, row, word].astype(int)

    def rates(self, most: Optional[int] = None) -> dict[str, Any]:
        """Return the null rate of each head, overall and after each word or tag.

        Args:
            most: number of words or tags to keep, those with the most queries; None keeps all.

        Returns:
            ``queries``, their number; ``previous``: the words or tags, those with the most
            queries first, each with ``name`` and ``queries``; and ``layers``: for each layer
            ``heads``, for each head ``null``, the overall rate, and ``null_after``, the rate by the
            name of the word or tag.

        Raises:
            AnalysisError: no sentence was counted.
        """
        if not self.queries:
            raise AnalysisError("no sentence was counted")
        names = sorted(self.queries, key=lambda name: (-self.queries[name], name))[:most]
        overall = sum(self.nulls.values()) / sum(self.queries.values())
        after = {name: self.nulls[name] / self.queries[name] for name in names}
        return {
            "queries": sum(self.queries.values()),
            "previous": [{"name": name, "queries": self.queries[name]} for name in names],
            "layers": [
                {
                    "heads": [
                        {
                            "null": float(rate),
                            "null_after": {name: float(after[name][layer, head]) for name in names},
                        }
                        for head, rate in enumerate(rates)
                    ]
                }
                for layer, rates in enumerate(overall)
            ],
        }

    def _names(self, number: int, text: Sequence[str]) -> Sequence[str]:
        if self.tags is None:
            return text
        tags = self.tags[number]
        if len(tags) != len(text):
            raise AnalysisError(
                f"sentence {number} has {len(text)} target words but {len(tags)} tags: "
                f"{' '.join(text)[:200]}"
            )
        return tags
