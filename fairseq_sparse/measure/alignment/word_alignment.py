"""Word alignments from the cross-attention of one sentence pair, and their written form.

Row ``t`` of a model's cross-attention is the query that predicts target piece ``t``, and EOS is the
last piece on both sides. Two rows can stand for a target piece (Chen, Sun, Liu, Jiang, Liu 2020,
"Accurate Word Alignment Induction from Neural Machine Translation"):

- **normal**: the query that predicts it, row ``t``. The last row, which predicts EOS, stands for
  no piece.
- **shifted**: the query whose input it is, row ``t + 1``. The first row, whose input is the EOS
  that fairseq begins with, stands for no piece.

The source's EOS is not a word: its column is dropped before links are made.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS, SUBWORDS

# A source and a target position, from 0.
Link = tuple[int, int]

_LINK = re.compile(r"([0-9]+)([-p?])([0-9]+)")
# A piece with a mark of either kind of subwords.
MARKED_PIECE = re.compile("\u2581.+|.+@@")


@dataclass(frozen=True)
class Words:
    """The words of a sentence that was split into pieces.

    Attributes:
        text: of each word.
        starts: the position of each word's first piece; a word ends where the next one starts.
    """

    text: list[str]
    starts: list[int]

    def of_positions(self, length: int) -> np.ndarray:
        """Return the number of the word of each of ``length`` positions; the last is EOS, a word of
        its own."""
        starts = [*self.starts, length - 1]
        return (np.searchsorted(starts, np.arange(length), side="right") - 1).clip(min=0)


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


def word_links(weights: np.ndarray, source: Words, target: Words) -> list[list[Link]]:
    """Link each target word with the source word of the largest weight, if that is above 0; of
    equal weights the first counts.

    Args:
        weights: ``[layers, heads, target length, source length]``, EOS last on both sides.
        source: the words of the source.
        target: the words of the target.

    Returns:
        Links in the order of the source, for each of ``ALIGNMENT_KINDS``, each layer, each head and
        then the mean of the layer's heads.

    Raises:
        ValueError: weights are NaN.
    """
    merged = np.stack(
        [merge_subwords(weights, source, target, kind == "shifted") for kind in ALIGNMENT_KINDS]
    )
    merged = np.concatenate([merged, merged.mean(2, keepdims=True)], axis=2)
    links = np.zeros(merged.shape, dtype=bool)
    if source.text:
        np.put_along_axis(links, merged.argmax(-1)[..., None], True, axis=-1)
    links &= merged > 0
    matrices = (matrix for layers in links for heads in layers for matrix in heads)
    return [list(map(tuple, np.argwhere(matrix.T).tolist())) for matrix in matrices]


def to_pharaoh(links: Iterable[Link]) -> str:
    """Return a line as in ``0-0 1-2``: source and target position from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)


def from_pharaoh(line: str, base: int = 0) -> set[Link]:
    """Return the links of a line as in ``0-0 1-2``.

    Args:
        line: links with blanks between them, or nothing.
        base: the number of the first word.

    Raises:
        ValueError: a part of the line is not a link.
    """
    sure, possible = from_talp(line, base)
    if sure != possible:
        raise ValueError("possible links such as 2p3, where only links such as 0-0 are expected")
    return sure


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
    sure, possible = set(), set()
    for text in line.split():
        match = _LINK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a link such as 1-1 or 2p3")
        link = int(match[1]) - base, int(match[3]) - base
        if min(link) < 0:
            raise ValueError(f"{text!r}: the first word should have number {base}")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return sure, possible
