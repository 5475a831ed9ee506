"""Extraction of word alignments from a translation model's attention on a data set."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_sparse.measure.alignment.alignment_folder import (
    MEAN,
    WORDS,
    AlignmentFolder,
    link_files,
)
from fairseq_sparse.measure.alignment.word_alignment import (
    Words,
    argmax_links,
    merge_subwords,
    threshold_links,
    to_pharaoh,
    words_of,
)
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.translator import Translator, with_best_translations


def extract_part(
    folder: AlignmentFolder,
    numbers: range,
    translator: Translator,
    dataset: FairseqDataset,
    max_tokens: int,
) -> Iterator[int]:
    """Align some sentences and write the links to a folder, with one batch in memory at a time.

    Args:
        folder: its settings say what is given to the model and how links are made from attention.
        numbers: the numbers of the sentences, without gaps.
        translator: one model.
        dataset: all sentences.
        max_tokens: largest number of tokens in a batch.

    Yields:
        The number of sentences done since the last yield.

    Raises:
        AnalysisError: ``max_tokens`` is too small for a sentence.
        OSError: the part cannot be written.
        ValueError: attention weights are NaN.
    """
    task, settings = translator.task, folder.settings
    lines = {name: [""] * len(numbers) for name in (*WORDS, *link_files(settings).values())}
    missing = set(numbers)
    with folder.archive(numbers) if settings["npz"] else nullcontext() as archive:
        batches = translator.batches(settings["subset"], max_tokens, numbers)
        if settings["hypothesis"]:
            batches = with_best_translations(translator, batches, settings["beam"])
        for sample in batches:
            for pair in forced_attention(
                translator.models[0], sample, task.source_dictionary.pad()
            ):
                missing.remove(pair.number)
                weights = pair.weights["cross"].numpy()
                source, target = _pieces(translator, pair.source, pair.target)
                if archive:
                    archive.add(pair.number, weights, source, target)
                for name, line in align(weights, source, target, settings).items():
                    lines[name][pair.number - numbers[0]] = line
            yield len(sample["id"])
    for number in missing:
        # Keep the words of a sentence that is too long, so that line numbers match other texts.
        pair = dataset[number]
        given = pair["source"][:0] if settings["hypothesis"] else pair["target"]
        for name, pieces in zip(WORDS, _pieces(translator, pair["source"], given), strict=True):
            words = words_of(pieces[:-1], settings["subwords"])
            lines[name][number - numbers[0]] = " ".join(words.text)
    folder.write_part(numbers, lines, sorted(missing))
    yield len(missing)


def align(
    weights: np.ndarray, source: list[str], target: list[str], settings: Mapping[str, Any]
) -> dict[str, str]:
    """Return the line of one sentence pair for each file of a folder.

    Args:
        weights: ``[layers, heads, target length, source length]``, of all layers and heads.
        source: pieces, EOS last.
        target: pieces, EOS last.
        settings: as in an :class:`AlignmentFolder`, with ``subwords`` as in :func:`words_of`, and
            the settings of :func:`word_links`.
    """
    words = [words_of(side[:-1], settings["subwords"]) for side in (source, target)]
    lines = [" ".join(side.text) for side in words]
    for links in word_links(weights, *words, settings):
        lines += to_pharaoh(links)
    return dict(zip((*WORDS, *link_files(settings).values()), lines, strict=True))


def word_links(
    weights: np.ndarray, source: Words, target: Words, settings: Mapping[str, Any]
) -> Iterator[np.ndarray]:
    """Link the words of one sentence pair by its attention.

    Args:
        weights: ``[layers, heads, target length, source length]``, of all layers and heads.
        source: the words of the source.
        target: the words of the target.
        settings: ``attention``, ``layers`` and ``heads`` as in an :class:`AlignmentFolder`, and
            ``threshold``, or None for the largest weight.

    Yields:
        For each kind of attention booleans, ``[layers, heads, target words, source words]``, in the
        order of :func:`link_files`.
    """
    weights = weights[[layer - 1 for layer in settings["layers"]]]
    for kind in settings["attention"]:
        merged = merge_subwords(weights, source, target, shifted=kind == "shifted")
        heads = [
            merged.mean(1) if head == MEAN else merged[:, head - 1] for head in settings["heads"]
        ]
        merged = np.stack(heads, axis=1)
        if settings["threshold"] is None:
            yield argmax_links(merged)
        else:
            yield threshold_links(merged, settings["threshold"])


def _pieces(translator: Translator, source: Tensor, target: Tensor) -> tuple[list[str], list[str]]:
    task = translator.task
    return (
        [task.source_dictionary[token] for token in source.tolist()],
        [task.target_dictionary[token] for token in target.tolist()],
    )
