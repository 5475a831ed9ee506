"""Training by several workers, on one machine and on several: their commands, and real ones."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import commands
import toy
from engines import Engine
from fairseq_sparse.recipes import engine, records
from fairseq_sparse.recipes.launch import Launch, join_training
from fairseq_sparse.recipes.plan import Plan
from fairseq_sparse.recipes.recipe import Recipe
from fairseq_sparse.recipes.script import as_script
from fairseq_sparse.recipes.stages import plan


def trained(recipe: Recipe, folder: Path, launch: Launch) -> Plan:
    """Return a plan that trains on toy text, as if it were the prepared data of the recipe."""
    data = folder / "data" / "prepared"
    if not data.exists():
        for new in (data, folder / "text"):
            new.mkdir(parents=True)
        (data / "bin").symlink_to(toy.binarised_text(folder / "text"))
    flags = {**recipe.training.flags, "max-epoch": 2, "lr": "1e-2"}
    training = replace(recipe.training, flags=flags, batch=400, device_batch=400)
    return plan(
        replace(recipe, training=training, data_dir=folder / "data", run_dir=folder / "run"),
        launch=launch,
    )


@pytest.mark.slow
def test_two_workers_of_one_machine(recipe: Recipe, tmp_path: Path) -> None:
    made = trained(recipe, tmp_path, Launch(workers=2))
    engine.run(made, ["train"])
    text = (tmp_path / "run" / "logs" / "train.log").read_text()
    assert "training on 2 devices" in text and "= 200 and max sentences" in text
    assert json.loads((tmp_path / "run" / "train.json").read_text())["epochs"] == 2


@pytest.mark.slow
def test_two_workers_of_a_printed_script(recipe: Recipe, tmp_path: Path) -> None:
    script = as_script(trained(recipe, tmp_path, Launch(workers=2)), ["train"])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and "training on 2 devices" in done.stdout + done.stderr
    assert (tmp_path / "run" / "checkpoints" / "checkpoint2.pt").is_file()


@pytest.mark.slow
def test_two_machines_train_together(recipe: Recipe, tmp_path: Path) -> None:
    """The second waits until the first has prepared the data, and writes nothing but its log."""
    port = commands.free_port()
    plans = [
        trained(recipe, tmp_path, Launch(2, machine, 1, "127.0.0.1", port)) for machine in (0, 1)
    ]
    said = tmp_path / "said"
    said.touch()
    second = Engine(plans[1], said, lambda made: join_training(made, Launch(2, 1)))
    try:
        until = time.monotonic() + 60
        while "waiting for machine 0" not in said.read_text() and time.monotonic() < until:
            time.sleep(0.1)
        prepare = plans[0].stages[0]
        (prepare.folder / "stages").mkdir()
        records.write(prepare, records.FINISHED, records.check(prepare).inputs)
        engine.run(plans[0], ["train"])
        assert second.wait() == 0, said.read_text()
    except BaseException:
        second.kill()
        raise
    assert "training on 2 devices" in (tmp_path / "run" / "logs" / "train.log").read_text()
    assert (tmp_path / "run" / "machine-1" / "logs" / "train.log").is_file()
    third = Engine(plans[1], said, lambda made: join_training(made, Launch(2, 1)))
    assert third.wait() == 0 and "done already" in said.read_text()
