"""scripts/benchmark_models.py: what it compares and reports; not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmark_models
import commands
import toy

FLAGS = {
    "softmax": ["--criterion", "cross_entropy"],
    "alpha_relu": ["--criterion", "alpha_relu_loss", "--output-transform", "alpha_relu"],
}
PARTS = [
    *[("training", "300 tokens", name) for name in FLAGS],
    *[("beam", beam, name) for beam in "12" for name in (*FLAGS, "alpha_relu, stock search")],
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.binarised_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = []
    for name, flags in FLAGS.items():
        folder = tmp_path_factory.mktemp(name)
        commands.train(data, folder, "--max-update", 3, *flags)
        paths.append(folder / "checkpoint_last.pt")
    return paths


def call(data: Path, checkpoints: list[Path], *flags: object) -> int:
    paths = ["--path", *checkpoints, "--names", *list(FLAGS)[: len(checkpoints)], "--cpu"]
    return benchmark_models.main([str(argument) for argument in (data, *paths, *flags)])


def test_table_and_json(data, checkpoints, tmp_path, capsys) -> None:
    flags = ["--train-batches", 2, "--train-tokens", 300, "--beams", "1-2", "--bins", 2]
    flags += ["--sentences", 6, "--batch", 3, "--rounds", 2, "--stock"]
    assert call(data, checkpoints, *flags, "--json", tmp_path / "out.json") == 0
    results = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    found = [(result["part"], result["value"], result["model"]) for result in results]
    assert found[: len(PARTS)] == PARTS
    lengths = [result["value"] for result in results if result["part"] == "source length"]
    assert len(lengths) == 6 and len(set(lengths)) <= 2
    rows = [line.strip("| ").split("|") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) > 1][2:]
    assert [tuple(row[:3]) for row in rows] == found
    for result, row in zip(results, rows, strict=True):
        if "rate" not in result:
            assert "stock search" in result["model"] and row[3:] == ["failed", "-", "-"]
            continue
        assert len(result["seconds"]) == 2 and result["rate"] > 0
        if result["model"] == "softmax":
            assert result["speed"] == 1


def test_batches_and_bins_hold_each_sentence_once(data, checkpoints) -> None:
    from fairseq_sparse.analysis.decoding import load_translator

    options = benchmark_models.parse_arguments(
        [str(data), "--path", str(checkpoints[0]), "--bins", "4", "--batch", "3", "--cpu"]
    )
    translator = load_translator(str(checkpoints[0]), str(data), True, range(19))
    together = benchmark_models.batches_by_length(translator, options)
    bins = benchmark_models.length_bins(translator, options)
    for samples in (together, [sample for _, group in bins for sample in group]):
        ids = [number for sample in samples for number in sample["id"].tolist()]
        assert sorted(ids) == list(range(19))
        lengths = [sample["net_input"]["src_lengths"].max().item() for sample in samples]
        assert lengths == sorted(lengths) and max(len(sample["id"]) for sample in samples) == 3
    assert len(bins) == 4


def test_training_leaves_the_model_as_it_is(data, checkpoints) -> None:
    from fairseq_sparse.analysis.decoding import load_translator

    options = benchmark_models.parse_arguments(
        [str(data), "--path", "x", "--train-batches", "2", "--train-tokens", "200", "--cpu"]
    )
    translator = load_translator(str(checkpoints[1]), str(data), True, name="alpha_relu")
    before = {name: value.clone() for name, value in translator.models[0].state_dict().items()}
    samples = benchmark_models.training_batches(translator, options)
    assert len(samples) == 2
    benchmark_models.training_job(translator, samples)()
    after = translator.models[0].state_dict()
    assert all(value.equal(before[name]) for name, value in after.items())
    assert any(p.grad is not None and p.grad.any() for p in translator.models[0].parameters())


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--subset", "no_such"], "--subset no_such"),
        (["--train-batches", 1, "--train-tokens", 2], "--max-tokens 2"),
    ],
)
def test_bad_input_is_one_line(flags, message, data, checkpoints, capsys) -> None:
    assert call(data, checkpoints[:1], "--beams", 0, "--bins", 0, *flags) == 1
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith("benchmark_models: error: ") and message in printed


@pytest.mark.parametrize(
    "flags", [["--beams", "x"], ["--bins", "-1"], ["--names", "a", "b"], ["--json", "/no/such/x"]]
)
def test_bad_usage(flags, capsys) -> None:
    with pytest.raises(SystemExit):
        benchmark_models.parse_arguments(["data", "--path", "x", *flags])
    assert flags[0] in capsys.readouterr().err
