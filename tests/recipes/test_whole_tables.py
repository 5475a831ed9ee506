"""Tables, a sweep, an ensemble and minimum Bayes risk, with models that are really trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_sparse.commands import cli, reproduce
from fairseq_sparse.recipes.tables import Table

pytestmark = pytest.mark.slow

CORPUS = "quickstart/make_corpus.py,--train,1000,--valid,30,--test,20,--held-out,6"
SMALL = [f"corpus.made_by={CORPUS}", "corpus.bpe_merges=60", "generate.max-len-b=10"]
for side in ("encoder", "decoder"):
    SMALL += [f"{side}-layers=1", f"{side}-embed-dim=32", f"{side}-ffn-embed-dim=32"]
LSTM = [
    f"{side}-{size}=8" for side in ("encoder", "decoder") for size in ("embed-dim", "hidden-size")
]
LSTM += ["decoder-out-embed-dim=8", "lr=3e-2", "num-workers=0"]


def settings(values: list[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs of a table of two models."""
    folder = tmp_path_factory.mktemp("Projekt für uns & alle")
    rows = (("softmax", {}), ("alpha_relu", {"output_tau": "0.5"}))
    fields = {"datasets": ("quickstart",), "columns": ("empty_is_best", "bleu", "hours")}
    table = Table("tiny", "1", "tiny", rows=rows, empty=True, **fields)
    arguments = ["tiny", "1", "--cpu", "--seeds", "1", "--jobs", "2", "--epochs", "1"]
    arguments += ["--average", "1", *settings(SMALL)]
    arguments += ["--data", str(folder / "data"), "--runs", str(folder / "runs")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "read_table", lambda paper, name: table)
        for _ in range(2):  # finished runs are skipped
            assert cli.run("reproduce", arguments) == 0
    return folder


def test_models_are_trained_and_their_empty_translations_counted(folder: Path) -> None:
    table = json.loads((folder / "runs" / "tables" / "tiny_1-cpu.json").read_text())
    softmax, sparse = table["datasets"]["quickstart"]["rows"]
    assert sparse["row"] == "alpha_relu, τ = 0.5"
    for row in (softmax, sparse):
        seed = row["seeds"]["1"]
        assert 0 <= seed["empty_is_best"] <= 1 and seed["bleu"] >= 0 and seed["hours"] > 0
        log = Path(seed["folder"]) / "logs" / "train.log"
        assert log.read_text(encoding="utf-8").count("$ fairseq-train") == 1
    assert 0 < sparse["seeds"]["1"]["p"] <= 1
    trained = json.loads((Path(sparse["seeds"]["1"]["folder"]) / "run.json").read_text())
    assert (
        trained["model"]["output_tau"] == "0.5" and trained["training"]["flags"]["max-epoch"] == 1
    )


def test_finished_runs_decode_together(folder: Path, capfd) -> None:
    runs = [str(path) for path in sorted((folder / "runs" / "quickstart").glob("*-cpu"))]
    together = folder / "both"
    for said in ("finished in", "done already"):
        assert cli.run("ensemble", [*runs, "--run-dir", str(together)]) == 0
        printed = capfd.readouterr()
        assert said in printed.err and "ensemble of 2: " in printed.out
    summary = json.loads((together / "summary.json").read_text())
    assert summary["members"] == [Path(run).name for run in runs] and summary["seeds"] == [1, 1]
    for wrong, why in (
        ([runs[0], runs[0]], "given twice"),
        (runs[:1], "at least two"),
        ([runs[0], str(folder)], "no run.json"),
        ([*runs, "--run-dir", runs[0]], "must not be the folder of a run"),
        ([*runs[1:], "--run-dir", runs[0]], "must not be the folder of a run"),
    ):
        assert cli.run("ensemble", ["--run-dir", str(together), *wrong]) == 1
        assert why in capfd.readouterr().err
    own = folder / "own" / "bleu.json"
    own.parent.mkdir()
    own.write_text("mine")
    assert cli.run("ensemble", [*runs, "--run-dir", str(own.parent)]) == 1
    assert str(own) in capfd.readouterr().err and own.read_text() == "mine"


def test_samples_are_chosen_from_and_compared(folder: Path, capfd) -> None:
    runs = [str(path) for path in sorted((folder / "runs" / "quickstart").glob("*-cpu"))]
    out = folder / "mbr"
    for said in ("finished in", "done already"):
        assert cli.run("compare-mbr", [*runs, "--output-folder", str(out), "--samples", "3"]) == 0
        printed = capfd.readouterr()
        assert said in printed.err
    for name in ("softmax-cpu", "alpha_relu-tau-0.5-cpu"):
        assert f"beam/{name}" in printed.out
        for method in ("sampled", "epsilon", "nucleus"):
            assert f"mbr-chrf/{name}-{method}" in printed.out
            chosen = (out / "mbr-chrf" / f"{name}-{method}").read_text(encoding="utf-8")
            samples = (out / "samples" / f"{name}-{method}" / "generate-test.txt").read_text()
            assert chosen.count("\n") == 20
            # A sample that alpha_relu cannot continue is dropped.
            assert samples.count("\nD-0\t") in ({3} if name == "softmax-cpu" else {1, 2, 3})


def test_a_sweep_fills_its_tables_and_goes_on_where_it_was(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    stems = [a + b for a in ("ba", "ne", "mu") for b in ("kam", "ro", "liş")]
    ends = (("", "SG"), ("ler", "PL"))
    lines = [f"{stem}\t{stem}{end}\t{tags}\n" for stem in stems for end, tags in ends]
    for part in ("train-medium", "dev", "test"):
        (raw / f"turkish-{part}").write_text("".join(lines), encoding="utf-8")
    arguments = ["sigmorphon2018_medium_part", "--cpu", "--jobs", "2", "--epochs", "1"]
    arguments += ["--raw-dir", str(raw), *settings([*LSTM, "corpus.languages=turkish"])]
    arguments += ["--data", str(tmp_path / "data"), "--runs", str(tmp_path / "Läufe hier")]
    arguments += ["--output-alphas", "1.5"]
    assert cli.run("sweep", [*arguments, "--attention-alphas", "1,1.25", "--seed", "1"]) == 0
    stem = tmp_path / "Läufe hier" / "tables" / "sweep_sigmorphon2018_medium_part-cpu"
    grid = json.loads(stem.with_suffix(".json").read_text())["grid"]
    assert [cell["model"]["attention_alpha"] for cell in grid] == [1.0, 1.25]
    assert all(list(cell["seeds"]) == ["1"] and not cell["ensemble"] for cell in grid)
    (first,) = tmp_path.rglob("*-attention-1-cpu/average.pt")
    before = first.stat().st_mtime_ns

    assert cli.run("sweep", [*arguments, "--attention-alphas", "1", "--seed", "1,2"]) == 0
    assert first.stat().st_mtime_ns == before
    (cell,) = json.loads(stem.with_suffix(".json").read_text())["grid"]
    assert list(cell["seeds"]) == ["1", "2"] and cell["ensemble"]
    table = stem.with_suffix(".md").read_text(encoding="utf-8")
    (path,) = tmp_path.rglob("*-ensemble/summary.json")
    summary = json.loads(path.read_text())
    assert len(summary["members"]) == 2 and "ensembles of the seeds" in table
    assert "not comparable" in summary["dataset_note"] and summary["dataset_note"] in table
