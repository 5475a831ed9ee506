"""Sentence pairs ranked by how much of their cross-attention is null (ReLA, section 5.2).

Heads of rectified attention can attend to nothing, and they do so where nothing in the source
corresponds (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units"): a pair with a high
**null rate** may be misaligned or mistranslated.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of
from fairseq_sparse.measure.attention.attention_statistics import (
    attention_kind,
    attention_modules,
    watch_attention,
)
from fairseq_sparse.measure.attention.subword_merging import BatchWords, SubwordMerger
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS

# Ranks down to which precision is reported, beside the number of bad pairs.
CUTOFFS = (10, 50, 100)


def check_rectified(model: nn.Module) -> None:
    """Refuse a model with a layer of cross-attention whose weights always sum to 1, or without any.

    Raises:
        AnalysisError: it is one.
        ValueError: as :func:`attention_modules`.
    """
    modules = attention_modules(model)["cross"]
    if not modules:
        raise AnalysisError("the model has no cross-attention")
    for number, module in enumerate(modules, start=1):
        kind = attention_kind(module)
        if ATTENTION_KINDS[kind].sums_to_one:
            raise AnalysisError(
                f"layer {number} has {kind} cross-attention, which always attends to something: "
                "it has no null rate to rank by; take a model with rectified attention (rela_g)"
            )


@torch.no_grad()
def null_rows(model: nn.Module, net_input: Mapping[str, Tensor], words: BatchWords) -> Tensor:
    """Run a model on a batch, teacher-forced, and find the null queries of its cross-attention.

    Args:
        model: in eval mode.
        net_input: fairseq's.
        words: of the batch. The query of a word is null if those of all its subwords are.

    Returns:
        Boolean, ``[layers, heads, batch, words]``; EOS is the last word, and padding is null, too.
    """
    layers: dict[int, Tensor] = {}

    def keep(place: str, layer: int, weights: Tensor, masked: Tensor) -> None:
        merged, _, _ = words.merge(place, weights, masked)
        layers[layer] = (merged == 0).all(-1)

    with watch_attention(model, keep, ["cross"]):
        model.extract_features(**net_input)
    return torch.stack([layers[layer] for layer in sorted(layers)])


def null_rates(
    model: nn.Module, samples: Iterable[Mapping[str, Any]], merger: SubwordMerger
) -> Iterator[tuple[int, float]]:
    """Yield the null rate of the cross-attention of each sentence pair.

    It is the share of queries whose weights are all 0, over all heads of all layers and all target
    words. EOS is one of them, so that the mean of the rates of equally long pairs is the rate that
    ``AttentionStatistics`` reports.

    Args:
        model: in eval mode.
        samples: batches of fairseq's, with ``id`` and ``net_input``.
        merger: finds the words.

    Yields:
        The number of each pair in its data set, and its rate, in the order of the batches.
    """
    for sample in samples:
        words = merger.batch(sample["net_input"])
        nulls = null_rows(model, sample["net_input"], words).flatten(0, 1).cpu()
        for number, text, rows in zip(
            sample["id"].tolist(), words.targets, nulls.unbind(1), strict=True
        ):
            real = rows[:, : len(text) + 1]  # and EOS
            yield number, int(real.sum()) / real.numel()


def rank(rates: Mapping[int, float]) -> list[int]:
    """Return the numbers of the pairs, the highest rate first, and by number where rates are equal.

    Raises:
        AnalysisError: all rates are 0, or NaN.
    """
    if not any(rate > 0 for rate in rates.values()):
        raise AnalysisError("every pair has a null rate of 0, so the pairs cannot be ranked")
    return sorted(rates, key=lambda number: (-rates[number], number))


def evaluate(rates: Mapping[int, float], bad: AbstractSet[int]) -> dict[str, Any]:
    """Return the precision with which a ranking finds the known bad pairs, and that of chance.

    Pairs with the same rate may come in any order: the precisions are means over all of them, so
    that the order of the corpus decides nothing. Chance is that all rates are the same.

    Args:
        rates: of the pairs, by their numbers; the highest comes first.
        bad: numbers of the bad pairs; pairs without a rate do not count.

    Returns:
        ``pairs`` and ``bad``, the number of all and of bad pairs; ``precision``: for each of
        ``CUTOFFS`` and for the number of bad pairs, the rank ``at`` and ``value``, the share of bad
        pairs down to it; ``average_precision``, the mean of the precisions at the ranks of the bad
        pairs; and ``chance`` with ``precision`` and ``average_precision``.

    Raises:
        AnalysisError: no ranked pair is bad, or all are.
    """
    pairs, found = len(rates), sum(number in bad for number in rates)
    if not 0 < found < pairs:
        raise AnalysisError(f"{found} of {pairs} ranked pairs are bad: precision is undefined")
    sizes, hits = Counter(rates.values()), Counter(rates[n] for n in rates if n in bad)
    ties = [(sizes[rate], hits[rate]) for rate in sorted(sizes, reverse=True)]
    precisions, average = _expected_precisions(ties)
    cutoffs = sorted({*(k for k in CUTOFFS if k <= pairs), found})
    return {
        "pairs": pairs,
        "bad": found,
        "precision": [{"at": k, "value": precisions[k - 1]} for k in cutoffs],
        "average_precision": average,
        "chance": {
            "precision": found / pairs,
            "average_precision": _expected_precisions([(pairs, found)])[1],
        },
    }


def _expected_precisions(ties: Iterable[tuple[int, int]]) -> tuple[list[float], float]:
    """Return the precision at each rank and the average precision, means over all orders of ties.

    Args:
        ties: for each rate, the highest first, the numbers of all and of bad pairs that have it.
    """
    precisions: list[float] = []
    above, total = 0, 0.0
    for size, bad in ties:
        for place in range(size):
            rank = len(precisions) + 1
            precisions.append((above + (place + 1) * bad / size) / rank)
            # Among `place` others of its rate, a bad pair has place (bad - 1)/(size - 1) bad ones.
            total += bad / size * (above + 1 + place * (bad - 1) / max(size - 1, 1)) / rank
        above += bad
    return precisions, total / above


def read_labels(path: Path, sentences: int) -> set[int]:
    """Return the numbers of the bad pairs in a file with 0 (good) or 1 (bad) in a line per pair.

    Raises:
        AnalysisError: a line is neither 0 nor 1, or there are not as many lines as sentences.
        OSError: the file cannot be read.
    """
    lines = [line.strip() for line in lines_of(path)]
    if len(lines) != sentences:
        raise AnalysisError(f"{path} has {len(lines)} lines for {sentences} sentence pairs")
    for number, line in enumerate(lines, start=1):
        if line not in ("0", "1"):
            raise AnalysisError(f"{path}, line {number}: neither 0 nor 1")
    return {number for number, line in enumerate(lines) if line == "1"}
