"""fairseq-sparse analyze nulls on checkpoints and data as fairseq's commands make them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.attention.shuffled_references import derange
from fairseq_sparse.measure.translator import load_translator

FLAGS = {
    "rela_g": ["--arch", "transformer_sparse_tiny", "--attention", "rela_g"],
    "leaky": ["--arch", "transformer_sparse_tiny", "--attention", "rela_g_leaky_relu"],
    "stock": ["--arch", "transformer_tiny"],
}


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {}
    for name, flags in FLAGS.items():
        flags = ["--task", "translation_sparse", "--max-target-positions", 7, *flags]
        paths[name], _ = toy.train(tmp_path_factory.mktemp(name), data, *flags)
    return paths


def call_here(*arguments: object) -> int:
    return cli.run("analyze nulls", [*map(str, arguments), "--cpu"])


def rows_of(path: Path) -> list[dict[str, str]]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    columns = header.split("\t")
    return [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]


def text(data: Path, side: str) -> list[str]:
    return (data.parent / f"test.{side}").read_text(encoding="utf-8").splitlines()


def test_table_has_all_pairs_from_the_highest_rate(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    output, checkpoint = tmp_path / "pairs.tsv", checkpoints["rela_g"]
    flags = ["--path", checkpoint, "--output", output, "--max-tokens", 40, "--cpu"]
    result = toy.command("analyze nulls", data, *flags)
    assert f"wrote {output}\n" in result.stderr and not result.stdout
    rows, sources, targets = rows_of(output), text(data, "de"), text(data, "en")
    assert list(rows[0]) == ["rank", "sentence", "null_rate", "source", "target"]
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, 31)]
    translator, expected = load_translator(str(checkpoint), str(data), cpu=True), {}
    for sample in translator.batches("test", 100):
        for pair in forced_attention(translator.model, sample, toy.dictionary().pad()):
            expected[pair.number] = float((pair.weights["cross"] == 0).all(-1).double().mean())
    numbers = [int(row["sentence"]) for row in rows]
    assert numbers == sorted(expected, key=lambda number: (-round(expected[number], 9), number))
    for row, number in zip(rows, numbers, strict=True):
        assert row["null_rate"] == f"{expected[number]:.4f}"
        assert (row["source"], row["target"]) == (sources[number], targets[number])


def test_shuffled_pairs_are_the_bad_ones(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    output, written = tmp_path / "pairs.tsv", tmp_path / "out.json"
    flags = ["--path", checkpoints["rela_g"], "--shuffle", 20, "--seed", 3, "--json", written]
    assert call_here(data, *flags, "--output", output) == 0
    captured = capfd.readouterr()
    printed = captured.out
    rows, targets, order = rows_of(output), text(data, "en"), derange(30, 3, 20)
    for row in rows:
        number = int(row["sentence"])
        assert row["target"] == targets[order[number]]
        assert row["bad"] == str(int(order[number] != number))
    found = json.loads(written.read_text(encoding="utf-8"))
    assert (found["pairs"], found["bad"]) == (30, 6)
    assert [part["at"] for part in found["precision"]] == [6, 10]
    for part in found["precision"]:
        top = [row["bad"] for row in rows[: part["at"]]]
        assert part["value"] == top.count("1") / part["at"]
        assert f"| precision at {part['at']} " in printed
    assert "6 of 30 pairs are bad" in captured.err
    again = tmp_path / "again.tsv"
    assert call_here(data, *flags, "--output", again, "--max-tokens", 8) == 0
    assert again.read_text(encoding="utf-8") == output.read_text(encoding="utf-8")


def test_known_bad_pairs_and_pairs_that_are_too_long(
    checkpoints: dict[str, Path], tmp_path: Path, data: Path, capfd: pytest.CaptureFixture
) -> None:
    for side, word in (("de", "w1"), ("en", "W1")):
        lines = [" ".join(["w2@@", word, *[word] * length]) for length in (1, 20, 2, 3)]
        (tmp_path / f"test.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = (data / "dict.de.txt").read_text(encoding="utf-8").replace("w2 ", "w2@@ ")
    (tmp_path / "dict.txt").write_text(words, encoding="utf-8")
    bin_folder = toy.binarise_test(tmp_path, tmp_path / "dict.txt")
    (tmp_path / "bad").write_text("0\n1\n0\n1\n", "utf-8")
    output = tmp_path / "pairs.tsv"
    flags = ["--bad", tmp_path / "bad", "--output", output, "--post-process"]
    assert call_here(bin_folder, "--path", checkpoints["rela_g"], *flags) == 0
    printed = capfd.readouterr()
    assert "left out 1 sentences that are too long" in printed.err
    assert "1 of 3 pairs are bad" in printed.err
    rows = {row["sentence"]: row for row in rows_of(output)}
    assert {number: row["bad"] for number, row in rows.items()} == {"0": "0", "2": "0", "3": "1"}
    assert (rows["2"]["source"], rows["2"]["target"]) == ("w2w1 w1 w1", "w2W1 W1 W1")


def test_bad_input_is_one_line(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    labels = tmp_path / "labels"
    labels.write_text("0\n1\n", encoding="utf-8")
    output = tmp_path / "pairs.tsv"
    for model, named, *flags in [
        ("stock", "softmax"),
        ("leaky", "null rate"),
        ("rela_g", labels, "--bad", labels),
        ("rela_g", "1% of 30", "--shuffle", 1),
        ("rela_g", "xyz", "--post-process", "xyz"),
        ("rela_g", "--seed", "--seed", "-1"),
        ("rela_g", "--json", "--json", tmp_path / "a"),
        ("rela_g", "--bad", "--bad", labels, "--shuffle", 5),
    ]:
        arguments = [data, "--path", checkpoints[model], *flags, "--output", output]
        assert_refused(capfd, named, call_here, *arguments)
        assert not output.exists()
