"""Samples from both ends of a ranking: drawing, what the sheet reveals, and the figures."""

import csv
import io
import json
from pathlib import Path
from typing import Optional

import pytest

from fairseq_sparse.commands import cli
from fairseq_sparse.sheets.annotation_sheets import SheetError
from fairseq_sparse.sheets.ranking_sample import (
    COLUMNS,
    draw_sample,
    read_answers,
    read_ranking,
    summarize_answers,
)

PAIRS = 60


@pytest.fixture
def ranking(tmp_path: Path) -> Path:
    """Write a table as analyze nulls does, with labels, the highest rate first."""
    lines = ["rank\tsentence\tnull_rate\tbad\tsource\ttarget"]
    lines += [
        f"{rank}\t{1000 + rank}\t{1 - rank / 100:.4f}\t0\t=Satz {rank}\tsentence {rank}"
        for rank in range(1, PAIRS + 1)
    ]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_pairs_are_of_both_ends_and_in_no_order(ranking: Path) -> None:
    rows = read_ranking(ranking)
    assert len(rows) == PAIRS
    drawn: dict[str, set[int]] = {"low": set(), "high": set()}
    for seed in range(30):  # each pair of an end has probability 1/2 in each sample
        sample = draw_sample(rows, 10, 20, seed=seed)
        for end, seen in drawn.items():
            ranks = {int(row["sentence"]) - 1000 for row in sample if row["end"] == end}
            assert len(ranks) == 10
            seen |= ranks
    assert drawn == {"high": set(range(1, 21)), "low": set(range(PAIRS - 19, PAIRS + 1))}
    sample = draw_sample(rows, 10, 20, seed=3)
    assert len({row["id"] for row in sample}) == 20
    ends = [row["end"] for row in sample]
    assert ends != sorted(ends) and ends != sorted(ends, reverse=True)
    assert sample == draw_sample(rows, 10, 20, seed=3) != draw_sample(rows, 10, 20, seed=4)


def test_chance_decides_between_equal_rates() -> None:
    fields = ("null_rate", "source", "target")
    rows = [{"sentence": str(n), **dict.fromkeys(fields, "0.0")} for n in range(PAIRS)]
    drawn = {
        (row["end"], int(row["sentence"]) // (PAIRS // 2))
        for seed in range(10)
        for row in draw_sample(rows, 10, 20, seed)
    }
    assert len(drawn) == 4  # both ends have pairs from both halves of the corpus


def test_from_the_ranking_to_the_shares(ranking: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "sheet"
    command = [str(ranking), "--output-folder", str(folder), "--pairs", "10", "--pool", "20"]
    assert cli.run("sheets draw-pairs", command) == 0
    text = (folder / "sheet.csv").read_bytes().decode("utf-8-sig")
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["id", "source", "target", "correct", "comment"] and len(rows) == 20
    assert all(row[1].startswith("[=Satz ") for row in rows)
    assert "0.9" not in text and "100" not in text  # neither a rate nor the number of a sentence
    sample = json.loads((folder / "key.json").read_text())["sample"]
    ends = {row["id"]: row["end"] for row in sample}
    high = 0
    for row in rows:
        row[3] = "yes"
        if ends[row[0]] == "high":
            high += 1
            row[3] = {1: "Yes ", 2: ""}.get(high, "no")
    with open(folder / "filled.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=";").writerows([header, *sorted(rows)])
    figures = tmp_path / "a.json"
    capsys.readouterr()
    command = [str(folder / "key.json"), str(folder / "filled.csv")]
    assert cli.run("sheets score-pairs", [*command, "--json", str(figures)]) == 0
    assert json.loads(figures.read_text()) == {
        "low": {"pairs": 10, "judged": 10, "correct": 1.0},
        "high": {"pairs": 10, "judged": 9, "correct": 1 / 9},
    }
    printed = capsys.readouterr().out
    assert "100.0" in printed and "11.1" in printed and "about 95" in printed


@pytest.mark.parametrize("sample", [None, [1], [{"id": "a"}]])
def test_what_is_no_key_is_refused(sample, tmp_path: Path, capsys) -> None:
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"sample": sample}))
    assert cli.run("sheets score-pairs", [str(key), str(tmp_path / "filled.csv")]) == 1
    assert f"{key} is not the key.json of sheets draw-pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1:], "1 rows are missing"),
        (lambda rows: [[*rows[0][:3], "maybe", ""], *rows[1:]], "'maybe'"),
        (lambda rows: [[*row[:3], "", ""] for row in rows], "no row has an answer"),
    ],
)
def test_a_sheet_that_is_refused(ranking: Path, change, message: str) -> None:
    sample = draw_sample(read_ranking(ranking), 5, 5, seed=1)
    rows = [[row["id"], row["source"], row["target"], "no", ""] for row in sample]

    def read(rows: list[list[str]]) -> dict[str, Optional[bool]]:
        text = io.StringIO()
        csv.writer(text).writerows([COLUMNS, *rows])
        return read_answers(text.getvalue(), sample)

    with pytest.raises(SheetError, match=message):
        read(change(rows))
    assert summarize_answers(sample, read(rows))["low"]["correct"] == 0


def test_what_is_no_ranking_is_refused(ranking: Path) -> None:
    with pytest.raises(SheetError, match="60 pairs"):
        draw_sample(read_ranking(ranking), 60, 5, seed=1)
    ranking.write_text("one\ttwo\n", encoding="utf-8")
    with pytest.raises(SheetError, match="analyze nulls"):
        read_ranking(ranking)
    for line in ("1\t2", "1\tx\ta\tb"):
        ranking.write_text(f"sentence\tnull_rate\tsource\ttarget\n{line}\n", encoding="utf-8")
        with pytest.raises(SheetError, match="line 2"):
            read_ranking(ranking)
