"""fairseq-sparse score: order, missing sentences, and the score itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.text.scores import score_systems

HYPOTHESES = ["A dog runs across the street.", "", "Two men\u2028sit; 'tis a bench.", "A red ball."]
REFERENCES = ["A dog runs over the street.", "A man.", "Two men sit on a bench.", "A Red ball."]


def generated(order: list[int], hypotheses: list[str] = HYPOTHESES) -> str:
    """fairseq-generate's output, in the order in which it decoded."""
    lines = ["2024-01-01 00:00:00 | INFO | fairseq_cli.generate | D-day"]
    for number in order:
        text = hypotheses[number]
        lines += [f"S-{number}\tein Hund", f"T-{number}\ta dog", f"H-{number}\t-0.5\t{text} x"]
        lines += [f"D-{number}\t-0.5\t{text}", f"P-{number}\t-0.5 -0.5"]
        lines += [f"D-{number}\t-0.9\tsecond best"]
    return "".join(line + "\n" for line in lines)


def score(folder: Path, output: str, references: list[str] = REFERENCES, *options: str):
    (folder / "out").write_bytes(output.encode())
    (folder / "ref").write_bytes("".join(line + "\n" for line in references).encode())
    files = (folder / "out", "--reference", folder / "ref")
    files += ("--output", folder / "hyp", "--json", folder / "bleu.json")
    return toy.command("score", *files, *options, check=False, together=True)


def test_order_is_restored_and_score_is_sacrebleu(tmp_path: Path) -> None:
    result = score(tmp_path, generated([2, 0, 3, 1]))
    assert result.returncode == 0, result.stdout
    assert (tmp_path / "hyp").read_bytes().decode().split("\n") == [*HYPOTHESES, ""]
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    written = json.loads((tmp_path / "bleu.json").read_text())
    assert written["bleu"] == pytest.approx(expected)
    assert written["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert f"chrF2 = {written['chrf']:.2f}  {written['chrf_signature']}\n" in result.stdout
    assert written["empty_translations"] == 1
    assert written["signature"] in result.stdout and f"{expected:.2f}" in result.stdout


def test_tokens_are_scored_as_they_are(tmp_path: Path) -> None:
    """A full stop attached to a word makes a different token."""
    references = ["A dog runs across the street .", "", "Two men\u2028sit; 'tis a bench .", "x"]
    result = score(tmp_path, generated([0, 1, 2, 3]), references, "--tokenize", "none")
    assert result.returncode == 0, result.stdout
    written = json.loads((tmp_path / "bleu.json").read_text())
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [references], tokenize="none", force=True)
    assert written["bleu"] == pytest.approx(expected.score)
    assert written["bleu"] < sacrebleu.corpus_bleu(HYPOTHESES, [references]).score
    assert "tok:none" in written["signature"]


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    """Write translations in each of their forms, and references; return the paths."""
    lines = "".join(f"{line}\n" for line in HYPOTHESES)
    contents = {
        "generated": generated([2, 0, 3, 1]),
        "plain": lines,
        "run/hyp.detok.txt": lines,
        "other": "A dog.\nA man.\nTwo men sit.\nA ball is red.\n",
        "ref": "".join(f"{line}\n" for line in REFERENCES),
        "second": "".join(f"{line} again\n" for line in REFERENCES),
    }
    (tmp_path / "run").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_text(content, "utf-8")
    return {name.split("/")[0]: str(tmp_path / name.split("/")[0]) for name in contents}


def printed(capfd, *arguments: str) -> dict:
    assert cli.run("score", [*arguments, "--format", "json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_translations_have_several_forms_and_nothing_is_written_unasked(
    texts, tmp_path, capfd
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    forms = [texts[name] for name in ("generated", "plain", "run")]
    found = [printed(capfd, form, "--reference", texts["ref"]) for form in forms]
    assert found[0]["bleu"] == pytest.approx(expected) and found[1:] == found[:2]
    for more in ([], ["-"]):
        command = ["score", *more, "--reference", texts["ref"]]
        result = toy.command(*command, input=generated([2, 0, 3, 1]))
        assert f"BLEU = {expected:.2f}  " in result.stdout
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_metrics_and_several_references_are_those_of_sacrebleu(texts, capfd) -> None:
    references = ["--reference", texts["ref"], texts["second"]]
    command = [texts["plain"], *references, "--metrics", "ter", "bleu"]
    found = printed(capfd, *command, "--tokenize", "intl")
    both = [REFERENCES, [f"{line} again" for line in REFERENCES]]
    assert found["ter"] == pytest.approx(sacrebleu.corpus_ter(HYPOTHESES, both).score)
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, both, tokenize="intl").score
    assert found["bleu"] == pytest.approx(bleu) and "nrefs:2" in found["signature"]
    assert "chrf" not in found
    assert cli.run("score", [*command, "--tokenize", "nonsense"]) == 1
    assert "13a" in capfd.readouterr().err


def test_the_translations_of_a_baseline_are_not_overwritten(tmp_path: Path, capsys) -> None:
    baseline = tmp_path / "run" / "hyp.detok.txt"
    baseline.parent.mkdir()
    for path in (baseline, tmp_path / "out", tmp_path / "ref"):
        path.write_text("A dog.\n")
    files = [str(tmp_path / "out"), "--reference", str(tmp_path / "ref")]
    with pytest.raises(SystemExit):
        cli.run("score", [*files, "--baseline", str(baseline.parent), "--output", str(baseline)])
    assert str(baseline) in capsys.readouterr().err
    assert baseline.read_text() == "A dog.\n"


def test_the_difference_from_a_baseline_is_tested(texts, capfd) -> None:
    baseline = ["--baseline", texts["other"], "--trials", "50"]
    found = printed(capfd, texts["generated"], "--reference", texts["ref"], *baseline)
    alone = printed(capfd, texts["other"], "--reference", texts["ref"])
    names = ("bleu", "chrf")
    assert found["baseline"] == {name: pytest.approx(alone[name]) for name in names}
    others = Path(texts["other"]).read_text().splitlines()
    metrics = [BLEU(), CHRF()]
    tests = score_systems([others, HYPOTHESES], [REFERENCES], metrics, 50)
    assert found["p"] == dict(zip(names, (test.p[0] for test in tests), strict=True))
    assert "ar:50" in found["signature"]


def test_f1_by_training_frequency(texts, tmp_path, capfd) -> None:
    training = tmp_path / "train"
    training.write_text("A dog runs. A man.\n" * 6)
    options = ["--reference", texts["ref"], "--by-frequency", str(training)]
    found = printed(capfd, texts["plain"], *options)["by_frequency"]
    # "A" (12 times): all three translations that have it; "dog runs man" (6 times): "man" is
    # missing; the full stop (12 times) is a word.
    assert [bucket["least"] for bucket in found] == [0, 1, 2, 10, 100, 1000]
    assert found[2] == {
        **{"least": 2, "most": 9, "matched": 2, "translated": 2, "reference": 3, "f1": 0.8}
    }
    assert cli.run("score", [texts["plain"], *options]) == 0
    assert "| 2 to 9 " in capfd.readouterr().out
    two = ["--reference", texts["ref"], texts["second"]]
    assert cli.run("score", [texts["plain"], *options, *two]) == 1
    training.write_text("")
    assert cli.run("score", [texts["plain"], *options]) == 1
    assert str(training) in capfd.readouterr().err


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Compute BLEU as multi-bleu.perl does: clipped n-gram precisions, without smoothing."""
    right, total = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(4):
            ours, theirs = (
                Counter(zip(*(text.split()[k:] for k in range(n + 1)), strict=False))
                for text in (hypothesis, reference)
            )
            right[n] += (ours & theirs).total()
            total[n] += ours.total()
    if not all(right):
        return 0.0
    lengths = [sum(len(text.split()) for text in side) for side in (hypotheses, references)]
    penalty = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    logs = [math.log(r / t) for r, t in zip(right, total, strict=True)]
    return 100 * penalty * math.exp(sum(logs) / 4)


def test_a_second_score_is_that_of_multi_bleu(tmp_path: Path) -> None:
    tokens = ["A dog runs over the street . y", "A man . x"]
    tokens += ["Two men sit on it x", "a red ball . x"]
    hypotheses = ["A dog runs over the street .", "A man .", "Two men sit", "A red ball ."]
    (tmp_path / "tokens").write_text("".join(f"{line}\n" for line in tokens))
    options = ("--tokenized-reference", tmp_path / "tokens")
    result = score(tmp_path, generated([2, 0, 3, 1], hypotheses), REFERENCES, *options)
    assert result.returncode == 0, result.stdout
    written = json.loads((tmp_path / "bleu.json").read_text())
    with_ends = [f"{text} x" for text in hypotheses]  # the lines H-ID
    assert written["tokenized_bleu"] == pytest.approx(multi_bleu(with_ends, tokens))
    assert 0 < written["tokenized_bleu"] < 100
    assert {"tok:none", "case:mixed"} <= {*written["tokenized_signature"].split("|")}
    lower = [[text.lower() for text in texts] for texts in (with_ends, tokens)]
    assert written["lowercased_bleu"] == pytest.approx(multi_bleu(*lower))
    assert written["lowercased_bleu"] > written["tokenized_bleu"]
    assert "case:lc" in written["lowercased_signature"]
    assert written["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score)
    assert f"BLEU of tokens = {written['tokenized_bleu']:.2f}" in result.stdout
    # Without any 4-gram in common the score is 0.
    (tmp_path / "tokens").write_text("".join(f"{line[::-1]}\n" for line in tokens))
    score(tmp_path, generated([2, 0, 3, 1], hypotheses), REFERENCES, *options)
    assert json.loads((tmp_path / "bleu.json").read_text())["tokenized_bleu"] == 0
    # In a run's folder, the translations may be of more sentences than the lines H-ID.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "hyp.detok.txt").write_text("".join(f"{x}\n" for x in hypotheses))
    (tmp_path / "run" / "generate-test.txt").write_text(generated([2, 0, 1], hypotheses[:3]))
    arguments = [tmp_path / "run", "--reference", tmp_path / "tokens", *options]
    assert cli.run("score", list(map(str, arguments))) == 1
    (tmp_path / "tokens").write_text("one line\n")
    result = score(tmp_path, generated([0, 1, 2, 3]), REFERENCES, *options)
    assert result.returncode == 1 and str(tmp_path / "tokens") in result.stdout


def test_subwords_are_refused(tmp_path: Path, capsys) -> None:
    marked = ["the ba@@ kers", "cut", "a", "cookie"]
    output = generated([0, 1, 2, 3], marked)
    result = score(tmp_path, output)
    assert result.returncode == 1 and str(tmp_path / "out") in result.stdout
    assert score(tmp_path, output, marked).returncode == 0
    whole, split = tmp_path / "whole", tmp_path / "split"
    for path, lines in ((whole, REFERENCES), (split, marked)):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    for flag in ("--baseline", "--by-frequency"):
        words = [str(whole), "--reference", str(whole), flag, str(split)]
        assert_refused(capsys, split, cli.run, "score", words)


@pytest.mark.parametrize(
    ("order", "references"),
    [
        ([2, 0, 3], REFERENCES),
        ([0, 1, 2], REFERENCES),
        ([0, 1, 2, 3], REFERENCES[:3]),
        ([], REFERENCES),
    ],
    ids=["one missing", "fewer", "more", "none"],
)
def test_what_does_not_fit_is_refused(order, references, tmp_path: Path) -> None:
    result = score(tmp_path, generated(order), references)
    assert result.returncode == 1 and str(tmp_path / "out") in result.stdout
    assert not (tmp_path / "bleu.json").exists() and not (tmp_path / "hyp").exists()
