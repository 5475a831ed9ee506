"""fairseq-sparse score: order, missing sentences, and the score itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu

import toy

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
    files = ("--generated", folder / "out", "--reference", folder / "ref")
    files += ("--hypotheses", folder / "hyp", "--json", folder / "bleu.json")
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
    (tmp_path / "tokens").write_text("one line\n")
    result = score(tmp_path, generated([0, 1, 2, 3]), REFERENCES, *options)
    assert result.returncode == 1 and str(tmp_path / "tokens") in result.stdout


def test_subwords_are_refused(tmp_path: Path) -> None:
    marked = ["the ba@@ kers", "cut", "a", "cookie"]
    output = generated([0, 1, 2, 3], marked)
    result = score(tmp_path, output)
    assert result.returncode == 1 and str(tmp_path / "out") in result.stdout
    assert score(tmp_path, output, marked).returncode == 0


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
