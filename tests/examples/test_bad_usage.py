"""The recipes tell their usage, and refuse invalid names and unusable folders."""

from __future__ import annotations

from pathlib import Path

import pytest

import recipes

RECIPES = {
    "run.sh": ("quickstart", "softmax", "--stages", "analyze", "--cpu"),
    "sweep.sh": ("quickstart", "--cpu"),
    "reproduce.sh": ("rela", 1, "--cpu", "--table-only"),
}


def refusal(script: str, *arguments: object, status: int, **variables: object) -> str:
    """Return the output of a recipe that must end with ``status``."""
    result = recipes.run(script, *arguments, check=False, **variables)
    assert result.returncode == status, result.stdout
    return result.stdout


# The script, its arguments in one string, and the fault that its message must name.
WRONG = """
run.sh | ../datasets/quickstart softmax | '../datasets/quickstart'
run.sh | no_such_data softmax | 'no_such_data'
run.sh | quickstart ../variants/softmax | '../variants/softmax'
run.sh | quickstart | a variant
run.sh | quickstart softmax --settings ../variants/softmax | '../variants/softmax'
run.sh | quickstart softmax --stages 1-2-3 | '1-2-3'
run.sh | quickstart softmax --stages 2-9 | '2-9'
run.sh | quickstart softmax --stages train-prepare | empty range
run.sh | quickstart softmax --stages , | ''
run.sh | quickstart softmax --frobnicate | '--frobnicate'
quickstart/run.sh | ../variants/softmax | '../variants/softmax'
quickstart/run.sh | --jobs 0 | --jobs 0
quickstart/run.sh | --frobnicate | --frobnicate
quickstart/run.sh | --data-dir | --data-dir needs
sweep.sh | | a data set
sweep.sh | ../datasets/quickstart | '../datasets/quickstart'
sweep.sh | quickstart multi30k_de_en | 'multi30k_de_en'
sweep.sh | multi30k_en --cpu | multi30k_en is
sweep.sh | quickstart --jobs 0 | '0'
sweep.sh | quickstart --seeds 1+x | 'x'
sweep.sh | quickstart --seeds 1+2++1 | 1 twice
sweep.sh | quickstart --output-alphas 1.5+0.5 | '0.5'
sweep.sh | quickstart --seeds | --seeds needs
sweep.sh | quickstart --nonsense | '--nonsense'
mbr.sh | | a run
mbr.sh | x | --out is
mbr.sh | x --out y --samples 0 | --samples 0
mbr.sh | x --out y --utility ter | --utility ter
reproduce.sh | | a table
reproduce.sh | rela ../1 | '../1'
reproduce.sh | rela 1 --seeds 0 | '0'
reproduce.sh | rela 1 --jobs x | 'x'
reproduce.sh | rela 1 --seeds 100000000000000000000 | --seeds and
reproduce.sh | rela 1 --settings ../variants/softmax | '../variants/softmax'
reproduce.sh | rela 1 --dataset | --dataset needs
reproduce.sh | rela 1 --dataset ../datasets/quickstart | '../datasets/quickstart'
reproduce.sh | rela 1 --dataset quickstart --dataset quickstart | 'quickstart'
reproduce.sh | rela 1 --nonsense | '--nonsense'
launch/torchrun.sh | --nnodes 2 x y | --node-rank
launch/torchrun.sh | --nnodes=2 --node_rank=1 x y | --master-addr
launch/torchrun.sh | --nnodes=2 --node-rank=2 --master-addr=a x y | --node-rank 2
launch/torchrun.sh | --nproc-per-node all | --nproc-per-node must
launch/torchrun.sh | --nproc-per-node 0 | --nproc-per-node must
launch/torchrun.sh | --nnodes 100000000000000000000 | --nnodes must
launch/torchrun.sh | --master-port 0 | '0'
launch/torchrun.sh | --master-port 99999 | --master-port must
launch/torchrun.sh | --nnodes | --nnodes needs
launch/slurm.sh | --nodes 2 x y | sbatch end
launch/slurm.sh | --nodes 2 -- x | a variant
launch/slurm.sh | x softmax | 'x'
launch/slurm.sh | quickstart ../x | '../x'
launch/machine.sh | --lr 1 | torchrun.sh
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_wrong_command_line_is_refused(line: str) -> None:
    script, arguments, fault = (part.strip() for part in line.split("|"))
    words = [word.replace("+", " ") for word in arguments.split()]
    assert fault in refusal(script, *words, status=2).partition("\n\n")[0]  # before the usage


@pytest.mark.each_value
@pytest.mark.parametrize("option", ["--data-dir", "--run-dir", "--sweep-dir", "--runs"])
@pytest.mark.parametrize("name", ["a:b", "a\tb", "a\nb", "file", "file/inside"])
def test_folder_that_cannot_be_used(option: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    script = {"--sweep-dir": "sweep.sh", "--runs": "reproduce.sh"}.get(option, "run.sh")
    first = "--data" if script == "reproduce.sh" else "--data-dir"
    folders = {first: tmp_path / "data", option: tmp_path / name}
    if script == "run.sh":
        folders = {"--run-dir": tmp_path / "run", **folders}
    arguments = [part for pair in folders.items() for part in pair]
    said = refusal(script, *RECIPES[script], *arguments, status=1)
    assert (option if name.startswith("file") else str(tmp_path)) in said
    assert (tmp_path / "file").read_text() == "kept" and not (tmp_path / name.strip()).is_dir()


def test_folders_of_any_other_name_are_used(tmp_path: Path) -> None:
    for name in ("-rf", "a 'quoted' \"one\"", "$HOME `x` \\n *", "Läufe für uns", ".hidden"):
        folder = tmp_path / name
        options = ("--data-dir", folder / "data", "--run-dir", folder / "run")
        said = refusal("run.sh", *RECIPES["run.sh"], *options, status=1)
        assert f"{folder}/data/prepared: run the stage prepare" in said
        assert (folder / "run" / "logs" / "6_analyze.log").is_file()


@pytest.mark.parametrize(
    ("dataset", "stage"),
    [
        ("multi30k_de_en", "generate"),
        ("tinyshakespeare", "generate"),
        ("multi30k_de_en", "align"),
        ("multi30k_de_en", "analyze"),
        ("tinyshakespeare", "analyze"),
    ],
)
def test_a_model_of_other_data_is_refused(dataset: str, stage: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "prepared" / "bin").mkdir(parents=True)
    (tmp_path / "data" / "prepared" / "settings").write_text("merges 60\n")
    run = tmp_path / "run"
    (run / "settings").mkdir(parents=True)
    (run / "settings" / "train").write_text("data 0123\n--seed 1\n")
    (run / "average.pt").write_text("")
    folders = ("--data-dir", tmp_path / "data", "--run-dir", run)
    text = refusal("run.sh", dataset, "softmax", "--cpu", "--stages", stage, *folders, status=1)
    assert str(run) in text and f"{tmp_path}/data/prepared" in text


def test_language_models_do_not_decode_together(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in "ab"]
    for run in runs:
        run.mkdir()
        for name in ("summary.json", "average.pt", "measures.json"):
            (run / name).write_text("{}")
    text = refusal("ensemble.sh", *runs, "--run-dir", tmp_path / "both", status=1)
    assert f"{runs[0]} is a language model" in text


def test_a_grid_keeps_its_list_when_the_file_is_written_anew(tmp_path: Path) -> None:
    """The same command with --table-only may rewrite it; here the first preparation does."""
    fields = ["quickstart", "softmax", "-", "-", str(tmp_path / "data")]
    lines = ["\t".join([str(n), *fields, str(tmp_path / f"run-{n}")]) for n in (1, 2)]
    plan = tmp_path / "plan"
    plan.write_text("\n".join(lines) + "\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n: > "{plan}"\nexit 1\n')
    python.chmod(0o755)
    names = {"CONFIG": "cpu", "STAGE": "sweep", "PYTHON": python}
    text = refusal("stages/grid.sh", plan, 1, status=1, **names)
    assert plan.read_text() == "" and "2 of 2 runs failed" in text
    assert all(f"quickstart, softmax, seed {n}: no data" in text for n in (1, 2))
