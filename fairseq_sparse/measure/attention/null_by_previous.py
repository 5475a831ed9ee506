"""The null rate of cross-attention heads by the preceding target word.

ReLA (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units") finds heads that are null
nearly everywhere except after certain words: one attends after auxiliaries and verbs, another after
commas. The word before a query is the last of its input, so a head can know it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from torch import Tensor, nn

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.attention_statistics import attention_modules
from fairseq_sparse.measure.attention.null_ranking import null_rows
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger

# The name of the position before the first word.
BEGINNING = "(beginning)"


def null_rates_by_previous(
    model: nn.Module,
    samples: Iterable[Mapping[str, Any]],
    merger: SubwordMerger,
    tags: Optional[Sequence[Sequence[str]]] = None,
    most: Optional[int] = None,
) -> dict[str, Any]:
    """Measure the null rate of each cross-attention head, overall and after each word or tag.

    Args:
        model: with an encoder and a decoder; it is put into eval mode.
        samples: batches of fairseq's, with ``id`` and ``net_input``.
        merger: finds the words. The row of a word is null if the rows of all its subwords are.
        tags: for each sentence of the data set, the tags of its target words, to count by the tag
            of the word before; None counts by the word itself.
        most: number of words or tags to keep, those with the most queries; None keeps all.

    Returns:
        ``queries``, their number; ``previous``: the words or tags, those with the most queries
        first, each with ``name`` and ``queries``; and ``layers``: for each layer ``heads``, for
        each head ``null``, the overall rate, and ``null_after``, the rate by the name of the word
        or tag.

    Raises:
        AnalysisError: the model has no cross-attention, there are no sentences, or one has
            different numbers of words and tags.
    """
    if not attention_modules(model)["cross"]:
        raise AnalysisError("the model has no cross-attention")
    model.eval()
    nulls: dict[str, Tensor] = {}  # [layers, heads]
    queries: Counter[str] = Counter()
    for sample in samples:
        words = merger.batch(sample["net_input"])
        rows = null_rows(model, sample["net_input"], words).cpu().long()
        for row, (number, text) in enumerate(
            zip(sample["id"].tolist(), words.targets, strict=True)
        ):
            given = text if tags is None else tags[number]
            if len(given) != len(text):
                raise AnalysisError(
                    f"sentence {number} has {len(text)} target words but {len(given)} tags: "
                    f"{' '.join(text)[:200]}"
                )
            # EOS, which is predicted last, comes after the last word.
            for word, name in enumerate([BEGINNING, *given]):
                queries[name] += 1
                nulls[name] = nulls.get(name, 0) + rows[:, :, row, word]
    if not queries:
        raise AnalysisError("no sentence was counted")
    names = sorted(queries, key=lambda name: (-queries[name], name))[:most]
    overall = (sum(nulls.values()).double() / queries.total()).tolist()
    after = {name: (nulls[name].double() / queries[name]).tolist() for name in names}
    return {
        "queries": queries.total(),
        "previous": [{"name": name, "queries": queries[name]} for name in names],
        "layers": [
            {
                "heads": [
                    {"null": rate, "null_after": {name: after[name][layer][head] for name in names}}
                    for head, rate in enumerate(rates)
                ]
            }
            for layer, rates in enumerate(overall)
        ],
    }
