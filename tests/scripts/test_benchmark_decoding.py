"""scripts/benchmark/decoding.py: what it compares and reports; not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import commands
from benchmark import decoding, measure
from fairseq_sparse.analysis.decoding import load_translator

FLAGS = {
    "softmax": ["--criterion", "cross_entropy"],
    "alpha_relu": ["--criterion", "alpha_relu_loss", "--output-transform", "alpha_relu"],
}
NAMES = [*FLAGS, f"alpha_relu{decoding.STOCK_SEARCH}"]


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = []
    for name, flags in FLAGS.items():
        folder = tmp_path_factory.mktemp(name)
        commands.train(data, folder, "--max-update", 3, *flags)
        paths.append(folder / "checkpoint_last.pt")
    return paths


def call(data: Path, checkpoints: list[Path], *flags: object) -> int:
    paths = ["--path", *checkpoints, "--names", *list(FLAGS)[: len(checkpoints)]]
    arguments = [str(argument) for argument in (data, *paths, *flags)]
    options = decoding.parse_arguments(arguments)
    return measure.main("decoding", options, decoding.run, decoding.table)


def test_table_and_json(data, checkpoints, tmp_path, capsys) -> None:
    flags = ["--beams", "1-2", "--batches", "1,3", "--bins", 2, "--sentences", 6, "--rounds", 2]
    flags += ["--stock", "--json", tmp_path / "out.json", "--plots", tmp_path / "plots"]
    assert call(data, checkpoints, *flags) == 0
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == {"beams", "source_lengths"}
    results = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    found = [(row["part"], row["batch"], row["beam"], row["model"]) for row in results]
    beams = [("beam", batch, beam, name) for batch in (1, 3) for beam in (1, 2) for name in NAMES]
    assert found[: len(beams)] == beams
    assert found[len(beams) :] == [("source length", 3, 5, name) for name in NAMES] * 2
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]
    assert [row[3] for row in cells] == [row["model"] for row in results]
    for result, row in zip(results, cells, strict=True):
        if "failed" in result:
            assert result["model"] == NAMES[2] and row[4:] == ["-", "failed", "-", "-"]
            continue
        assert len(result["seconds"]) == 2 and result["rate"] > 0 and result["length"] >= 1
        if result["model"] == "softmax":
            assert result["speed"] == 1


def test_batches_and_bins_hold_each_sentence_once(data, checkpoints) -> None:
    options = decoding.parse_arguments([str(data), "--path", str(checkpoints[0]), "--bins", "4"])
    translator = load_translator(str(checkpoints[0]), str(data), True, range(19))
    order = decoding.sorted_sentences(translator, "test")
    bins = decoding.length_bins(translator, options)
    assert len(bins) == 4 and [row for _, rows in bins for row in rows] == order
    samples = decoding.in_batches(translator, "test", order, 3)
    ids = [number for sample in samples for number in sample["id"].tolist()]
    assert sorted(ids) == list(range(19))
    lengths = [sample["net_input"]["src_lengths"].max().item() for sample in samples]
    assert lengths == sorted(lengths) and max(len(sample["id"]) for sample in samples) == 3


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--subset", "no_such"], "--subset no_such"),
        (["--path", "/no/such.pt", "--names", "x"], "/no/such.pt"),
    ],
)
def test_bad_input_is_one_line(flags, message, data, checkpoints, capsys) -> None:
    assert call(data, checkpoints[:1], *flags) == 1
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith("decoding: error: ") and message in printed


@pytest.mark.parametrize(
    "flags", [["--beams", "x"], ["--bins", "-1"], ["--names", "a", "b"], ["--json", "/no/such/x"]]
)
def test_bad_usage(flags, capsys) -> None:
    with pytest.raises(SystemExit):
        decoding.parse_arguments(["data", "--path", "x", *flags])
    assert flags[0] in capsys.readouterr().err
