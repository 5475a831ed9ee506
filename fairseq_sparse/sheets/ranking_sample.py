"""Pairs from the top and the bottom of a corpus ranked by null attention, for people to judge.

Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units", section 5.2: of 100 pairs drawn
from the 10,000 with the lowest null rate, about 95 % were correct translations; of 100 from the
10,000 with the highest, about 1 %.

The sheet is a CSV file for spreadsheet programs, like those of :mod:`annotation_sheets`; it does
not show which end a pair is from.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_sparse.files import lines_of
from fairseq_sparse.sheets.annotation_sheets import SheetError, as_csv, new_id, read_rows

COLUMNS = ("id", "source", "target", "correct", "comment")
ANSWERS = {"yes": True, "y": True, "1": True, "no": False, "n": False, "0": False}
# The ends of the ranking, by the null rate.
LOW, HIGH = "low", "high"


def read_ranking(path: Path) -> list[dict[str, str]]:
    """Return the pairs in a table of ``fairseq-sparse analyze nulls``, highest rate first."""
    header, *lines = [line.split("\t") for line in lines_of(path)] or [[]]
    if not {"sentence", "null_rate", "source", "target"} <= set(header):
        raise SheetError(f"{path} is not a table of fairseq-sparse analyze nulls: {header}")
    for number, cells in enumerate(lines, start=2):
        if len(cells) != len(header):
            raise SheetError(f"{path}, line {number}: {len(cells)} cells, not {len(header)}")
        rate = cells[header.index("null_rate")]
        try:
            float(rate)
        except ValueError as error:
            raise SheetError(f"{path}, line {number}: null_rate is {rate!r}") from error
    return [dict(zip(header, cells, strict=True)) for cells in lines]


def draw_sample(
    ranking: Sequence[Mapping[str, str]], pairs: int, ends: int, seed: int
) -> list[dict[str, str]]:
    """Draw pairs from both ends of a ranking, and shuffle them. Chance decides which of the pairs
    with the same null rate belong to an end.

    Args:
        pairs: number of pairs to draw from each end.
        ends: number of pairs in each end.

    Returns:
        For each pair ``id``, ``end`` (``low`` or ``high``), ``sentence``, ``null_rate``, ``source``
        and ``target``.

    Raises:
        SheetError: the ranking has too few pairs for two ends, or an end has too few.
    """
    if pairs > ends:
        raise SheetError(f"{pairs} pairs cannot be drawn from the {ends} of an end")
    if 2 * ends > len(ranking):
        raise SheetError(
            f"the ranking has {len(ranking)} pairs: too few for two ends of {ends}; reduce --pool"
        )
    draw = random.Random(seed)
    rows = draw.sample(ranking, len(ranking))
    rows.sort(key=lambda row: -float(row["null_rate"]))
    chosen = [(HIGH, row) for row in draw.sample(rows[:ends], pairs)]
    chosen += [(LOW, row) for row in draw.sample(rows[-ends:], pairs)]
    draw.shuffle(chosen)
    used: set[str] = set()
    names = ("sentence", "null_rate", "source", "target")
    return [
        {"id": new_id(draw, used), "end": end, **{name: row[name] for name in names}}
        for end, row in chosen
    ]


def sample_of(key: Mapping[str, Any], path: Path) -> list[dict[str, str]]:
    """Return the sample in a key that was written with a sheet, the content of ``path``."""
    sample = key.get("sample")
    if not isinstance(sample, list) or not all(
        isinstance(row, dict) and {"id", "end"} <= row.keys() for row in sample
    ):
        raise SheetError(f"{path} is not the key.json of sheets draw-pairs")
    return sample


def sheet(sample: Sequence[Mapping[str, str]], separator: str) -> str:
    """Return the CSV file for the judge, who fills in the column ``correct``."""
    rows = [(row["id"], row["source"], row["target"]) for row in sample]
    return as_csv(COLUMNS, rows, separator)


def read_answers(text: str, sample: Sequence[Mapping[str, str]]) -> dict[str, Optional[bool]]:
    """Return whether each pair is a correct translation, by its id; None for an empty answer.

    Raises:
        SheetError: as :func:`read_rows`, or an answer is neither yes nor no, or all are empty.
    """
    _, rows = read_rows(text, COLUMNS, {"sheet": {row["id"] for row in sample}})
    answers: dict[str, Optional[bool]] = {}
    for row_id, (place, cells) in rows.items():
        answer = cells["correct"].strip().lower()
        if answer and answer not in ANSWERS:
            raise SheetError(f"{place}: {answer!r} is neither yes nor no")
        answers[row_id] = ANSWERS.get(answer)
    if all(answer is None for answer in answers.values()):
        raise SheetError("no row has an answer")
    return answers


def summarize_answers(
    sample: Sequence[Mapping[str, str]], answers: Mapping[str, Optional[bool]]
) -> dict[str, Any]:
    """Return for each end how many pairs were judged, and the share of them that is correct."""
    result = {}
    for end in (LOW, HIGH):
        judged = [answers[row["id"]] for row in sample if row["end"] == end]
        given = [answer for answer in judged if answer is not None]
        share = sum(given) / len(given) if given else None
        result[end] = {"pairs": len(judged), "judged": len(given), "correct": share}
    return result


def answers_table(
    summary: Mapping[str, Mapping[str, Any]],
) -> tuple[list[str], list[list[object]]]:
    """Return header and rows of :func:`summarize_answers`, with the paper's figures."""
    papers = {LOW: "about 95", HIGH: "about 1"}
    rows = [
        [f"{end}est null rates", part["pairs"], part["judged"]]
        + ["-" if part["correct"] is None else f"{100 * part['correct']:.1f}", papers[end]]
        for end, part in summary.items()
    ]
    header = ["pairs with the", "drawn", "judged", "correct (%)", "WMT'14 En-De in the paper (%)"]
    return header, rows
