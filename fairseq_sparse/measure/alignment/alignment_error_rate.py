"""The agreement of word alignments with manual ones: precision, recall, error rate.

Och and Ney (2000), "Improved Statistical Alignment Models". S are the sure links of the gold
alignment, P its possible links, which include S, and A the proposed links, over a corpus:

    precision = |A ∩ P| / |A|
    recall = |A ∩ S| / |S|
    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np

from fairseq_sparse.files import split_lines
from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.measure.alignment.word_alignment import Link, from_pharaoh, from_talp

Parsed = TypeVar("Parsed")


class GoldLinks(NamedTuple):
    """The links of a sentence pair; the sure ones are possible too."""

    sure: set[Link]
    possible: set[Link]


@dataclass(frozen=True)
class AlignmentScore:
    """The number of proposed links, and rates from 0 to 1; without links ``precision`` is None."""

    links: int
    precision: Optional[float]
    recall: float
    aer: float


def read_gold(path: Path, base: Optional[int] = None, reverse: bool = False) -> list[GoldLinks]:
    """Read a gold alignment, one line per sentence pair, in RWTH's ``talp`` or Pharaoh format.

    Args:
        path: the file; see :func:`from_talp` for its lines.
        base: the number of the first word (default: :func:`default_base`).
        reverse: the links begin with the target word.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line cannot be parsed, or there is no sure link.
    """
    base = default_base(path) if base is None else base

    def parse(line: str) -> GoldLinks:
        kinds = from_talp(line, base)
        if reverse:
            kinds = [{(source, target) for target, source in links} for links in kinds]
        return GoldLinks(*kinds)

    gold = _parse(path, parse)
    if not any(links.sure for links in gold):
        raise ValueError(f"{path}: there is no sure link")
    return gold


def read_alignment(path: Path) -> list[set[Link]]:
    """Read proposed links, one line per sentence pair, in Pharaoh format.

    Args:
        path: the file; see :func:`from_pharaoh` for its lines.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line cannot be parsed.
    """
    return _parse(path, lambda line: from_pharaoh(line, default_base(path)))


def default_base(path: Path) -> int:
    """Return the number of the first word of a sentence: 1 in ``*.talp``, else 0."""
    return 1 if path.suffix.lower() == ".talp" else 0


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file in UTF-8, with or without a byte order mark, or in Latin-1.

    Lines end with LF or CRLF, and with nothing else.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not text.
    """
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return split_lines(path, text)


def alignment_score(gold: Sequence[GoldLinks], proposed: Sequence[set[Link]]) -> AlignmentScore:
    """Compare the links of a corpus with its gold alignment, which must have a sure link."""
    pairs = list(zip(gold, proposed, strict=True))
    links = sum(map(len, proposed))
    sure = sum(len(links.sure) for links in gold)
    in_sure = sum(len(links.sure & found) for links, found in pairs)
    in_possible = sum(len(links.possible & found) for links, found in pairs)
    return AlignmentScore(
        links,
        precision=in_possible / links if links else None,
        recall=in_sure / sure,
        aer=1 - (in_sure + in_possible) / (links + sure),
    )


def summarize_rates(rates: Sequence[float], layers: int) -> dict[str, dict[str, Any]]:
    """Summarize the error rates of the heads of a model, as ReLA compares them (Zhang, Titov,
    Sennrich 2021, "Sparse Attention with Linear Units", Fig. 4 and Table 5).

    Args:
        rates: in the order of :func:`word_links`.
        layers: the number of layers.

    Returns:
        For each of ``ALIGNMENT_KINDS``: ``layers``, for each layer ``layer``, its number,
        ``average``, the rate of the mean of its heads, ``heads``, the rate of each head,
        ``best_head``, the number of the best one, and ``best``, its rate; ``aoh``, the mean over
        the layers of the best head's rate; ``aol``, the mean of the layers' averages.
    """
    result = {}
    by_layer = np.reshape(rates, (len(ALIGNMENT_KINDS), layers, -1)).tolist()
    for kind, rows in zip(ALIGNMENT_KINDS, by_layer, strict=True):
        summaries = []
        for layer, (*heads, average) in enumerate(rows, start=1):
            best = min(heads)
            summary = {"layer": layer, "average": average, "heads": heads}
            summaries.append({**summary, "best_head": heads.index(best) + 1, "best": best})
        aoh, aol = (fmean(row[name] for row in summaries) for name in ("best", "average"))
        result[kind] = {"layers": summaries, "aoh": aoh, "aol": aol}
    return result


def _parse(path: Path, parse: Callable[[str], Parsed]) -> list[Parsed]:
    result = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            result.append(parse(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return result
