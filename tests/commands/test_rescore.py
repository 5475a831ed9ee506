"""fairseq-sparse rescore gives candidates the scores that the model's own search gives them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

import toy
from bad_input import assert_refused
from commands import generate, hypotheses
from fairseq_sparse.commands import cli


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    flags += ["--output-transform", "sparsemax", "--criterion", "entmax_loss"]
    return toy.train(tmp_path_factory.mktemp("model"), data, *flags)[0]


def whole(output: str) -> dict[int, list[tuple[float, str]]]:
    """Return the hypotheses that ended by themselves, not at the length limit."""
    found = {
        number: [row for row in rows if len(row[1].split()) < 100]
        for number, rows in hypotheses(output).items()
    }
    return {number: rows for number, rows in found.items() if rows}


def call(data: Path, checkpoint: Path, candidates: Path, *flags: object) -> int:
    given = (data, "--path", checkpoint, "--source", data.parent / "test.de")
    words = [*given, "--candidates", candidates, *flags, "--cpu"]
    return cli.run("rescore", [str(word) for word in words])


@pytest.mark.parametrize("lenpen", [0, 1, 2])
def test_scores_are_those_of_fairseq_generate(
    data: Path, checkpoint: Path, tmp_path: Path, lenpen: float
) -> None:
    flags = ("--beam", 4, "--nbest", 4, "--lenpen", lenpen)
    expected = whole(generate(data, checkpoint, *flags).stdout)
    assert expected
    lines = [f"{number}\t{words}\n" for number, found in expected.items() for _, words in found]
    random.Random(1).shuffle(lines)
    (tmp_path / "candidates.txt").write_text("".join(lines), encoding="utf-8")
    output = tmp_path / "scored.txt"
    found = call(
        data, checkpoint, tmp_path / "candidates.txt", "--lenpen", lenpen, "--output", output
    )
    assert found == 0
    scored = hypotheses(output.read_text(encoding="utf-8"))
    assert scored.keys() == expected.keys()
    for number, rows in scored.items():
        scores = [score for score, _ in rows]
        assert scores == sorted(scores, reverse=True)
        own = {words: score for score, words in expected[number]}
        assert {words: score for score, words in rows} == pytest.approx(own, abs=1e-4)


@pytest.mark.parametrize("lenpen", ["nan", "inf"])
def test_the_length_penalty_is_finite(data: Path, checkpoint: Path, lenpen: str) -> None:
    with pytest.raises(SystemExit):
        call(data, checkpoint, Path(os.devnull), "--lenpen", lenpen)


def test_what_the_model_rules_out_comes_last(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = whole(generate(data, checkpoint, "--beam", 2).stdout)
    number, possible = next((number, rows[0][1]) for number, rows in found.items())
    # Each word alone: one of them cannot begin the sentence.
    words = [line.split()[0] for line in (data / "dict.en.txt").read_text().splitlines()]
    text = "".join(f"{number}\t{candidate}\n" for candidate in [*words, possible])
    (tmp_path / "candidates.txt").write_text(text, encoding="utf-8")
    assert call(data, checkpoint, tmp_path / "candidates.txt") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    rows = [row for row in rows if row[0].startswith("H")]
    scores = {candidate: float(score) for _, score, candidate in rows}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert scores[possible] > -torch.inf and rows[-1][1] == "-inf"


def test_score_reads_the_best_candidates(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, words = tmp_path / "scored.txt", (data.parent / "test.en").read_text(encoding="utf-8")
    numbered = [f"{number}\t{line} .\n" for number, line in enumerate(words.splitlines())]
    (tmp_path / "candidates.txt").write_text("".join(numbered), encoding="utf-8")
    assert call(data, checkpoint, tmp_path / "candidates.txt", "--output", output) == 0
    reference = tmp_path / "raw.en"
    reference.write_text(words.replace("\n", ".\n"), encoding="utf-8")
    assert cli.run("score", [str(output), "--reference", str(reference), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    "text", ["", "nothing\n", "100000\ta b\n", "0\ta b\n1 a b\n", "0\t-0.5\ta b\n"]
)
def test_other_files_are_refused(
    data: Path, checkpoint: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "candidates.txt").write_text(text, encoding="utf-8")
    path = tmp_path / "candidates.txt"
    assert_refused(capsys, path, call, data, checkpoint, path)
