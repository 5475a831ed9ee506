"""fairseq-sparse score-inflection: the shared task's figures, and output that does not fit."""

from __future__ import annotations

import gzip
import json
import shutil
from functools import cache
from math import comb
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.recipes.corpora.inflection_score import (
    Slot,
    baseline_table,
    compare,
    edit_distance,
)

# language, lemma, tags, form, guess
ITEMS = [
    ("german", "gehen", "V;PST", "ging weg", "ging weg"),
    ("german", "Haus", "N;PL", "Häuser", "Hauser"),
    ("german", "Hund", "N;PL", "Hunde", "Hunde"),
    ("german", "Tür", "N;PL", "Türen", ""),
    ("turkish", "ev", "N;PL", "evler", "evlerde"),
    ("turkish", "a\u00a0b", "N;SG", " x\u2028▁", "U+0020xU+2028U+2581"),
]
GUESS = f"D-1\t-0.5\t{ITEMS[1][4]}"
MESSAGE = "INFO:fairseq.logging.progress_bar:: 21 / 250\n"


@cache
def brute_force(first: str, second: str) -> int:
    """Compute the Levenshtein distance by its definition."""
    if not first or not second:
        return len(first) + len(second)
    if first[0] == second[0]:
        return brute_force(first[1:], second[1:])
    steps = (first[1:], second), (first, second[1:]), (first[1:], second[1:])
    return 1 + min(brute_force(*pair) for pair in steps)


@given(st.text("abą", max_size=6), st.text("abą", max_size=6))
def test_edit_distance(first: str, second: str) -> None:
    assert edit_distance(first, second) == brute_force(first, second)


def as_printed(form: str) -> str:
    return form.replace(" x\u2028▁", "U+0020xU+2028U+2581").replace("ś", "<<unk>>")


def generated(order: list[int], items=ITEMS, without: tuple[int, ...] = ()) -> str:
    """Return output as of fairseq-generate, in the given order of decoding."""
    lines = ["2024-01-01 00:00:00 | INFO | fairseq_cli.generate | T-1", "D-day", "T-x\tD-0\t"]
    for number in order:
        *_, form, guess = items[number]
        lines += [f"S-{number}\ttag=N", f"T-{number}\t{as_printed(form)}"]
        if number not in without:
            lines += [f"H-{number}\t-0.5\tx", f"D-{number}\t-0.5\t{guess}", f"P-{number}\t-0.5"]
            lines += [f"D-{number}\t-0.9\tsecond best"]
    return "".join(line + "\n" for line in lines)


def score(folder: Path, output: str, items=ITEMS) -> int:
    (folder / "out").write_bytes(output.encode())
    reference = "".join("\t".join(item[:4]) + "\n" for item in items)
    (folder / "test.tsv").write_bytes(reference.encode())
    return cli.run(
        "score-inflection",
        [str(folder / "out"), "--reference", str(folder / "test.tsv")]
        + ["--guesses", str(folder / "guesses"), "--json", str(folder / "accuracy.json")],
    )


def test_figures_of_each_language_and_their_means(tmp_path: Path, capsys) -> None:
    assert score(tmp_path, generated([3, 0, 5, 2, 4, 1])) == 0
    written = json.loads((tmp_path / "accuracy.json").read_text())
    german = {"accuracy": 50, "edit_distance": (0 + 1 + 0 + 5) / 4, "items": 4}
    turkish = {"accuracy": 50, "edit_distance": (2 + 0) / 2, "items": 2}
    assert written["languages"]["german"] == {**german, "without_guess": 0}
    assert written["languages"]["turkish"] == {**turkish, "without_guess": 0}
    # The mean over the languages is not that over the items.
    assert written["edit_distance"] == pytest.approx((1.5 + 1) / 2)
    assert (written["accuracy"], written["items"], written["without_guess"]) == (50, 6, 0)
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells["german"] == ["50.00", "1.50", "4", "0"]
    assert cells["all"] == ["50.00", "1.25", "6", "0"]


def test_an_item_without_a_guess_is_wrong_and_named(tmp_path: Path, capsys) -> None:
    assert score(tmp_path, generated([0, 1, 2, 3, 4, 5], without=(2,))) == 0
    assert "1 items, such as german Hund N;PL" in capsys.readouterr().err
    german = json.loads((tmp_path / "accuracy.json").read_text())["languages"]["german"]
    assert (german["accuracy"], german["without_guess"]) == (25, 1)
    assert german["edit_distance"] == (0 + 1 + len("Hunde") + 5) / 4


def test_guesses_in_the_format_of_the_shared_task(tmp_path: Path) -> None:
    score(tmp_path, generated([5, 4, 3, 2, 1, 0], without=(2,)))
    assert (tmp_path / "guesses" / "german-out").read_bytes().decode().split("\n") == [
        "gehen\tging weg\tV;PST",
        "Haus\tHauser\tN;PL",
        "Hund\t\tN;PL",
        "Tür\t\tN;PL",
        "",
    ]
    turkish = (tmp_path / "guesses" / "turkish-out").read_bytes().decode()
    assert turkish == "ev\tevlerde\tN;PL\na\u00a0b\t x\u2028▁\tN;SG\n"


def test_of_a_lemma_with_the_same_tags_twice_the_last_counts(tmp_path: Path) -> None:
    """The official evaluation does the same: it keeps forms by lemma and tags."""
    items = [("german", "Wort", "N;PL", form, guess) for form, guess in (("a", "a"), ("b", "a"))]
    score(tmp_path, generated([0, 1], items), items)
    german = json.loads((tmp_path / "accuracy.json").read_text())["languages"]["german"]
    assert (german["accuracy"], german["items"]) == (0, 1)


def test_a_character_that_the_model_does_not_know_is_no_error(tmp_path: Path) -> None:
    items = [("polish", "źle", "ADV", "gorzejś", "gorzej")]
    assert score(tmp_path, generated([0], items), items) == 0
    assert json.loads((tmp_path / "accuracy.json").read_text())["edit_distance"] == 1


def test_a_folder_of_guesses_is_scored_like_the_output_that_it_came_from(tmp_path: Path) -> None:
    score(tmp_path, generated([0, 1, 2, 3, 4, 5]))
    expected = json.loads((tmp_path / "accuracy.json").read_text())
    plain = tmp_path / "guesses" / "german-out"
    (tmp_path / "guesses" / "german-out.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    command = [str(tmp_path / "guesses"), "--reference", str(tmp_path / "test.tsv")]
    assert cli.run("score-inflection", [*command, "--json", str(tmp_path / "again.json")]) == 0
    # An empty guess is none in the shared task's format.
    german = expected["languages"]["german"]
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["languages"]["german"] == {**german, "without_guess": 1}
    assert again["accuracy"] == expected["accuracy"]


def test_a_folder_of_guesses_for_other_items_is_refused(tmp_path: Path, capsys) -> None:
    score(tmp_path, generated([0, 1, 2, 3, 4, 5]))
    path = tmp_path / "guesses" / "turkish-out"
    for lines in ("", "ev\tevler\n", "ev\tevler\tN;SG\na\u00a0b\tx\tN;SG\n"):
        path.write_text(lines)
        command = [str(tmp_path / "guesses"), "--reference", str(tmp_path / "test.tsv")]
        assert cli.run("score-inflection", command) == 1
        assert str(tmp_path / "guesses") in capsys.readouterr().err


@pytest.mark.parametrize("read", ["own", "base"])
def test_guesses_that_are_read_are_not_replaced(read: str, tmp_path: Path, capsys) -> None:
    score(tmp_path, generated([0, 1, 2, 3, 4, 5], ITEMS), ITEMS)
    command = ["score-inflection", str(tmp_path / "guesses")]
    command += ["--reference", str(tmp_path / "test.tsv"), "--guesses"]
    assert cli.main([*command, str(tmp_path / "own")]) == 0
    capsys.readouterr()
    shutil.copytree(tmp_path / "own", tmp_path / "base")
    for path in (tmp_path / "base").iterdir():
        path.write_text(path.read_text().replace("e", "x"))
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    command[1] = str(tmp_path / "own")
    command += [str(tmp_path / read), "--baseline", str(tmp_path / "base")]
    assert_refused(capsys, "--guesses", cli.main, command)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*")} == before


def test_a_baseline_is_tested_over_all_items(tmp_path: Path) -> None:
    better = [(*item[:4], item[3]) for item in ITEMS[:4]] + [(*ITEMS[4][:4], "ev"), ITEMS[5]]
    score(tmp_path, generated([0, 1, 2, 3, 4, 5], better), better)
    (tmp_path / "base").write_text(generated([5, 4, 3, 2, 1, 0]))
    command = [str(tmp_path / "guesses"), "--reference", str(tmp_path / "test.tsv")]
    command += ["--baseline", str(tmp_path / "base"), "--json", str(tmp_path / "tested.json")]
    assert cli.run("score-inflection", command) == 0
    assert json.loads((tmp_path / "tested.json").read_text())["baseline"] == {
        "right_alone": 2,
        "baseline_right_alone": 0,
        "p": 0.5,
        "languages_ahead": 1,
        "languages_behind": 0,
    }


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 3))
def test_mcnemars_test_counts_the_splits_that_are_as_uneven(more: int, fewer: int, both: int):
    own = dict(enumerate("x" * more + "y" * fewer + "x" * both))
    other = dict(enumerate("y" * more + "x" * fewer + "x" * both))
    items = [(Slot("german", str(number), "N"), "x") for number in own]
    result = compare(items, own, other)
    total = more + fewer
    uneven = [k for k in range(total + 1) if abs(2 * k - total) >= abs(more - fewer)]
    assert result["p"] == pytest.approx(sum(comb(total, k) for k in uneven) / 2**total)
    assert (result["right_alone"], result["baseline_right_alone"]) == (more, fewer)


def test_a_p_too_small_for_a_number_is_not_shown_as_zero():
    own = dict.fromkeys(range(3000), "x")
    items = [(Slot("german", str(number), "N"), "x") for number in own]
    _, [cells] = baseline_table({"baseline": compare(items, own, {})})
    assert cells[2].startswith("<")


@pytest.mark.parametrize(
    "output",
    [
        generated([0, 1, 2, 3, 4]),
        generated([0, 1, 2, 3, 4, 5]).replace("Türen", "T ü r e n"),
        generated([0, 1, 2, 3, 4, 5]).replace("\tging weg", "\tlief"),
        "nothing\n",
        *(
            generated([0, 1, 2, 3, 4, 5]).replace(GUESS, GUESS[:place] + MESSAGE + GUESS[place:])
            for place in range(1, len(GUESS))
        ),
    ],
    ids=["fewer", "as units", "another form", "none", *(["cut by the log"] * (len(GUESS) - 1))],
)
def test_what_does_not_fit_is_refused(output: str, tmp_path: Path, capsys) -> None:
    assert score(tmp_path, output) == 1
    assert str(tmp_path / "out") in capsys.readouterr().err
    assert not (tmp_path / "accuracy.json").exists() and not (tmp_path / "guesses").exists()
