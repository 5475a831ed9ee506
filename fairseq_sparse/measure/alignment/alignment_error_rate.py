"""The agreement of word alignments with manual ones: precision, recall, error rate.

Och and Ney (2000), "Improved Statistical Alignment Models". S are the sure links of the gold
alignment, P its possible links, which include S, and A the proposed links, over a corpus:

    precision = |A ∩ P| / |A|
    recall = |A ∩ S| / |S|
    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from fairseq_sparse.files import split_lines
from fairseq_sparse.measure.alignment.alignment_folder import MEAN, Reading
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


def read_gold(
    path: Path,
    base: Optional[int] = None,
    encoding: Optional[str] = None,
    reverse: bool = False,
) -> list[GoldLinks]:
    """Read a gold alignment, one line per sentence pair, in RWTH's ``talp`` or Pharaoh format.

    Args:
        path: the file; see :func:`from_talp` for its lines.
        base: the number of the first word (default: 1 for ``*.talp``, else 0).
        encoding: see :func:`read_lines`.
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

    gold = _parse(path, encoding, parse)
    if not any(links.sure for links in gold):
        raise ValueError(f"{path}: there is no sure link")
    return gold


def read_alignment(
    path: Path, base: Optional[int] = None, encoding: Optional[str] = None
) -> list[set[Link]]:
    """Read proposed links, one line per sentence pair, in Pharaoh format.

    Args:
        path: the file; see :func:`from_pharaoh` for its lines.
        base: as in :func:`read_gold`.
        encoding: see :func:`read_lines`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line cannot be parsed.
    """
    base = default_base(path) if base is None else base
    return _parse(path, encoding, lambda line: from_pharaoh(line, base))


def default_base(path: Path) -> int:
    """Return the number of the first word of a sentence, by the file's suffix."""
    return 1 if path.suffix.lower() == ".talp" else 0


def read_lines(path: Path, encoding: Optional[str] = None) -> list[str]:
    """Read the lines of a text file. Lines end with LF or CRLF; nothing else ends a line.

    Args:
        path: the file.
        encoding: default: UTF-8, with or without a byte order mark, or else Latin-1.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not in this encoding or is not text, or Python does not know the
            encoding.
    """
    content = path.read_bytes()
    try:
        text = content.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if encoding:
            raise ValueError(f"{path}: not in {encoding}: {error}") from error
        text = content.decode("latin-1")
    except LookupError as error:
        raise ValueError(f"--encoding: {error}") from error
    return split_lines(path, text)


def alignment_score(gold: Sequence[GoldLinks], proposed: Sequence[set[Link]]) -> AlignmentScore:
    """Compare the links of a corpus with its gold alignment, which must have a sure link.

    Raises:
        ValueError: the two have different numbers of sentences.
    """
    if len(gold) != len(proposed):
        raise ValueError(f"{len(gold)} sentences in the gold alignment, but {len(proposed)} here")
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


def summarize_readings(
    rates: Mapping[Reading, float], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Summarize the error rates of the heads of a model by kind of attention, normal and shifted.

    Args:
        rates: the rate of each reading.
        settings: the settings of the readings, as for :func:`link_files`.

    Returns:
        The result of :func:`summarize_layers` for each kind.
    """
    heads = [head for head in settings["heads"] if head != MEAN]
    return {
        kind: summarize_layers(
            [
                {
                    "layer": layer,
                    "average": rates.get((kind, layer, MEAN)),
                    "heads": {head: rates[kind, layer, head] for head in heads},
                }
                for layer in settings["layers"]
            ]
        )
        for kind in settings["attention"]
    }


def summarize_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize the error rates of the heads of a model, as ReLA compares them (Zhang, Titov,
    Sennrich 2021, "Sparse Attention with Linear Units", Fig. 4 and Table 5).

    Args:
        layers: for each layer ``layer``, its number; ``average``, the rate of the links from the
            mean of its heads, or None; ``heads``, the rate of each head by its number.

    Returns:
        ``layers``: for each layer ``layer``, ``average``, ``heads``, a list ordered by number,
        ``best_head``, the number of the best one, and ``best``, its rate. ``aoh``: the mean over
        the layers of the best head's rate; ``aol``: the mean of the layers' averages. None where
        a rate is missing.
    """
    rows, best = [], []
    for layer in layers:
        heads = dict(sorted(layer["heads"].items()))
        best_head = min(heads, key=heads.__getitem__, default=None)
        best.append(heads.get(best_head))
        rows.append(
            {
                **layer,
                "heads": list(heads.values()),
                "best_head": best_head,
                "best": best[-1],
            }
        )
    averages = [layer["average"] for layer in layers]
    return {"layers": rows, "aoh": _mean(best), "aol": _mean(averages)}


def _mean(rates: Sequence[Optional[float]]) -> Optional[float]:
    return None if None in rates else sum(rates) / len(rates)


def _parse(path: Path, encoding: Optional[str], parse: Callable[[str], Parsed]) -> list[Parsed]:
    result = []
    for number, line in enumerate(read_lines(path, encoding), start=1):
        try:
            result.append(parse(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return result
