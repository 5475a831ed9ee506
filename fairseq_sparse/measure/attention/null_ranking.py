"""Sentence pairs ranked by how much of their cross-attention is null (ReLA, section 5.2).

Heads of rectified attention can attend to nothing, and they do so where nothing in the source
corresponds (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units"): a pair with a high
**null rate** may be misaligned or mistranslated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def evaluate(ranking: Sequence[int], bad: AbstractSet[int]) -> dict[str, Any]:
    """Return the precision with which a ranking finds the known bad pairs, and that of chance.

    Args:
        ranking: numbers of pairs.
        bad: numbers of the bad pairs; pairs that are not ranked do not count.

    Returns:
        ``pairs`` and ``bad``, the number of all and of bad pairs; ``precision``: for each of
        ``CUTOFFS`` and for the number of bad pairs, the rank ``at`` and ``value``, the share of bad
        pairs down to it; ``average_precision``, the mean of the precisions at the ranks of the bad
        pairs; and ``chance`` with ``precision`` and ``average_precision``, their means over all
        orders.

    Raises:
        AnalysisError: no ranked pair is bad, or all are.
    """
    labels = [number in bad for number in ranking]
    pairs, found = len(labels), sum(labels)
    if not 0 < found < pairs:
        raise AnalysisError(f"{found} of {pairs} ranked pairs are bad: precision is undefined")
    hits = [0]
    for label in labels:
        hits.append(hits[-1] + label)
    # At rank k of a random order, a bad pair has (k - 1)(bad - 1)/(pairs - 1) bad pairs above it.
    above = (found - 1) / (pairs - 1)
    chance = above + (1 - above) * sum(1 / k for k in range(1, pairs + 1)) / pairs
    cutoffs = sorted({*(k for k in CUTOFFS if k <= pairs), found})
    return {
        "pairs": pairs,
        "bad": found,
        "precision": [{"at": k, "value": hits[k] / k} for k in cutoffs],
        "average_precision": sum(hits[k] / k for k in range(1, pairs + 1) if labels[k - 1]) / found,
        "chance": {"precision": found / pairs, "average_precision": chance},
    }


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
