"""examples/sweep.sh: a grid of alphas on a miniature of the inflection task."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

import recipes

DATASET = "sigmorphon2018_medium_part"
# Flags given last win: a model and a training that take seconds.
TINY = (
    "--encoder-embed-dim 8 --encoder-hidden-size 8 --decoder-embed-dim 8 "
    "--decoder-hidden-size 8 --decoder-out-embed-dim 8 --lr 3e-2 --num-workers 0"
)

run = functools.partial(
    recipes.run,
    "sweep.sh",
    check=False,
    TRAIN_FLAGS=TINY,
    MAX_EPOCH=1,
    OMP_NUM_THREADS=None,  # sweep.sh shares out the cores
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    stems = [a + b for a in ("ba", "ne", "mu") for b in ("kam", "ro", "liş")]
    lines = [
        f"{stem}\t{stem}{end}\t{tags}\n"
        for stem in stems
        for end, tags in (("", "SG"), ("ler", "PL"))
    ]
    for part in ("train-medium", "dev", "test"):
        (folder / f"turkish-{part}").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_sweep_fills_its_tables_and_goes_on_where_it_was(raw: Path, tmp_path: Path) -> None:
    folders = ("--data-dir", tmp_path / "Daten hier", "--sweep-dir", tmp_path / "Läufe hier")
    grid = ("--output-alphas", "1.5", "--attention-alphas", "1 1.25", "--cpu", "--jobs", 2)
    first = run(DATASET, *grid, *folders, "--seeds", 1, RAW_DIR=raw)
    assert first.returncode == 0, first.stdout
    sweep = tmp_path / "Läufe hier"
    grid_found = json.loads((sweep / "sweep.json").read_text())["grid"]
    assert [cell["attention_alpha"] for cell in grid_found] == [1.0, 1.25]
    assert all(list(cell["seeds"]) == ["1"] and not cell["ensemble"] for cell in grid_found)
    settings = (sweep / "output-1.5-attention-1.25/seed-1/settings/train").read_text().splitlines()
    assert {"--output-transform entmax15", "--attention-alpha 1.25", "--seed 1"} <= set(settings)

    # With one more seed and a smaller grid, finished runs stay, and the seeds form an ensemble.
    before = (sweep / "output-1.5-attention-1/seed-1/average.pt").stat().st_mtime_ns
    grid = ("--output-alphas", "1.5", "--attention-alphas", "1", "--cpu")
    second = run(DATASET, *grid, *folders, "--seeds", "1 2", RAW_DIR=raw)
    assert second.returncode == 0, second.stdout
    assert (sweep / "output-1.5-attention-1/seed-1/average.pt").stat().st_mtime_ns == before
    cell, other = json.loads((sweep / "sweep.json").read_text())["grid"]
    assert list(cell["seeds"]) == ["1", "2"] and cell["ensemble"] is not None
    assert list(other["seeds"]) == ["1"]
    members = (sweep / "output-1.5-attention-1/ensemble/settings/generate").read_text()
    assert members.count("member ") == 2
    table = (sweep / "sweep.md").read_text(encoding="utf-8")
    summary = json.loads((sweep / "output-1.5-attention-1/ensemble/summary.json").read_text())
    assert "ensembles of the seeds" in table
    assert "not comparable" in summary["dataset_note"] and summary["dataset_note"] in table


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_go_on(raw: Path, tmp_path: Path) -> None:
    folders = ("--data-dir", tmp_path / "data", "--sweep-dir", tmp_path / "sweep")

    # The first seed was trained with other flags, which run.sh refuses to mix.
    wrong = tmp_path / "sweep/output-1.5-attention-1/seed-1"
    (wrong / "settings").mkdir(parents=True)
    (wrong / "settings/train").write_text("another training\n")
    (wrong / "checkpoints").mkdir()
    grid = ("--output-alphas", "1.5", "--attention-alphas", "1", "--seeds", "1 2", "--cpu")
    result = run(DATASET, *grid, *folders, RAW_DIR=raw)
    assert result.returncode == 1
    name = "OUTPUT_ALPHA=1.5 ATTENTION_ALPHA=1, seed 1"
    assert f"{name} failed; its log:" in result.stdout and f"{name}: {wrong}" in result.stdout
    assert "trained with other settings" in (wrong / "run.log").read_text(encoding="utf-8")
    assert "seed 2: done" in result.stdout
