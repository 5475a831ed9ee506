"""Word alignments from the cross-attention of one sentence pair, and their written form.

Row ``t`` of a model's cross-attention is the query that predicts target piece ``t``, and EOS is the
last piece on both sides. Two rows can stand for a target piece (Chen, Sun, Liu, Jiang, Liu 2020,
"Accurate Word Alignment Induction from Neural Machine Translation"):

- **normal**: the query that predicts it, row ``t``. The last row, which predicts EOS, stands for
  no piece.
- **shifted**: the query whose input it is, row ``t + 1``. The first row, whose input is the EOS
  that fairseq begins with, stands for no piece.

The source's EOS is not a word: its column is dropped before links are made. A row without a weight
above 0 gets no link.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_sparse.measure.alignment import SUBWORDS

# A source and a target position, from 0.
Link = tuple[int, int]

_LINK = re.compile(r"([0-9]+)([-p?])([0-9]+)")


@dataclass(frozen=True)
class Words:
    """The words of a sentence that was split into pieces.

    Attributes:
        text: of each word.
        starts: the position of each word's first piece; a word ends where the next one starts.
    """

    text: list[str]
    starts: list[int]


def words_of(pieces: Sequence[str], subwords: str) -> Words:
    """Join the pieces of a sentence into words, as fairseq's ``--post-process`` does.

    Args:
        pieces: without EOS.
        subwords: ``subword_nmt``: a piece that ends in ``@@`` is continued by the next;
            ``sentencepiece``: a piece that begins with ``▁`` begins a word; ``none``: each piece is
            a word. A mark that stands alone belongs to the word that follows.

    Raises:
        ValueError: the kind of subwords is unknown.
    """
    if subwords == "subword_nmt":
        texts = [piece.removesuffix("@@") for piece in pieces]
        begins = [True, *(not piece.endswith("@@") for piece in pieces)]
    elif subwords == "sentencepiece":
        texts = [piece.lstrip("▁") for piece in pieces]
        begins = [piece.startswith("▁") for piece in pieces]
    elif subwords == "none":
        texts, begins = list(pieces), [True] * len(pieces)
    else:
        raise ValueError(f"subwords {subwords}: choose from {', '.join(SUBWORDS)}")
    words, starts = [], []
    start = 0 if pieces else None
    for position, text in enumerate(texts):
        if start is None and begins[position]:
            start = position
        if not text:
            continue
        if start is None:
            words[-1] += text
        else:
            words.append(text)
            starts.append(start)
            start = None
    return Words(words, starts)


def merge_subwords(
    weights: np.ndarray, source: Words, target: Words, shifted: bool = False
) -> np.ndarray:
    """Return attention from words to words: the sum over the pieces of a source word, the mean over
    those of a target word (Zenkel, Wuebker, DeNero 2019, "Adding Interpretable Attention to Neural
    Translation Models Improves Word Alignment").

    Args:
        weights: ``[..., target length, source length]``, EOS last on both sides; any weights.
        source: the words of the source.
        target: the words of the target.
        shifted: whether to take the shifted rows, see above.

    Returns:
        ``[..., target words, source words]``, of the same dtype, without EOS.

    Raises:
        ValueError: weights are NaN.
    """
    rows = weights[..., 1:, :-1] if shifted else weights[..., :-1, :-1]
    merged = np.add.reduceat(rows, np.array(source.starts, dtype=np.intp), axis=-1)
    merged = np.add.reduceat(merged, np.array(target.starts, dtype=np.intp), axis=-2)
    pieces = np.diff([*target.starts, rows.shape[-2]]).astype(weights.dtype)
    merged = merged / pieces[:, None]
    if np.isnan(merged).any():
        raise ValueError("attention weights are NaN: the model's parameters are NaN or infinite")
    return merged


def argmax_links(weights: np.ndarray) -> np.ndarray:
    """Link each target word with the source word of the largest weight, if that is above 0.

    Args:
        weights: ``[..., target words, source words]``; of equal weights the first counts.

    Returns:
        Boolean, of the same shape.
    """
    links = np.zeros(weights.shape, dtype=bool)
    if weights.shape[-1] > 0:
        np.put_along_axis(links, weights.argmax(-1)[..., None], True, axis=-1)
    return links & (weights > 0)


def threshold_links(weights: np.ndarray, threshold: float) -> np.ndarray:
    """Link each target word with the source words whose weight is at least a threshold.

    Args:
        weights: ``[..., target words, source words]``.
        threshold: above 0, so that a weight of 0 is no link.

    Returns:
        Boolean, of the same shape.

    Raises:
        ValueError: the threshold is not above 0.
    """
    if not threshold > 0:
        raise ValueError(f"threshold {threshold}: must be above 0")
    return weights >= threshold


def to_pharaoh(links: np.ndarray) -> list[str]:
    """Return lines as in ``0-0 1-2``: source and target position from 0, in the order of the
    source.

    Args:
        links: boolean, ``[..., target words, source words]``.

    Returns:
        One line for each alignment, in the order of the leading dimensions.
    """
    links = links.reshape(math.prod(links.shape[:-2]), *links.shape[-2:])
    lines: list[list[str]] = [[] for _ in links]
    for number, source, target in zip(
        *(places.tolist() for places in links.swapaxes(1, 2).nonzero()), strict=True
    ):
        lines[number].append(f"{source}-{target}")
    return [" ".join(line) for line in lines]


def from_pharaoh(line: str, base: int = 0) -> set[Link]:
    """Return the links of a line as in ``0-0 1-2``.

    Args:
        line: links with blanks between them, or nothing.
        base: the number of the first word.

    Raises:
        ValueError: a part of the line is not a link.
    """
    links = set()
    for text, kind, link in _links(line, base):
        if kind != "-":
            raise ValueError(f"{text!r} is not a link such as 0-0")
        links.add(link)
    return links


def from_talp(line: str, base: int = 1) -> tuple[set[Link], set[Link]]:
    """Return the sure and the possible links of a line such as ``1-1 2p3``, in RWTH's format.

    Args:
        line: links with blanks between them, or nothing. ``-`` marks a sure link, ``p`` or ``?`` a
            merely possible one.
        base: the number of the first word.

    Returns:
        The sure links, and all links: sure ones are possible, too.

    Raises:
        ValueError: a part of the line is not a link.
    """
    links = [(kind, link) for _, kind, link in _links(line, base)]
    return {link for kind, link in links if kind == "-"}, {link for _, link in links}


def _links(line: str, base: int) -> Iterator[tuple[str, str, Link]]:
    for text in line.split():
        match = _LINK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a link such as 1-1 or 2p3")
        link = int(match[1]) - base, int(match[3]) - base
        if min(link) < 0:
            raise ValueError(f"{text!r}: the first word should have number {base}")
        yield text, match[2], link
