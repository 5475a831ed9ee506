"""scripts/analyze_attention.py on checkpoints and data as fairseq's commands make them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import analyze_attention
import toy

SCRIPT = toy.ROOT / "scripts" / "analyze_attention.py"
FLAGS = {
    "transformer_sparse_tiny": ["--task", "translation_sparse", "--attention", "rela_g"],
    "transformer_tiny": ["--task", "translation"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.binarised_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {}
    for arch, flags in FLAGS.items():
        folder = tmp_path_factory.mktemp(arch)
        toy.run(
            "fairseq_cli.train",
            *(data, "--user-dir", toy.USER_DIR, "--save-dir", folder, "--cpu", "--max-update", 3),
            *("--arch", arch, "--optimizer", "adam", "--lr", 0.001, "--max-tokens", 500),
            *("--max-source-positions", 12, "--max-target-positions", 12, "--num-workers", 0),
            *flags,
        )
        paths[arch] = folder / "checkpoint_last.pt"
    return paths


def call_here(*arguments: object) -> int:
    """Run the script in this process, which saves the time of importing fairseq."""
    return analyze_attention.main([*map(str, arguments), "--cpu"])


@pytest.mark.parametrize("arch", FLAGS)
def test_table_and_json(
    arch: str, checkpoints: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, SCRIPT, data, "--path", checkpoints[arch], "--cpu"]
        + ["--max-tokens", "60", "--json", tmp_path / "out.json"],
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (written["sentences"], written["left_out"]) == (30, 0)
    rows = [line.strip("| ").split("|") for line in result.stdout.splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in row] for row in rows[2:]]
    assert [row[:2] for row in rows[:5]] == [
        *([place, "mean"] for place in ("encoder", "decoder", "cross")),
        *(["encoder", number] for number in "12"),
    ]
    sparse = arch == "transformer_sparse_tiny"
    assert len(rows) == 9 and {row[2] for row in rows} == {"rela_g" if sparse else "softmax"}
    for place, row in zip(written["attention"].values(), rows, strict=False):
        assert [f"{100 * place[name]:.2f}" for name in ("sparsity", "null")] == row[3:]
        assert 0 < place["sparsity"] < 1 if sparse else place["sparsity"] == 0


def test_bad_input_is_one_line(
    checkpoints: dict[str, Path],
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
) -> None:
    checkpoint = checkpoints["transformer_sparse_tiny"]
    smaller = tmp_path / "smaller"
    shutil.copytree(data, smaller)
    for language in ("de", "en"):
        words = (data / f"dict.{language}.txt").read_text(encoding="utf-8").splitlines()
        (smaller / f"dict.{language}.txt").write_text("\n".join(words[:9]) + "\n", "utf-8")
    broken = tmp_path / "broken.pt"
    broken.write_bytes(checkpoint.read_bytes()[:5000])
    no_model = tmp_path / "no_model.pt"
    torch.save({"x": 1}, no_model)
    cases = [
        ([data, "--path", tmp_path / "none.pt"], "no such file"),
        ([data, "--path", broken], "truncated"),
        ([data, "--path", no_model], "could not be loaded"),
        ([tmp_path, "--path", checkpoint], "could not be loaded for the data"),
        ([smaller, "--path", checkpoint], "size mismatch"),
        ([data, "--path", checkpoint, "--subset", "tset"], "--subset tset: Dataset not found"),
        ([data, "--path", checkpoint, "--max-tokens", 3], "--max-tokens 3: "),
    ]
    output = tmp_path / "out.json"
    for arguments, message in cases:
        assert call_here(*arguments, "--json", output) == 1
        printed = capfd.readouterr()
        assert not printed.out and not output.exists()
        assert len(printed.err.splitlines()) == 1
        assert printed.err.startswith("analyze_attention: error: ") and message in printed.err
    with pytest.raises(SystemExit):
        call_here(data, "--path", checkpoint, "--json", tmp_path / "none" / "out.json")
    assert "there is no such folder" in capfd.readouterr().err


def test_sentences_that_are_too_long_are_left_out_and_told(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    for language, word in (("de", "w1"), ("en", "W1")):
        lines = [" ".join([word] * length) for length in (3, 30, 5)]
        (tmp_path / f"test.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    toy.run(
        "fairseq_cli.preprocess",
        *("--source-lang", "de", "--target-lang", "en", "--testpref", tmp_path / "test"),
        *("--srcdict", data / "dict.de.txt", "--joined-dictionary", "--destdir", tmp_path / "bin"),
    )
    assert call_here(tmp_path / "bin", "--path", checkpoints["transformer_tiny"]) == 0
    printed = capfd.readouterr()
    assert "left out 1 sentences" in printed.err and "2 sentences of test" in printed.out
