"""scripts/score_translation.py: order, missing sentences, and the score itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "score_translation.py"
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
    return subprocess.run(
        [sys.executable, SCRIPT, "--generated", folder / "out", "--reference", folder / "ref"]
        + ["--hypotheses", folder / "hyp", "--json", folder / "bleu.json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def test_order_is_restored_and_score_is_sacrebleu(tmp_path: Path) -> None:
    result = score(tmp_path, generated([2, 0, 3, 1]))
    assert result.returncode == 0, result.stdout
    assert (tmp_path / "hyp").read_bytes().decode().split("\n") == [*HYPOTHESES, ""]
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    written = json.loads((tmp_path / "bleu.json").read_text())
    assert written["bleu"] == pytest.approx(expected)
    assert written["empty_translations"] == 1
    assert written["signature"] in result.stdout and f"{expected:.2f}" in result.stdout


def test_tokens_are_scored_as_they_are(tmp_path: Path) -> None:
    """A full stop that hangs on its word is another token."""
    references = ["A dog runs across the street .", "", "Two men\u2028sit; 'tis a bench .", "x"]
    result = score(tmp_path, generated([0, 1, 2, 3]), references, "--tokenize", "none")
    assert result.returncode == 0, result.stdout
    written = json.loads((tmp_path / "bleu.json").read_text())
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [references], tokenize="none", force=True)
    assert written["bleu"] == pytest.approx(expected.score)
    assert written["bleu"] < sacrebleu.corpus_bleu(HYPOTHESES, [references]).score
    assert "tok:none" in written["signature"]
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("order", "references", "message"),
    [
        ([2, 0, 3], REFERENCES, "no translation of 1 sentences, first 1"),
        ([0, 1, 2], REFERENCES, "has 3 translations but"),
        ([0, 1, 2, 3], REFERENCES[:3], "has 4 translations but"),
        ([], REFERENCES, "no line that begins with D-"),
    ],
)
def test_what_does_not_fit_is_refused(
    order: list[int], references: list[str], message: str, tmp_path: Path
) -> None:
    result = score(tmp_path, generated(order), references)
    assert result.returncode == 1
    assert message in result.stdout
    assert not (tmp_path / "bleu.json").exists() and not (tmp_path / "hyp").exists()
