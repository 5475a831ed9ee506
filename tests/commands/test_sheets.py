"""fairseq-sparse sheets make and sheets score: from files to figures."""

import csv
import io
import json
from pathlib import Path

import pytest

import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli

SENTENCES = 12
SCORES = {"plain": 2, "fancy one": 3, "reference": 4}
SAME = 1


def write_lines(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"=SUM({number}); „{text}“\n" for number in range(SENTENCES)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Two systems: a recipe's run, and a file; the last sentence of both is the same."""
    run = write_lines(tmp_path / "Läufe 1" / "plain" / "hyp.detok.txt", "schlicht").parent
    other = write_lines(tmp_path / "other.txt", "schön")
    last = "same\n"
    for path in (run / "hyp.detok.txt", other):
        path.write_text("".join([*path.read_text("utf-8").splitlines(True)[:-1], last]), "utf-8")
    files = {name: write_lines(tmp_path / name, name) for name in ("source", "reference")}
    return [
        *(str(run), f"fancy one={other}", "--output-folder", str(tmp_path / "sheets")),
        *("--source", str(files["source"]), "--reference", str(files["reference"])),
        *("--sentences", "8", "--shared", "4"),
    ]


def fill(folder: Path, annotator: str, separator: str = ",", leave: int = 0) -> Path:
    """Fill in a sheet except its last rows; a word of each translation reveals its system."""
    text = (folder / f"{annotator}.csv").read_bytes().decode("utf-8-sig")
    table = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    words = {"schlicht": "2", "same": "1+", "schön": "3−", "reference": "4"}
    for cells in table[1 : len(table) - leave]:
        (cells[3],) = [score for word, score in words.items() if word in cells[2]]
    path = folder / f"{annotator} filled.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as handle:
        csv.writer(handle, delimiter=";").writerows(table)
    return path


@pytest.mark.parametrize("separator", ["comma", "semicolon"])
def test_from_files_to_figures(separator: str, arguments: list[str], tmp_path: Path) -> None:
    toy.command("sheets make", *arguments, "--separator", separator)
    folder = tmp_path / "sheets"
    sheets = [
        fill(folder, annotator, "," if separator == "comma" else ";")
        for annotator in ("annotator_2", "annotator_1")
    ]
    figures = tmp_path / "figures.json"
    result = toy.command("sheets score", folder / "key.json", *sheets, "--json", figures)
    summary = json.loads(figures.read_text("utf-8"))
    # All 12 sentences are drawn; the last one goes to one annotator or to both.
    for system, score in SCORES.items():
        both = summary["systems"][system]["both"]
        times = both["judgements"] - 15
        assert both["judgements"] == 16 and times == 1
        if system == "reference":
            assert both["mean"] == score
        else:
            assert both["mean"] in [(score * (16 - n) + SAME * n) / 16 for n in (1, 2)]
    assert summary["missing"] == {"annotator_1": 0, "annotator_2": 0}
    assert summary["agreement"]["kappa"] == summary["agreement"]["quadratic_kappa"] == 1
    rows = [line.split("|")[1].strip() for line in result.stdout.splitlines() if "|" in line]
    assert rows[2:] == ["fancy one", "plain", "reference"]
    fancy = summary["systems"]["fancy one"]["both"]
    assert fancy["marked_mean"] < fancy["mean"]


def test_files_for_annotators_do_not_name_the_systems(arguments, tmp_path: Path) -> None:
    assert cli.run("sheets make", arguments) == 0
    folder = tmp_path / "sheets"
    names = {"annotator_1.csv", "annotator_2.csv", "instructions.txt", "key.json"}
    assert {path.name for path in folder.iterdir()} == names
    for name in names - {"key.json"}:
        content = (folder / name).read_bytes()
        assert not any(word in content for word in (b"plain", b"fancy", b"hyp.detok", b"other.txt"))
        if name.endswith(".csv"):
            assert content.startswith(b'\xef\xbb\xbf"id"')
            assert b',"=' not in content and "„schön“".encode() in content


def test_annotators_see_no_subwords(arguments, tmp_path: Path, capsys) -> None:
    write_lines(tmp_path / "other.txt", "sch@@ ön")
    assert_refused(capsys, "@@", cli.run, "sheets make", arguments)


def test_nothing_is_overwritten(arguments, tmp_path: Path, capsys) -> None:
    assert cli.run("sheets make", arguments) == 0
    key = tmp_path / "sheets" / "key.json"
    before = key.read_bytes()
    assert cli.run("sheets make", arguments) == 0
    assert cli.run("sheets make", [*arguments, "--seed", "2"]) == 1
    assert key.read_bytes() == before
    assert str(key) in capsys.readouterr().err
    sheet = tmp_path / "sheets" / "annotator_2.csv"
    sheet.write_text("filled in", "utf-8")
    assert cli.run("sheets make", arguments) == 1
    assert sheet.read_text("utf-8") == "filled in"


@pytest.mark.parametrize("name", ["plain", "reference"])
def test_systems_of_one_name(name, arguments, tmp_path: Path, capsys) -> None:
    assert cli.run("sheets make", [f"{name}={tmp_path / 'other.txt'}", *arguments]) == 1
    assert f" {name}" in capsys.readouterr().err


def test_scores_may_be_empty_but_both_sheets_are_needed(arguments, tmp_path: Path, capsys) -> None:
    assert cli.run("sheets make", arguments) == 0
    folder = tmp_path / "sheets"
    first = fill(folder, "annotator_1")
    second = fill(folder, "annotator_2", leave=3)
    command = [str(folder / "key.json"), str(first), str(second)]
    assert cli.run("sheets score", command) == 0
    assert "3 of annotator_2" in capsys.readouterr().out
    assert_refused(capsys, "annotator_2", cli.run, "sheets score", command[:2])
    assert cli.run("sheets score", [*command[:2], "--partial"]) == 0
    capsys.readouterr()
    assert_refused(capsys, "annotator_1", cli.run, "sheets score", [*command[:2], str(first)])
