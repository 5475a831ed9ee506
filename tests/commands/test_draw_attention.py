"""fairseq-sparse draw attention on checkpoints and data as fairseq's commands make them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import attention_by_hand
import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.translator import load_translator, search
from fairseq_sparse.plots import attention_plots


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    flags += ["--attention", "rela_g", "--attention-enc", "softmax"]
    return toy.train(tmp_path_factory.mktemp("model"), data, *flags)[0]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Record the arguments of each drawing by the script."""
    calls = []
    original = attention_plots.draw_attention

    def record(panels, queries, keys, titles, **options):
        calls.append(dict(panels=panels, queries=queries, keys=keys, titles=titles, **options))
        return original(panels, queries, keys, titles, **options)

    monkeypatch.setattr(attention_plots, "draw_attention", record)
    return calls


def call_here(*arguments: object) -> int:
    return cli.run("draw attention", [*map(str, arguments), "--cpu"])


def sentence(data: Path, side: str, number: int) -> list[str]:
    lines = (data.parent / f"test.{side}").read_text(encoding="utf-8").splitlines()
    return lines[number].split()


@pytest.mark.parametrize("place", ["cross", "encoder", "decoder"])
def test_rows_and_columns(
    checkpoint: Path, data: Path, tmp_path: Path, drawn: list[dict], place: str
) -> None:
    output = tmp_path / "a.svg"
    flags = ["--sentence", 7, "--place", place, "--layer", 1, "--output", output]
    assert call_here(data, "--path", checkpoint, *flags) == 0
    assert output.stat().st_size > 0
    (call,) = drawn
    source, target = (sentence(data, side, 7) for side in ("de", "en"))
    expected = {
        "cross": ([*target, "</s>"], [*source, "</s>"]),
        "encoder": ([*source, "</s>"], [*source, "</s>"]),
        "decoder": ([*target, "</s>"], ["</s>", *target]),
    }
    assert (call["queries"], call["keys"]) == expected[place]
    size = (len(call["queries"]), len(call["keys"]))
    assert [panel.shape for panel in call["panels"]] == [size, size]
    assert call["titles"] == ["head 1", "head 2"]
    future = np.triu(np.ones(size, dtype=bool), 1)
    assert (call["masked"] == (future if place == "decoder" else False)).all()
    assert call["sums_to_one"] == (place == "encoder")
    first, second = call["title"].split("\n")
    assert first == f"{checkpoint.parent.name}/{checkpoint.name}: output softmax"
    assert ("softmax" if place == "encoder" else "rela_g") in second
    for panel in call["panels"]:
        assert (panel[call["masked"]] == 0).all() and panel.any()
        assert place != "encoder" or panel.sum(1) == pytest.approx(1)


@pytest.mark.slow_except("lstm_sparse")
@pytest.mark.parametrize("arch", ["lstm", "lstm_sparse"])
def test_an_lstm_has_one_panel(
    arch: str, data: Path, tmp_path: Path, drawn: list[dict], capfd: pytest.CaptureFixture
) -> None:
    flags = ["--arch", arch, "--encoder-embed-dim", 16, "--decoder-embed-dim", 16]
    flags += ["--attention", "sparsemax"] if arch == "lstm_sparse" else []
    path, _ = toy.train(tmp_path, data, *flags, "--task", "translation_sparse")
    arguments = [data, "--path", path, "--sentence", 7, "--output", tmp_path / "a.png"]
    assert call_here(*arguments) == 0
    (call,) = drawn
    assert call["sums_to_one"] and not call["masked"].any()
    (panel,) = call["panels"]
    assert panel.shape == tuple(len(sentence(data, side, 7)) + 1 for side in ("en", "de"))
    assert panel.sum(1) == pytest.approx(1)
    capfd.readouterr()
    for flags in (["--place", "encoder"], ["--heads", "2"]):
        assert_refused(capfd, " ".join(flags), call_here, *arguments, *flags)


def weights_by_hand(
    checkpoint: Path, data: Path, number: int, words: list[str]
) -> list[list[list[float]]]:
    """Return the weights of the last cross-attention's heads."""
    translator = load_translator(str(checkpoint), str(data), cpu=True)
    (model,), task = translator.models, translator.task

    def encode(text):
        line = " ".join(text)
        return task.source_dictionary.encode_line(line, add_if_not_exist=False).long()[None]

    source, target = encode(sentence(data, "de", number)), encode(words)
    net_input = {"src_tokens": source, "src_lengths": torch.tensor([source.size(1)])}
    net_input["prev_output_tokens"] = target.roll(1, dims=1)
    return attention_by_hand.weights(model, net_input)["cross", 1]


@pytest.mark.parametrize("hypothesis", [False, True])
def test_weights_of_the_reference_and_of_the_translation(
    checkpoint: Path, data: Path, tmp_path: Path, drawn: list[dict], hypothesis: bool
) -> None:
    words = sentence(data, "en", 4)
    flags = ["--sentence", 4, "--output", tmp_path / "a.png"]
    if hypothesis:
        translator = load_translator(str(checkpoint), str(data), cpu=True)
        _, hypotheses = next(search(translator, translator.batches("test", 1000, [4]), 2))
        words = translator.task.target_dictionary.string(hypotheses[0][0]["tokens"]).split()
        assert words != sentence(data, "en", 4)
        flags += ["--steps", "translations", "--beam", 2]
    expected = np.array(weights_by_hand(checkpoint, data, 4, words))
    for heads, wanted in (
        ("all", list(expected)),
        ("mean", [expected.mean(0)]),
        ("2", [expected[1]]),
        ("2,1", [expected[1], expected[0]]),
    ):
        assert call_here(data, "--path", checkpoint, *flags, "--heads", heads) == 0
        call = drawn.pop()
        assert call["queries"] == [*words, "</s>"]
        assert len(call["panels"]) == len(wanted) == len(call["titles"])
        for panel, weights in zip(call["panels"], wanted, strict=True):
            assert panel == pytest.approx(weights, abs=1e-5)


def test_bad_input_is_one_line(checkpoint: Path, data: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "a.png"
    good = [data, "--path", checkpoint, "--output", output]
    for named, *flags in [
        ("--sentence 30", "--sentence", 30),
        ("--layer 3", "--sentence", 3, "--layer", 3),
        ("--heads 5", "--sentence", 3, "--heads", "1,5"),
        ("--sentence", "--sentence", -1),
        ("--heads", "--sentence", 3, "--heads", "0"),
        ("--output", "--sentence", 3, "--output", tmp_path / "a.txt"),
        ("--steps", "--sentence", 3, "--beam", 2),
    ]:
        assert_refused(capsys, named, call_here, *good, *flags)
        assert not any(path.suffix in (".png", ".txt") for path in tmp_path.iterdir())


def test_without_matplotlib(tmp_path: Path) -> None:
    """--help works, and a drawing fails with one line that says what to install."""
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('not installed')\n")
    environment = {"PYTHONPATH": f"{tmp_path}:{toy.ROOT}", "PATH": ""}

    def run(*arguments):
        command = [sys.executable, "-m", "fairseq_sparse", "draw", "attention", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert run("--help").returncode == 0
    result = run(tmp_path, "--path", "x.pt", "--sentence", "1", "--output", tmp_path / "a.png")
    assert result.returncode == 1
    assert "error: matplotlib" in result.stderr.splitlines()[-1]
