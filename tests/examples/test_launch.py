"""examples/launch: a recipe's training by several workers, on one machine and on several.

Commands with Slurm's names stand in for it: they start the tasks of a job on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import commands
import recipes
import toy

RECIPE = ("multi30k_de_en", "alpha_relu", "--cpu", "--stages", "train")
# Flags given last win: a model and a training that take seconds.
TINY = (
    "--encoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --decoder-layers 1 --decoder-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2 --dropout 0.1 "
    "--lr 1e-2 --warmup-updates 10 --log-interval 2 --max-epoch "
)
EPOCHS = 40

SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$SLURM_FOLDER/submitted"
cat > "$SLURM_FOLDER/slurm_script"
SLURM_JOB_ID=7 SLURM_JOB_NODELIST='node[1-2]' exec bash "$SLURM_FOLDER/slurm_script"
"""
SCONTROL = """#!/usr/bin/env bash
[[ "$*" == 'show hostnames node[1-2]' ]] && printf 'localhost\\nnode2\\n'
"""
SRUN = f"""#!{sys.executable}
import os, subprocess, sys, time
options, command = {{}}, sys.argv[1:]
while command[0].startswith("--"):
    name, _, value = command.pop(0).partition("=")
    options[name] = value or command.pop(0)
assert options["--nodes"] == options["--ntasks"] == "2" and options["--ntasks-per-node"] == "1"
tasks = [
    subprocess.Popen(command, env={{**os.environ, "SLURM_NODEID": str(node)}}) for node in range(2)
]
while None in (codes := [task.poll() for task in tasks]):
    if options["--kill-on-bad-exit"] == "1" and any(codes):
        for task in tasks:
            task.terminate()
    time.sleep(0.1)
sys.exit(any(codes))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A --data-dir in which toy text stands for the prepared data."""
    bin_folder = toy.binarised_text(tmp_path_factory.mktemp("text"))
    folder = tmp_path_factory.mktemp("data") / "Daten für, uns"
    shutil.copytree(bin_folder, folder / "prepared" / "bin")
    (folder / "prepared" / "settings").write_text("toy text\n")
    return folder


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, object]:
    """Return variables with which a recipe finds the stand-in, with jobs of two machines."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SLURM_FOLDER": folder}


def variables(epochs: int, **more: object) -> dict[str, object]:
    return {"BATCH_TOKENS": 400, "AVERAGE_LAST": 2, "TRAIN_FLAGS": f"{TINY} {epochs}", **more}


def start(script: str, *arguments: object, **variables: object) -> subprocess.Popen:
    """Start a recipe, as :func:`recipes.run` does, and do not wait for it."""
    return subprocess.Popen(
        recipes.command(script, *arguments),
        env=recipes.environment(**variables),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def kill_worker(rank: int, folder: Path) -> None:
    """Kill a worker of the training in a folder, and the processes that read data for it."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            arguments = (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if f"RANK={rank}".encode() in variables and os.fsencode(folder) in arguments:
            os.kill(int(process.name), signal.SIGKILL)
            killed += 1
    assert killed


@pytest.mark.slow
def test_a_slurm_job_trains_on_all_its_machines(data: Path, slurm, tmp_path: Path) -> None:
    folder = tmp_path / "Läufe hier"
    options = ("--nodes", 2, "--comment", "zwei Rechner", "--")
    command = ("launch/slurm.sh", *options, *RECIPE, "--data-dir", data, "--run-dir", folder)
    output = recipes.run(*command, **variables(2, **slurm)).stdout
    assert "400 tokens = 2 device(s) x 200 tokens x 1" in output
    assert output.count("tau of alpha_relu") == 1
    assert (folder / "train.json").is_file() and (folder / "checkpoints/checkpoint2.pt").is_file()
    submitted = (slurm["SLURM_FOLDER"] / "submitted").read_text().splitlines()
    assert {"--nodes", "2", "--comment", "zwei Rechner"} < set(submitted)
    assert "] done already: " in recipes.run(*command, **variables(2, **slurm)).stdout


@pytest.mark.slow
def test_machines_by_torchrun_meet_after_the_preparation(tmp_path: Path) -> None:
    """The second machine only waits and trains."""
    port = commands.free_port()
    place = (f"--nnodes=2 --master_addr 127.0.0.1 --master-port {port} --node-rank").split()
    folder = tmp_path / "run"
    recipe = ("quickstart", "softmax", "--cpu", "--data-dir", tmp_path / "data")
    recipe += ("--run-dir", folder, "--stages", "prepare-average")
    corpus = "--train 3000 --valid 30 --test 20 --held-out 6"
    small = variables(1, AVERAGE_LAST=1, CORPUS_FLAGS=corpus)
    machines = [start("launch/torchrun.sh", *place, rank, *recipe, **small) for rank in (1, 0)]
    second, first = (machine.communicate(timeout=900)[0] for machine in machines)
    assert [machine.returncode for machine in machines] == [0, 0], first + second
    assert "waiting for machine 0 to prepare" in second and "[prepare]" not in second
    assert "trained, with machine 0" in second and "[average]" not in second
    assert (folder / "train.json").is_file() and (folder / "average.pt").is_file()
    for rank in (1, 0):
        again = recipes.run("launch/torchrun.sh", *place, rank, *recipe, **small).stdout
        assert f"[train] done already: {folder}/train.json" in again


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    command = ("launch/torchrun.sh", "--nproc-per-node", 2, *RECIPE)
    recipes.run(*command, "--data-dir", data, "--run-dir", folder, **variables(EPOCHS))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker in /proc")
@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_a_killed_worker_ends_the_run_which_then_resumes(
    launcher: str, data: Path, undisturbed: Path, slurm, tmp_path: Path
) -> None:
    """The run has dropout, and ends with the parameters of an undisturbed run."""
    folder = tmp_path / "run"
    options = ("--nproc-per-node", 2) if launcher == "torchrun" else ("--nodes", 2, "--")
    command = (f"launch/{launcher}.sh", *options, *RECIPE, "--data-dir", data, "--run-dir", folder)
    # kill_worker looks the workers up in /proc.
    environment = variables(EPOCHS, **slurm, PYTHON=sys.executable, PYTHON_EXEC=sys.executable)
    with start(*command, **environment) as process:
        for line in process.stdout:
            if '"epoch": 3' in line:
                break
        kill_worker(1, folder)
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert not (folder / "train.json").exists()

    output = recipes.run(*command, **environment).stdout
    assert "resuming from" in output and '"epoch": 1,' not in output
    assert (folder / "train.json").is_file()
    expected, found = (
        commands.parameters(run / "checkpoints/checkpoint_last.pt") for run in (undisturbed, folder)
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_workers_are_not_started_by_hand() -> None:
    command = [sys.executable, str(recipes.EXAMPLES / "launch" / "worker.py")]
    result = subprocess.run(command, env=recipes.environment(), capture_output=True, text=True)
    assert result.returncode == 1 and "torchrun" in result.stderr.splitlines()[-1]
    environment = recipes.environment(WORLD_SIZE=3, LAUNCH_DEVICES=4)
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 1 and "--nproc-per-node" in result.stderr


def test_a_job_without_machines_is_refused() -> None:
    variables = {"SLURM_JOB_ID": 3, "SLURM_JOB_NODELIST": None}
    result = recipes.run("launch/slurm.sh", *RECIPE, check=False, **variables)
    assert result.returncode == 1 and "unbound" not in result.stdout
    assert "job 3" in result.stdout


def test_where_slurm_is_not_or_has_copied_the_script(tmp_path: Path) -> None:
    result = recipes.run("launch/slurm.sh", *RECIPE, check=False, PATH="/usr/bin:/bin")
    assert result.returncode == 1 and "sbatch" in result.stdout
    copy = shutil.copy(recipes.EXAMPLES / "launch" / "slurm.sh", tmp_path)
    result = subprocess.run(["bash", copy, *RECIPE], capture_output=True, text=True)
    assert result.returncode == 2
