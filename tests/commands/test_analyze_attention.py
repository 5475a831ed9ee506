"""fairseq-sparse analyze attention on checkpoints and data as fairseq's commands make them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.attention.shuffled_references import derange

FLAGS = {
    "transformer_sparse_tiny": ["--task", "translation_sparse", "--attention", "rela_g"],
    "transformer_tiny": ["--task", "translation"],
}


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {}
    for arch, flags in FLAGS.items():
        flags = ["--max-source-positions", 12, "--max-target-positions", 12, *flags]
        paths[arch], _ = toy.train(tmp_path_factory.mktemp(arch), data, "--arch", arch, *flags)
    return paths


@pytest.fixture(autouse=True)
def nothing_kept(checkpoints: dict[str, Path]) -> None:
    """Remove the measurements of other tests."""
    for path in checkpoints.values():
        forget(path)


def forget(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint.parent / "measurements-checkpoint_last", ignore_errors=True)


def call_here(*arguments: object) -> int:
    """Run the script in this process, which saves the time of importing fairseq."""
    return cli.run("analyze attention", [*map(str, arguments), "--cpu"])


@pytest.mark.slow_except("transformer_sparse_tiny")
@pytest.mark.parametrize("arch", FLAGS)
def test_table_and_json(
    arch: str, checkpoints: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    flags = ("--cpu", "--max-tokens", "60", "--json", tmp_path / "out.json")
    result = toy.command("analyze attention", data, "--path", checkpoints[arch], *flags)
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (written["sentences"], written["left_out"]) == (30, 0)
    first_table = result.stdout.split("\n\n")[0]
    rows = [line.strip("| ").split("|") for line in first_table.splitlines()]
    rows = [[cell.strip() for cell in row[1:]] for row in rows[2:]]
    assert [row[:2] for row in rows[:5]] == [
        *([place, "mean"] for place in ("encoder", "decoder", "cross")),
        *(["encoder", number] for number in "12"),
    ]
    sparse = arch == "transformer_sparse_tiny"
    assert len(rows) == 9 and {row[2] for row in rows} == {"rela_g" if sparse else "softmax"}
    for place, row in zip(written["attention"].values(), rows, strict=False):
        numbers = 100 * place["sparsity"], place["nonzeros"], 100 * place["null"]
        assert [f"{number:.2f}" for number in numbers] == [*row[3:5], row[6]]
        assert row[5] == f"{place['sum']:.2f}" and (sparse or row[5] == "1.00")
        assert 0 < place["first"] < 1 and 0 < place["eos"] < 1
        assert 0 < place["sparsity"] < 1 if sparse else place["sparsity"] == 0
        assert place["diversity"] > 0
        assert ("diversity_by_exponent" in place) == sparse


def measured(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def flat(part: object, name: str = "") -> dict[str, float]:
    """Return the numbers in nested results, by their path."""
    if isinstance(part, (dict, list)):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        return {k: v for key, inner in items for k, v in flat(inner, f"{name}/{key}").items()}
    return {name: part} if isinstance(part, float) else {}


@pytest.fixture(scope="module")
def shuffled_data(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarise the test set with its references shuffled by seed 7."""
    folder = tmp_path_factory.mktemp("shuffled")
    shutil.copy(data.parent / "test.de", folder)
    lines = (data.parent / "test.en").read_text(encoding="utf-8").splitlines()
    shuffled = [lines[number] for number in derange(len(lines), 7)]
    (folder / "test.en").write_text("\n".join(shuffled) + "\n", encoding="utf-8")
    return toy.binarise_test(folder, data / "dict.de.txt")


@pytest.mark.slow_except("transformer_sparse_tiny-8")
@pytest.mark.parametrize("max_tokens", [8, 400])
@pytest.mark.parametrize("arch", FLAGS)
def test_shuffled_references_are_measured_as_if_the_data_had_them(
    arch: str,
    max_tokens: int,
    checkpoints: dict[str, Path],
    data: Path,
    shuffled_data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
) -> None:
    flags = ["--path", checkpoints[arch], "--max-tokens", max_tokens, "--json"]
    assert call_here(data, *flags, tmp_path / "both.json", "--shuffled", 7) == 0
    table = capfd.readouterr().out
    forget(checkpoints[arch])
    assert call_here(data, *flags, tmp_path / "true.json") == 0
    assert call_here(shuffled_data, *flags, tmp_path / "shuffled.json") == 0
    both, true, shuffled = (
        measured(tmp_path / f"{name}.json") for name in ("both", "true", "shuffled")
    )
    assert both["attention"] == true["attention"] and "shuffled" not in true
    assert (both["shuffled_seed"], both["shuffled_sentences"]) == (7, 30)
    expected, found = flat(shuffled["attention"]), flat(both["shuffled"])
    assert found == pytest.approx({name: expected[name] for name in found})
    assert not any("diversity" in name for name in found) and len(found) > 40
    row = table.splitlines()[4].split("|")  # the mean of cross-attention
    assert row[11].strip() == f"{100 * both['shuffled']['cross']['null']:.2f}"
    if arch == "transformer_sparse_tiny":
        assert both["shuffled"]["encoder"]["null"] == both["attention"]["encoder"]["null"]
        assert both["shuffled"]["cross"]["null"] != both["attention"]["cross"]["null"]


@pytest.mark.slow_except("lstm_sparse")
@pytest.mark.parametrize("arch", ["lstm", "lstm_sparse"])
def test_an_lstm_has_cross_attention_only(
    arch: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    flags = ["--arch", arch, "--encoder-embed-dim", 16, "--decoder-embed-dim", 16]
    flags += ["--attention", "sparsemax"] if arch == "lstm_sparse" else []
    path, _ = toy.train(tmp_path, data, *flags, "--task", "translation_sparse")
    tables = []
    for tokens in (16, 400):
        forget(path)
        outputs = ["--json", tmp_path / "out.json", "--plots", tmp_path / "a.svg", "--shuffled", 1]
        assert call_here(data, "--path", path, "--max-tokens", tokens, *outputs) == 0
        tables.append(capfd.readouterr().out.splitlines())
    assert tables[0] == tables[1]  # padding does not count
    (part,) = measured(tmp_path / "out.json")["attention"].values()
    kind = "softmax" if arch == "lstm" else "sparsemax"
    assert kind in tables[0][2] and f"{part['nonzeros']:.2f}" in tables[0][2]
    assert sorted(path.stem for path in tmp_path.glob("*.svg")) == ["a-null_rates", "a-sparsity"]


def test_several_models_in_one_command(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    paths = [checkpoints[arch] for arch in FLAGS]
    output = tmp_path / "out.json"
    named = [f"{name}={path}" for name, path in zip(("ReLA-g", "dense"), paths, strict=True)]
    flags = ["--json", output, "--plots", tmp_path / "a.pdf"]
    assert call_here(data, "--path", *named, *flags) == 0
    printed = capfd.readouterr().err
    models = measured(output)["models"]
    assert list(models) == ["ReLA-g", "dense"]
    for path, model in zip(paths, models.values(), strict=True):
        assert call_here(data, "--path", path, "--json", tmp_path / "one.json") == 0
        assert model == measured(tmp_path / "one.json")
        assert str(path) in printed
    for name in ("diversity", "null_rates", "sparsity"):
        assert f"wrote {tmp_path / f'a-{name}.pdf'}" in printed


@pytest.mark.slow
def test_seeds_of_one_model(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    flags = ["--arch", "transformer_sparse_tiny", *FLAGS["transformer_sparse_tiny"], "--seed", 2]
    other, _ = toy.train(tmp_path / "other", data, *flags)
    paths = [checkpoints["transformer_sparse_tiny"], other]
    singles = []
    for path in paths:
        assert call_here(data, "--path", path, "--json", tmp_path / "one.json") == 0
        singles.append(measured(tmp_path / "one.json"))
    capfd.readouterr()
    outputs = ["--json", tmp_path / "both.json", "--plots", tmp_path / "plot.svg"]
    assert call_here(data, "--path", *(f"ReLA-g={path}" for path in paths), *outputs) == 0
    both, printed = measured(tmp_path / "both.json"), capfd.readouterr().out
    assert both["seeds"] == singles and "checkpoint" not in both
    for place, part in both["attention"].items():
        values = [single["attention"][place]["sparsity"] for single in singles]
        mean, deviation = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
        assert part["sparsity"] == pytest.approx(mean)
        assert f"{100 * mean:.2f} ± {100 * deviation:.2f}" in printed
        assert len(part["layers"]) == 2 and deviation > 0
    mixed = [f"a={path}" for path in (paths[0], checkpoints["transformer_tiny"])]
    assert call_here(data, "--path", *mixed) == 1


def test_null_rates_by_the_word_before(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    path, tags = checkpoints["transformer_sparse_tiny"], tmp_path / "tags.txt"
    flags = ["--path", path, "--subwords", "subword_nmt", "--json", tmp_path / "out.json"]
    assert call_here(data, *flags, "--by-previous", 3) == 0
    by_word = measured(tmp_path / "out.json")["by_previous"]
    printed = capfd.readouterr().out
    texts = (data.parent / "test.en").read_text(encoding="utf-8").splitlines()
    assert by_word["queries"] == sum(len(text.split()) + 1 for text in texts)
    names = [entry["name"] for entry in by_word["previous"]]
    assert len(names) == 3 and all(f"after {name}" in printed for name in names)
    # With a tag of its own, the most frequent word has the same rates.
    word = next(name for name in names if name != "(beginning)")
    tagged = [["X" if token == word else "Y" for token in text.split()] for text in texts]
    tags.write_text("".join(" ".join(row) + "\n" for row in tagged), encoding="utf-8")
    assert call_here(data, *flags, "--by-previous", 9, "--tags", tags) == 0
    by_tag = measured(tmp_path / "out.json")["by_previous"]
    assert {entry["name"] for entry in by_tag["previous"]} == {"X", "Y", "(beginning)"}
    for one, other in zip(by_word["layers"], by_tag["layers"], strict=True):
        for head, same in zip(one["heads"], other["heads"], strict=True):
            assert head["null_after"][word] == same["null_after"]["X"]
    tags.write_text("X\n", encoding="utf-8")
    capfd.readouterr()
    assert_refused(capfd, tags, call_here, data, *flags, "--by-previous", 9, "--tags", tags)


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
    output = tmp_path / "out.json"
    for folder, named, *flags in [
        (data, broken, "--path", broken),
        (data, no_model, "--path", no_model),
        (smaller, smaller, "--path", checkpoint),
        (data, "--shuffled", "--path", checkpoint, "--shuffled", -1),
        (data, "--tags", "--path", checkpoint, "--tags", data / "dict.en.txt"),
    ]:
        assert_refused(capfd, named, call_here, folder, *flags, "--json", output)
        assert not output.exists()


def test_sentences_that_are_too_long_are_left_out_and_told(
    checkpoints: dict[str, Path], data: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    long = toy.with_a_long_pair(tmp_path, data)
    assert call_here(long, "--path", checkpoints["transformer_tiny"]) == 0
    printed = capfd.readouterr()
    assert "left out 1 sentences" in printed.err and "2 sentences of test" in printed.err
