"""fairseq-sparse compare: scores and tests of several systems, and lists of sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sacrebleu.metrics import TER

from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.text.scores import score_systems

TEXTS = {
    "src": ["der Hund", "die Katze", "das Tor", "ein Haus"],
    "ref": ["the dog", "the cat", "the gate", "a house"],
    "one": ["the dog", "a cow", "the gate", "a house of stone"],
    "two": ["a frog", "the cat", "the gate", "a house !"],
    "three": ["the dog", "the cat", "the gate", "a house"],
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: str(tmp_path / name) for name in TEXTS}


def test_all_systems_are_scored_and_tested_against_the_first(files, tmp_path, capsys) -> None:
    systems = [f"a={files['one']}", f"b={files['two']}", files["three"]]
    how = ["--reference", files["ref"], "--metrics", "ter", "--trials", "40"]
    assert (
        cli.run("compare", [*systems, *how, "--by-frequency", files["ref"], "--format", "json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    texts = [TEXTS[name] for name in ("one", "two", "three")]
    (expected,) = score_systems(texts, [TEXTS["ref"]], [TER()], 40)
    names = ("a", "b", "three")
    assert found["scores"] == {
        name: {"TER": score} for name, score in zip(names, expected.scores, strict=True)
    }
    assert found["p"] == {name: {"TER": p} for name, p in zip(names[1:], expected.p, strict=True)}
    assert [found["by_frequency"][name][2]["f1"] for name in names][2] == 1
    assert cli.run("compare", [*systems, *how, "--format", "tsv"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["system", "TER", "p"]
    assert [row[:2] for row in rows[1:4]] == [
        [name, f"{score:.2f}"] for name, score in zip(names, expected.scores, strict=True)
    ]


def test_sentences_come_in_two_lists(files, tmp_path, capsys) -> None:
    command = [f"a={files['one']}", f"b={files['two']}", "--reference", files["ref"]]
    command += ["--sentences", "1", "--json", str(tmp_path / "x.json"), "--trials", "9"]
    for source in ([], ["--source", files["src"]]):
        assert cli.run("compare", [*command, *source]) == 0
        printed = capsys.readouterr().out
        assert "3 sentences differ" in printed
        better, _, worse = printed.partition("a is better than b in 1:")
        assert "b is better than a in 2:" in better and "line 2," in better
        assert "line 4," not in printed and "line 1," in worse
        assert ("die Katze" in printed) == bool(source)
        found = json.loads((tmp_path / "x.json").read_text())
        assert found["systems"] == ["a", "b"] and len(found["sentences"]) == 3
        assert found["sentences"][0]["difference"] > 0 > found["sentences"][-1]["difference"]


def test_what_does_not_fit_is_refused(files, tmp_path, capsys) -> None:
    short = tmp_path / "short"
    short.write_text("the dog\n")
    one, ref = files["one"], ["--reference", files["ref"]]
    assert_refused(capsys, "short", cli.run, "compare", [one, str(short), *ref])
    assert_refused(capsys, "short", cli.run, "compare", [one, "--reference", str(short)])
    split = tmp_path / "split"
    split.write_text("the do@@ g\nthe cat\nthe gate\na house\n")
    assert_refused(capsys, "split", cli.run, "compare", [one, str(split), *ref])
    assert_refused(capsys, "split", cli.run, "compare", [one, *ref, "--by-frequency", str(split)])
    assert_refused(capsys, "two systems", cli.run, "compare", [one, *ref, "--sentences", "1"])
