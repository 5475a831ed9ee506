"""analyze support, empty and alternatives, and draw tree, on what fairseq's commands make."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import toy
from bad_input import assert_refused
from fairseq_sparse.commands import (
    cli,
    models,
)

FLAGS = {
    "alpha_relu": ["--arch", "transformer_sparse_tiny", "--task", "translation_sparse"]
    + ["--output-transform", "alpha_relu", "--criterion", "alpha_relu_loss"],
    "stock": ["--arch", "transformer_tiny", "--task", "translation"],
}
LSTM_FLAGS = ["--arch", "lstm_sparse", "--task", "translation_sparse", "--attention", "sparsemax"]
LSTM_FLAGS += ["--output-transform", "sparsemax", "--criterion", "entmax_loss", "--lr", 0.05]
LSTM_FLAGS += ["--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--max-update", 30]


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each model a folder with checkpoint_last.pt and log.txt."""
    folders, parent = {}, tmp_path_factory.mktemp("runs")
    for name, flags in FLAGS.items():
        folder = parent / name
        flags = ["--max-source-positions", 12, "--max-target-positions", 12, *flags]
        _, log = toy.train(folder, data, "--log-format", "json", "--log-interval", 1, *flags)
        (folder / "log.txt").write_text(log, encoding="utf-8")
        folders[name] = folder
    return folders


@pytest.fixture
def paths(runs: dict[str, Path]) -> list[Path]:
    return [folder / "checkpoint_last.pt" for folder in runs.values()]


@pytest.fixture(autouse=True)
def nothing_kept(runs: dict[str, Path]) -> None:
    """Remove the measurements of other tests."""
    for folder in runs.values():
        shutil.rmtree(folder / "measurements-checkpoint_last", ignore_errors=True)


def call_here(command: str, *arguments: object) -> int:
    """Run a command in this process, which saves the time of importing fairseq."""
    return cli.run(command, [*map(str, arguments), "--cpu"])


def tables_in(text: str) -> list[list[list[str]]]:
    """The cells of each table, without its header."""
    tables = []
    for block in text.split("\n\n"):
        lines = [line.strip("|").split("|") for line in block.splitlines() if line[:1] == "|"]
        if lines:
            tables.append([[cell.strip() for cell in line] for line in lines[2:]])
    return tables


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_empty(data: Path, paths: list[Path], tmp_path: Path) -> None:
    ensemble = ":".join(map(str, paths))
    flags = ("--cpu", "--beam", 3, "--max-tokens", 60, "--json", tmp_path / "out.json")
    result = toy.command("analyze empty", data, "--path", *paths, ensemble, *flags)
    written = read(tmp_path / "out.json")
    assert written["beam"] == 3
    (table,) = tables_in(result.stdout)
    for row, cells in zip(written["rows"], table, strict=True):
        assert cells[:5] == [row["name"], row["output"], "test", "30", row["scores"]]
        assert (row["sentences"], row["left_out"]) == (30, 0)
    found = [(row["checkpoints"], row["scores"]) for row in written["rows"]]
    sparse, stock = map(str, paths)
    assert found == [([sparse], "p"), ([sparse], "p / Σp"), ([stock], "p")] + [
        ([sparse, stock], scores) for scores in ("p", "p / Σp")
    ]
    assert table[2][1] == "softmax" and written["rows"][2]["empty_is_impossible"] == 0


def test_support(
    data: Path,
    paths: list[Path],
    runs: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
) -> None:
    logs = [folder / "log.txt" for folder in runs.values()]
    assert not call_here(
        *("analyze support", data, "--path", f"1.5-ReLU={paths[0]}", f"softmax={paths[1]}"),
        *("--log", *logs),
        *("--subset", "test,train,valid", "--sentences", 25, "--beams", "1,2"),
        *("--json", tmp_path / "out.json", "--plots", tmp_path / "plot.svg", "--max-tokens", 60),
    )
    printed = capfd.readouterr()
    forced, searched, training = tables_in(printed.out)
    written = read(tmp_path / "out.json")
    names = [
        [name, part] for name in ("1.5-ReLU", "softmax") for part in ("test", "train", "valid")
    ]
    assert [[row[0], row[2]] for row in forced] == names
    for row, cells in zip(written["forced"], forced, strict=True):
        assert (row["sentences"], row["left_out"]) == (25, 0)
        assert cells[8] == f"{100 * row['gold_zero']:.2f}"
        assert sum(row["nonzeros"]["histogram"]["counts"]) == row["steps"]
    softmax = written["forced"][3]
    assert softmax["nonzeros"]["min"] == softmax["vocabulary"] and softmax["gold_zero"] == 0
    assert written["forced"][0]["nonzeros"]["mean"] < softmax["vocabulary"]
    assert [row[:1] + row[2:3] for row in searched] == [["1.5-ReLU", "test"], ["softmax", "test"]]
    shares = [part["exact"] for part in written["searched"][0]["beams"].values()]
    assert searched[0][3:5] == [f"{100 * share:.2f}" for share in shares]
    assert searched[1][3:] == ["-", "-", "-"]
    (curve,) = written["training"]
    assert (curve["name"], curve["updates"]) == ("1.5-ReLU", [1, 2, 3])
    assert len(set(curve["tau"])) == 1 and len(curve["logit_norm"]) == 3
    assert training[0][0] == "1.5-ReLU" and str(logs[1]) in printed.err
    for name in ("nonzeros", "zeros", "prob_sum", "training"):
        assert str(tmp_path / f"plot-{name}.svg") in printed.err
        assert (tmp_path / f"plot-{name}.svg").is_file()


@pytest.mark.slow
def test_an_lstm(data: Path, paths: list[Path], tmp_path: Path, capfd) -> None:
    lstm, _ = toy.train(tmp_path / "lstm", data, *LSTM_FLAGS)
    models = [lstm, paths[1], f"{lstm}:{lstm}", f"{lstm}:{paths[1]}"]
    output = tmp_path / "support.json"
    assert not call_here("analyze support", data, "--path", *models, "--beams", 5, "--json", output)
    written = read(output)
    one, stock, twice, both = written["forced"]
    assert 1 <= one["attended"] <= stock["attended"]
    assert one["nonzeros"] == twice["nonzeros"] and one["nonzeros"]["mean"] < 25
    assert twice["attended"] is both["attended"] is None
    assert both["nonzeros"]["min"] == stock["vocabulary"]
    shares = [row["beams"]["5"]["exact"] for row in written["searched"]]
    assert shares[0] == shares[2] and shares[1] is shares[3] is None
    capfd.readouterr()
    assert not call_here("analyze empty", data, "--path", *models, "--beam", 2)
    assert len(tables_in(capfd.readouterr().out)[0]) == 4
    own = ("--steps", "translations")
    for command, *flags in (
        ["analyze alternatives"],
        ["analyze alternatives", *own],
        ["draw tree", "--nodes", 20],
    ):
        assert not call_here(command, data, "--path", *models, "--sentence", "2-4", *flags)
        assert capfd.readouterr().out


def test_a_second_call_reads_and_prints_the_same(data: Path, paths: list[Path], capfd) -> None:
    arguments = [data, "--path", *paths, "--steps", "both", "--beams", 1, "--format", "json"]
    printed = []
    for _ in range(2):
        assert not call_here("analyze support", *arguments)
        printed.append(capfd.readouterr())
    assert json.loads(printed[0].out) == json.loads(printed[1].out)
    assert "read " not in printed[0].err and "batch" not in printed[1].err
    for name in ("output", "decoded", "certified"):
        path = paths[0].parent / "measurements-checkpoint_last" / f"{name}-test.json"
        assert f"read {path}" in printed[1].err


def test_gold_by_frequency_is_kept(data: Path, paths: list[Path], tmp_path: Path, capfd) -> None:
    output, text = tmp_path / "out.json", data.parent / "train.en"
    arguments = [data, "--path", *paths, "--no-search", "--by-frequency", text, "--json", output]
    for read_again in (False, True):
        assert not call_here("analyze support", *arguments)
        printed = capfd.readouterr()
        assert ("gold-test.json" in printed.err) == read_again
        _, table = tables_in(printed.out)
        gold = read(output)["gold"]
        assert len(table) == sum(len(row["classes"]) + 1 for row in gold)
    for row, forced in zip(gold, read(output)["forced"], strict=True):
        assert row["all"]["tokens"] == forced["steps"]
        assert row["all"]["zero"] == pytest.approx(forced["gold_zero"])
        assert sum(part["tokens"] for part in row["classes"]) == forced["steps"]
    translations = ["--steps", "translations"]
    assert_refused(capfd, "--by-frequency", call_here, "analyze support", *arguments, *translations)
    assert_refused(
        capfd, "--subwords", call_here, "analyze support", *arguments[:4], "--subwords", "none"
    )


def test_calibrate(data: Path, paths: list[Path], tmp_path: Path, capfd) -> None:
    output, text = tmp_path / "out.json", data.parent / "train.en"
    arguments = [data, "--path", *paths, "--coverage", 0.5, 0.8, "--json", output]
    assert not call_here("calibrate", *arguments, "--by-frequency", text)
    written = read(output)
    table, by_class = tables_in(capfd.readouterr().out)
    assert [cells[4] for cells in table] == [row["sets"] for row in written["rows"]]
    temperatures = [row for row in written["rows"] if row["sets"] == "temperature"]
    assert len(temperatures) == 2 and len(written["rows"]) == 14
    assert len(by_class) == sum(len(row["by_class"]) for row in temperatures)
    assert not call_here("calibrate", *arguments, "--by-frequency", text, "--format", "json")
    assert json.loads(capfd.readouterr().out) == written
    assert 1 <= temperatures[0]["parameter"] <= temperatures[1]["parameter"]
    assert_refused(capfd, "softmax", call_here, "calibrate", data, "--path", paths[1])
    for share in (0, 1, 1.5):
        refused = ["calibrate", *arguments[:4], "--coverage", share]
        assert_refused(capfd, "--coverage", call_here, *refused)


def test_first_sentences_are_the_same_in_any_batches(
    data: Path, paths: list[Path], tmp_path: Path
) -> None:
    results = []
    for limit, tokens in [(20, 40), (20, 400), (30, 400), (99, 400)]:
        output = tmp_path / f"{limit}-{tokens}.json"
        assert not call_here(
            *("analyze support", data, "--path", paths[0], "--subset", "train", "--no-search"),
            *("--sentences", limit, "--max-tokens", tokens, "--json", output),
        )
        written = read(output)
        assert written["searched"] == []
        results.append(written["forced"][0])
    assert [result["sentences"] for result in results] == [20, 20, 30, 99]
    assert results[0]["nonzeros"]["histogram"] == results[1]["nonzeros"]["histogram"]
    assert results[0]["steps"] == results[1]["steps"] < results[2]["steps"]


def test_alternatives(data: Path, paths: list[Path], tmp_path: Path) -> None:
    arguments = ["analyze alternatives", data, "--path", *paths, "--sentence", "7,2-3", "--top", 4]
    assert not call_here(*arguments, "--json", tmp_path / "out.json")
    sentences = read(tmp_path / "out.json")["sentences"]
    found = [(sentence["sentence"], sentence["name"]) for sentence in sentences]
    assert found == [(number, name) for number in (2, 3, 7) for name in FLAGS]
    source = (data.parent / "test.de").read_text().splitlines()
    target = (data.parent / "test.en").read_text().splitlines()
    for sentence in sentences:
        number = sentence["sentence"]
        assert sentence["source"] == f"{source[number]} </s>"
        assert sentence["target"] == f"{target[number]} </s>"
        assert len(sentence["steps"]) == len(sentence["target"].split())
        assert all(len(step["alternatives"]) <= 5 for step in sentence["steps"])
    assert not call_here(*arguments, "--steps", "translations", "--beam", 2)


def test_bad_input_is_one_line(
    data: Path,
    paths: list[Path],
    runs: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
) -> None:
    no_model = tmp_path / "no_model.pt"
    torch.save({"x": 1}, no_model)
    alternatives = ["analyze alternatives", data, "--path", paths[0], "--sentence"]
    support = ["analyze support", data, "--path", paths[0]]
    output = tmp_path / "out.json"
    for arguments, named in [
        (["analyze empty", data, "--path", f"{paths[0]}:{no_model}"], no_model),
        ([*alternatives, "3,30"], "--sentence 30"),
        ([*support, "--log", runs["stock"] / "log.txt"], "logit_norm"),
        ([*alternatives, "3-x"], "--sentence"),
        ([*alternatives, "9-3"], "--sentence"),
        ([*alternatives, "1,9-3"], "--sentence"),
        ([*alternatives, "0-999999999999"], "--sentence"),
        ([*alternatives[:-1], "--source", ""], "--source"),
        ([*alternatives[:-1], "--source", "a", "--target", " "], "--target"),
        (
            [*alternatives[:-1], "--source", "a", "--target", "b", "--steps", "translations"],
            "--target",
        ),
        (["draw tree", data, "--path", paths[0], "--source", "a", "--target", "b"], "--target"),
        (["draw tree", data, "--path", paths[0], "--source", "a", "--min-prob", "2"], "--min-prob"),
        ([*support, "--log", "a", "b"], "--path"),
        ([*support, "--beams", "1,0"], "--beams"),
        ([*support, "--beam", "3"], "--beam"),
        ([*alternatives, "2", "--beam", "3"], "--steps translations"),
    ]:
        assert_refused(capfd, named, call_here, *arguments, "--json", output)
        assert not output.exists()


def test_sentences_that_are_too_long_are_left_out_and_told(
    data: Path, paths: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    long = toy.with_a_long_pair(tmp_path, data)
    for command in (["analyze support", "--beams", 1], ["analyze empty", "--sentences", 2]):
        output = tmp_path / f"{command[0]}.json"
        arguments = [command[0], long, "--path", paths[1], *command[1:]]
        for _ in range(2):  # measured, and perhaps read
            assert not call_here(*arguments, "--json", output)
            assert "left out 1 sentences" in capfd.readouterr().err
        (row,) = read(output).get("forced") or read(output)["rows"]
        assert (row["left_out"], row["sentences"]) == (
            1,
            2 if command[0] == "analyze support" else 1,
        )
    sets = ["calibrate", long, "--path", paths[0], "--validation", "test", "--coverage", 0.5]
    call_here(*sets)
    assert "left out 1 sentences" in capfd.readouterr().err
    alternatives = ["analyze alternatives", long, "--path", paths[1], "--sentence"]
    assert_refused(capfd, "--sentence 1", call_here, *alternatives, "1")
    # Without references, what needs none still works.
    for path in long.glob("test.de-en.en.*"):
        path.unlink()
    assert_refused(capfd, "--subset test", call_here, "analyze support", long, "--path", paths[1])
    assert_refused(capfd, "--subset test", call_here, *alternatives, "2")
    assert not call_here(*alternatives, "2", "--steps", "translations")
    assert not call_here("analyze empty", long, "--path", paths[1])


def test_names_are_what_differs() -> None:
    names = models.short_names
    assert names(["r/a/x.pt", "r/b/x.pt", "r/a/x.pt:r/b/x.pt"]) == ["a", "b", "a + b"]
    assert names(["r/a.pt", "s/a.pt"]) == ["r", "s"]
    for paths in (["r/a.pt"], ["r/a.pt", "r/a.pt"], ["r/a.pt", "r/r/a.pt"]):
        assert names(paths) == paths


def test_tree(data: Path, paths: list[Path], tmp_path: Path, capsys) -> None:
    options = ["--sentence", "0,2", "--nodes", "30", "--plots", tmp_path / "plot.png"]
    json_path = tmp_path / "out.json"
    assert call_here("draw tree", data, "--path", *paths, *options, "--json", json_path) == 0
    capsys.readouterr()
    trees = read(json_path)["trees"]
    assert [tree["sentence"] for tree in trees] == [0, 2] * len(paths)
    for tree in trees:
        assert tree["source"]
        if tree["output"] == "softmax":
            assert not tree["complete"]
            total = sum(child["probability"] for child in tree["root"]["children"])
            assert 0.9 < total <= 1 + 1e-4  # all but the padding's
        assert tree["mass"] <= 1 + 1e-4  # weights of 1.5-ReLU are divided by their sum
    names = {f"plot-{name}-test-{number}.png" for name in FLAGS for number in (0, 2)}
    assert {path.name for path in tmp_path.glob("*.png")} == names
    seeds = [f"seeds={path}" for path in paths[:2]]
    options = ["--sentence", "0", "--nodes", "5", "--plots", tmp_path / "plot.png"]
    assert call_here("draw tree", data, "--path", *seeds, *options) == 0
    named = {path.name for path in tmp_path.glob("plot-seeds-*.png")}
    assert named == {"plot-seeds-test-0.png", "plot-seeds-test-0-seed-2.png"}
    capsys.readouterr()
    arguments = ["draw tree", data, "--path", paths[0], "--sentence", 999]
    assert_refused(capsys, "--sentence 999", call_here, *arguments)


def test_a_typed_pair_is_read_as_one_of_the_data(data: Path, paths: list[Path], tmp_path: Path):
    text = {
        side: (data.parent / f"test.{side}").read_text(encoding="utf-8").splitlines()[3]
        for side in ("de", "en")
    }
    typed = ("--source", text["de"], "--target", text["en"])
    found = []
    for number, flags in enumerate((("--sentence", 3), typed)):
        output = tmp_path / f"{number}.json"
        arguments = (data, "--path", paths[0], *flags, "--json", output)
        assert call_here("analyze alternatives", *arguments) == 0
        (sentence,) = json.loads(output.read_text(encoding="utf-8"))["sentences"]
        found.append({key: sentence[key] for key in ("source", "target", "steps", "given")})
    # Probabilities are those of another batch.
    steps = [part.pop("steps") for part in found]
    assert found[0] == found[1]
    assert [step["token"] for step in steps[0]] == [step["token"] for step in steps[1]]
    probabilities = [[step["p"] for step in part] for part in steps]
    assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-5)


def test_a_typed_source_has_the_models_translation(
    data: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]
):
    source = (data.parent / "test.de").read_text(encoding="utf-8").splitlines()[3]
    arguments = (data, "--path", paths[0], "--source", source)
    assert call_here("analyze alternatives", *arguments) == 0
    assert "best translation" in capsys.readouterr().out
    assert_refused(
        capsys,
        "--target",
        call_here,
        "draw tree",
        data,
        "--path",
        paths[0],
        "--sentence",
        1,
        "--target",
        "a",
    )
