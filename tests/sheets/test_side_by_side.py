"""Sentences in two translations, with chrF by sacreBLEU itself."""

import json
from pathlib import Path

import pytest
import sacrebleu

from fairseq_sparse.commands.compare import main
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.sheets.side_by_side import as_text, compare

SOURCE = ["der Hund", "die Katze", "das Tor", "ein Haus"]
REFERENCE = ["the dog", "the cat", "the gate", "a house"]
FIRST = ["the dog", "a cow", "the gate", "a house of stone"]
SECOND = ["a frog", "the cat", "the gate", "a house !"]


def test_those_that_differ_are_sorted_by_how_much_better_the_second_is() -> None:
    pairs = compare(SOURCE, REFERENCE, FIRST, SECOND)
    assert [pair.number for pair in pairs][0] == 2 and pairs[-1].number == 1
    assert {pair.number for pair in pairs} == {1, 2, 4}
    for pair in pairs:
        place = pair.number - 1
        expected = [
            sacrebleu.sentence_chrf(text[place], [REFERENCE[place]]).score
            for text in (FIRST, SECOND)
        ]
        assert pair.scores == pytest.approx(expected)
        assert pair.difference == pytest.approx(expected[1] - expected[0])
    differences = [pair.difference for pair in pairs]
    assert differences == sorted(differences, reverse=True)
    text = as_text(pairs[:1], ["softmax", "relu"])
    assert text.splitlines()[1:] == [
        "  source     die Katze",
        "  reference  the cat",
        "  softmax    a cow",
        "  relu       the cat",
    ]


def test_texts_of_other_lengths_are_refused() -> None:
    with pytest.raises(AnalysisError, match="4, 4, 3, 4 lines"):
        compare(SOURCE, REFERENCE, FIRST[:3], SECOND)


def test_the_script_has_both_lists(tmp_path: Path, capsys) -> None:
    paths = {}
    for name, lines in (("src", SOURCE), ("ref", REFERENCE), ("one", FIRST), ("two", SECOND)):
        paths[name] = tmp_path / name
        paths[name].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [f"a={paths['one']}", f"b={paths['two']}", "--source", str(paths["src"])]
    command += ["--reference", str(paths["ref"]), "--most", "1", "--json", str(tmp_path / "x.json")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "3 sentences differ" in printed
    better, _, worse = printed.partition("a is better than b in 1:")
    assert "b is better than a in 2:" in better and "line 2," in better
    assert "line 4," not in printed and "line 1," in worse
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["systems"] == ["a", "b"] and len(found["sentences"]) == 3
