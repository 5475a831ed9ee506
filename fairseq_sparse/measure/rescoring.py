"""Scores of given candidates, such as the n-best lists of another decoder, by a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from fairseq.data.data_utils import collate_tokens

from fairseq_sparse.measure.translator import Translator, score_targets


@dataclass(frozen=True)
class Candidate:
    """A translation of a source sentence.

    Attributes:
        sentence: the number of the source sentence, from 0.
        tokens: with spaces between them, without EOS.
    """

    sentence: int
    tokens: str


def rescore(
    translator: Translator,
    sources: Sequence[str],
    candidates: Iterable[Candidate],
    lenpen: float = 1.0,
    batch: int = 64,
) -> Iterator[tuple[float, Candidate]]:
    """Yield each candidate with its score, ``log2 p / length ** lenpen``, as fairseq prints it.

    It is -inf where a token has probability 0. The length includes EOS.

    Args:
        translator: the models.
        sources: tokens with spaces between them, as ``fairseq-preprocess`` takes them.
        candidates: in any order; they are scored ``batch`` at a time.

    Raises:
        AnalysisError: a sentence is too long for the models.
    """
    chunk: list[Candidate] = []
    for candidate in candidates:
        chunk.append(candidate)
        if len(chunk) == batch:
            yield from _score(translator, sources, chunk, lenpen)
            chunk = []
    if chunk:
        yield from _score(translator, sources, chunk, lenpen)


@torch.no_grad()
def _score(
    translator: Translator, sources: Sequence[str], chunk: Sequence[Candidate], lenpen: float
) -> Iterator[tuple[float, Candidate]]:
    task = translator.task
    pairs = [(_encode(task.source_dictionary, sources[part.sentence]), part) for part in chunk]
    pairs.sort(key=lambda pair: -len(pair[0]))  # an LSTM takes the longest source first
    rows, chunk = zip(*pairs, strict=True)
    targets = [_encode(task.target_dictionary, part.tokens) for part in chunk]
    translator.check_lengths(rows, targets)
    dictionary = task.source_dictionary
    net_input = {
        "src_tokens": collate_tokens(rows, dictionary.pad(), left_pad=task.cfg.left_pad_source),
        "src_lengths": torch.tensor([len(row) for row in rows]),
    }
    log_p = score_targets(translator, translator.on_device(net_input), targets).tolist()
    for candidate, target, score in zip(chunk, targets, log_p, strict=True):
        yield score / math.log(2) / len(target) ** lenpen, candidate


def _encode(dictionary, text: str) -> torch.Tensor:
    return dictionary.encode_line(text, add_if_not_exist=False).long()
