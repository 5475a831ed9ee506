"""fairseq-sparse mbr and analyze samples: reading samples, choosing, scoring, comparing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.text import scores
from fairseq_sparse.measure.text.scores import score_systems

WORDS = "the a big small red dog cat house , sees holds near . don't Über".split()


def text(randomly: random.Random) -> str:
    return " ".join(randomly.choices(WORDS, k=randomly.randint(3, 9)))


def printed(path: Path, samples: list[list[str]]) -> Path:
    """Write these samples as fairseq-generate --nbest prints them, in reversed order."""
    lines = ["2024-01-01 00:00:00 | INFO | fairseq_cli.generate | D-day"]
    for number in reversed(range(len(samples))):
        lines.append(f"S-{number}\tein Hund")
        for one in samples[number]:
            lines += [f"H-{number}\t-0.5\t{one} x", f"D-{number}\t-0.5\t{one}", f"P-{number}\t-0.5"]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def samples() -> list[list[str]]:
    randomly = random.Random(1)
    texts = [[text(randomly) for _ in range(4)] for _ in range(30)]
    return [randomly.choices(few, k=10) for few in texts]


def naive(samples: list[str], score) -> str:
    def expected(one: str) -> float:
        return sum(score(one, [other]).score for other in samples)

    return max(samples, key=expected)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_best_sample_of_each_sentence_is_written(utility, samples, tmp_path, capsys):
    files = [
        str(printed(tmp_path / name, [sentence[part] for sentence in samples]))
        for name, part in (("a", slice(0, 6)), ("b", slice(6, 10)))
    ]
    output, result = tmp_path / "out", tmp_path / "out.json"
    arguments = [*files, "--output", str(output), "--json", str(result), "--utility", utility]
    assert cli.run("mbr", [*arguments, "--utilities"]) == 0
    score = {"chrf": sacrebleu.sentence_chrf, "bleu": sacrebleu.sentence_bleu}[utility]
    chosen = output.read_text("utf-8").split("\n")
    assert chosen == [*(naive(sentence, score) for sentence in samples), ""]
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()[:-1]]
    written = json.loads(result.read_text())
    for number, (drawn, row) in enumerate(zip(samples, written["sentences"], strict=True)):
        mine = [row[1:] for row in rows if row[0] == f"U-{number}"]
        assert row["samples"] == 10 == sum(int(count) for _, count, _ in mine)
        assert row["different"] == len(set(drawn)) == len(mine)
        assert row["drawn"] == drawn.count(chosen[number]) and mine[0][2] == chosen[number]
        expected = sum(score(chosen[number], [other]).score for other in drawn) / 10
        assert row["expected_utility"] == pytest.approx(expected)
        assert float(mine[0][0]) == pytest.approx(expected, abs=1e-4)


def test_the_result_is_scored_and_compared_as_sacrebleu_does(samples, tmp_path, capsys):
    randomly = random.Random(2)
    references = [sentence[0] for sentence in samples]
    baseline = [text(randomly) for _ in samples]
    for name, lines in (("ref", references), ("base", baseline)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), "utf-8")
    file, output = printed(tmp_path / "a", samples), tmp_path / "out"
    arguments = [str(file), "--output", str(output), "--json", str(tmp_path / "json")]
    arguments += ["--reference", str(tmp_path / "ref")]
    assert cli.run("mbr", arguments) == 0
    hypotheses = output.read_text("utf-8").splitlines()
    expected = {
        "BLEU": sacrebleu.corpus_bleu(hypotheses, [references]).score,
        "chrF2": sacrebleu.corpus_chrf(hypotheses, [references]).score,
    }
    written = json.loads((tmp_path / "json").read_text())
    assert written["scores"] == {"mbr": pytest.approx(expected)} and not written["p"]
    assert f"| {expected['BLEU']:.2f} |" in capsys.readouterr().out

    arguments += ["--baseline", str(tmp_path / "base"), "--trials", "50"]
    assert cli.run("mbr", arguments) == 0
    written = json.loads((tmp_path / "json").read_text())
    metrics = [CHRF(), BLEU(force=True)]
    found = score_systems([baseline, hypotheses], [references], metrics, 50)
    for place, system in enumerate(("baseline", "mbr")):
        assert written["scores"][system] == {each.metric: each.scores[place] for each in found}
    assert written["scores"]["mbr"] == pytest.approx(expected)
    assert written["p"] == {"mbr": {each.metric: each.p[0] for each in found}}
    assert written["signatures"] == {each.metric: each.signature for each in found}
    assert "ar:50" in written["signatures"]["BLEU"]


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: folder / "a",
        lambda folder: printed(folder / "c", [["x"]]),
        lambda folder: printed(folder / "c", [[], ["x"]]),
        lambda folder: folder / "ref",
    ],
    ids=["the same", "fewer", "incomplete", "no samples"],
)
def test_samples_that_do_not_fit_are_refused(change, samples, tmp_path, capsys):
    printed(tmp_path / "a", samples)
    (tmp_path / "ref").write_text("x\n")
    second = tmp_path / "b"
    second.write_bytes(change(tmp_path).read_bytes())
    output = tmp_path / "out"
    arguments = [str(tmp_path / "a"), str(second), "--output", str(output)]
    assert_refused(capsys, second, cli.run, "mbr", arguments)
    assert not output.exists()


def test_equal_samples_of_a_model_that_is_certain_are_taken(tmp_path):
    files = [str(printed(tmp_path / name, [["x", "x"], ["y y", "y y"]])) for name in "ab"]
    assert cli.run("mbr", [*files, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "x\ny y\n"


def test_translations_are_kept_if_they_cannot_be_scored(samples, tmp_path, monkeypatch):
    file, output, reference = printed(tmp_path / "a", samples), tmp_path / "out", tmp_path / "ref"
    reference.write_text("x\n" * len(samples))
    arguments = [str(file), "--output", str(output), "--reference", str(reference)]
    monkeypatch.setattr(scores, "score_systems", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.run("mbr", arguments)
    assert len(output.read_text("utf-8").splitlines()) == len(samples)


def test_a_reference_of_other_sentences_is_refused(samples, tmp_path, capsys):
    file, output = printed(tmp_path / "a", samples), tmp_path / "out"
    (tmp_path / "ref").write_text("x\n")
    arguments = [str(file), "--output", str(output), "--reference", str(tmp_path / "ref")]
    assert_refused(capsys, tmp_path / "ref", cli.run, "mbr", arguments)
    arguments = [str(file), "--output", str(output), "--baseline", str(file)]
    assert_refused(capsys, "--reference", cli.run, "mbr", arguments)
    assert not output.exists()


def test_subwords_are_not_scored_as_words(samples, tmp_path, capsys):
    split = [[text.replace(" ", "@@ ", 1) for text in sentence] for sentence in samples]
    reference = tmp_path / "reference"
    reference.write_text("".join(sentence[0] + "\n" for sentence in samples), encoding="utf-8")
    words = [str(printed(tmp_path / "a", split)), "--output", str(tmp_path / "out")]
    assert_refused(capsys, "@@", cli.run, "mbr", [*words, "--reference", str(reference)])


def test_statistics_of_samples_and_of_text(tmp_path, capsys):
    printed(tmp_path / "a", [["a a b", "c"], ["d"]])
    (tmp_path / "human").write_text("a b c d\n")
    arguments = [f"sparse={tmp_path / 'a'}", "--text", str(tmp_path / "human")]
    assert cli.run("analyze samples", [*arguments, "--json", str(tmp_path / "json")]) == 0
    sparse, human = json.loads((tmp_path / "json").read_text())["rows"]
    assert (sparse["name"], sparse["samples"], sparse["tokens"]) == ("sparse", 3, 8)  # H has an x
    assert sparse["repetition"] == 1 / 8 and human["repetition"] == 0
    assert (human["name"], human["samples"], human["distinct_1"]) == ("human", 1, 1)
    assert " 12.50 " in capsys.readouterr().out
    (tmp_path / "empty").write_text("")
    assert cli.run("analyze samples", ["--text", str(tmp_path / "empty")]) == 1
    with pytest.raises(SystemExit):
        cli.run("analyze samples", [])
