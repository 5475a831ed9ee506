"""Gold alignments with their sentences, in the layout of RWTH Aachen's German-English set.

ReLA measures the alignment error rate on that set (Vilar et al. 2006). The archive
``DeEnGoldAlignment.tar.gz`` has a folder ``DeEn`` with

    de, en                  tokenised sentences, one per line, in Latin-1
    alignmentDeEn.talp      their links, one pair per line, German word first, counted from 1; see
                            ``word_alignment.from_talp``
    alignmentDeEn           the same links in a longer form, which is not read

Lines that are empty on both sides are skipped: 509 lines hold 508 pairs.
"""

import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.alignment.alignment_error_rate import (
    GoldLinks,
    alignment_score,
    read_gold,
    read_lines,
    summarize_rates,
)
from fairseq_sparse.measure.alignment.word_alignment import Words, word_links
from fairseq_sparse.measure.attention.attention_statistics import attention_modules
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.translator import Translator

HOME = "https://www-i6.informatik.rwth-aachen.de/goldAlignment/"

_TALP = "alignment*.talp"


@dataclass(frozen=True)
class GoldPairs:
    """Sentence pairs with their manual links.

    Attributes:
        source: the words of each source sentence.
        target: the words of each target sentence.
        links: for each pair, from source words to target words.
    """

    source: list[list[str]]
    target: list[list[str]]
    links: list[GoldLinks]


def unpack(archive: Path, folder: Path) -> Path:
    """Extract the needed files of an archive into a folder, which is created, and return it.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the archive is not a complete tar archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as members:
            for member in members:
                path = PurePosixPath(member.name)
                # Only the last part of the name is used: nothing is written outside the folder.
                if member.isfile() and (len(path.name) == 2 or path.match(_TALP)):
                    (folder / path.name).write_bytes(members.extractfile(member).read())
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{archive}: not a complete tar archive: {error}") from error
    return folder


def read_pairs(folder: Path, source: str, target: str) -> GoldPairs:
    """Read the sentence pairs of a folder in this layout, in either direction.

    Args:
        folder: with files as above.
        source: code of the source language, the name of its file.
        target: likewise.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is missing, has other languages, or does not match the others.
    """
    found = sorted(folder.glob(_TALP))
    if len(found) != 1:
        raise ValueError(f"{folder} must have one file like alignmentDeEn.talp, not {len(found)}")
    (talp,) = found
    first, second = (talp.stem[-4:-2].lower(), talp.stem[-2:].lower())
    if {first, second} != {source, target}:
        raise ValueError(f"{talp.name} is for {first}-{second}, the model for {source}-{target}")
    links = read_gold(talp, base=1, reverse=first == target)
    texts = [[_words(line) for line in read_lines(folder / name)] for name in (source, target)]
    if len({len(links), *map(len, texts)}) > 1:
        raise ValueError(
            f"{talp}: {len(links)} lines, but {len(texts[0])} of {source} and {len(texts[1])} of "
            f"{target}"
        )
    pairs = []
    for number, (*sides, pair_links) in enumerate(zip(*texts, links, strict=True), start=1):
        sizes = list(map(len, sides))
        reach = [max(side, default=-1) for side in zip(*pair_links.possible, strict=True)]
        if any(last >= size for last, size in zip(reach, sizes, strict=False)):
            raise ValueError(f"{talp}, line {number}: a link beyond the last word of the sentence")
        if any(sizes) and not all(sizes):
            raise ValueError(f"{folder}, line {number}: one side is empty")
        if all(sizes):
            pairs.append((*sides, pair_links))
    return GoldPairs(*map(list, zip(*pairs, strict=True)))


def _words(line: str) -> list[str]:
    # The links count words between spaces; a no-break space in a number is a part of its word.
    return [word for word in re.split("[ \t]+", line) if word]


def segment(words: list[str], split: Callable[[str], str]) -> tuple[list[str], Words]:
    """Split the words of a sentence into the pieces that a model was trained on.

    Each word is split on its own, so that its pieces are known even if a tokeniser makes several
    tokens of it, as with "cherry-pick".

    Args:
        words: the words of a sentence.
        split: splits a text into pieces separated by spaces.

    Returns:
        The pieces, and the words as positions among them.

    Raises:
        ValueError: a word has no pieces.
    """
    pieces: list[str] = []
    starts = []
    for word in words:
        starts.append(len(pieces))
        pieces += split(word).split()
        if len(pieces) == starts[-1]:
            raise ValueError(f"nothing is left of the word {word!r} when it is tokenised")
    return pieces, Words(words, starts)


def score_model(
    translator: Translator,
    batches: Iterable[Mapping[str, Any]],
    pairs: GoldPairs,
    source: Sequence[Words],
    target: Sequence[Words],
) -> dict[str, Any]:
    """Compare the links of every cross-attention head, and of layer attention, with the gold ones.

    Args:
        translator: one model, with the task that loads the binarised pairs.
        batches: the pairs in batches.
        pairs: the gold links.
        source: the words of each source sentence as positions among its pieces.
        target: likewise.

    Returns:
        The result of :func:`summarize_rates`.

    Raises:
        AnalysisError: the model has no cross-attention, or a pair is too long for it.
    """
    layers = len(attention_modules(translator.model)["cross"])
    if not layers:
        raise AnalysisError(f"{translator.name}: the model has no cross-attention")
    proposed = {}
    for sample in batches:
        padding = translator.task.source_dictionary.pad()
        for pair in forced_attention(translator.model, sample, padding):
            weights, number = pair.weights["cross"].numpy(), pair.number
            links = word_links(weights, source[number], target[number])
            proposed[number] = list(map(set, links))
    missing = len(pairs.links) - len(proposed)
    if missing:
        raise AnalysisError(f"{translator.name}: {missing} sentences are too long for it")
    by_reading = zip(*(proposed[number] for number in range(len(proposed))), strict=True)
    rates = [alignment_score(pairs.links, links).aer for links in by_reading]
    return summarize_rates(rates, layers)
