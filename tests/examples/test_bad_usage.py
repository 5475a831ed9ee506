"""The recipes tell their usage, and refuse invalid names and unusable folders."""

from __future__ import annotations

from pathlib import Path

import pytest

import recipes

RECIPES = {
    "run.sh": ("quickstart", "softmax", "--stages", "analyze"),
    "sweep.sh": ("quickstart",),
}


def refusal(script: str, *arguments: object, status: int, **variables: object) -> str:
    """Return the output of a recipe that must end with ``status``."""
    result = recipes.run(script, *arguments, check=False, **variables)
    assert result.returncode == status, result.stdout
    return result.stdout


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("run.sh", ("../datasets/quickstart", "softmax"), "unknown data set '../datasets/quick"),
        ("run.sh", ("quickstart", "../variants/softmax"), "unknown variant '../variants/softmax'"),
        ("run.sh", ("quickstart", ""), "unknown variant ''"),
        (
            "run.sh",
            ("quickstart", "softmax", "--settings", "../variants/softmax"),
            "unknown settings '../variants/softmax'",
        ),
        ("run.sh", ("quickstart", "softmax", "--stages", "1-2-3"), "'1-2-3' is not a range of"),
        ("run.sh", ("quickstart", "softmax", "--stages", ","), "unknown stage ''"),
        ("sweep.sh", ("../datasets/quickstart",), "unknown data set '../datasets/quickstart'"),
        ("sweep.sh", ("quickstart", "--seeds", "1 2  1"), "'1 2  1' has 1 twice"),
        ("sweep.sh", ("quickstart", "--output-alphas", "2 2"), "'2 2' has 2 twice"),
        ("mbr.sh", (), "a run is needed"),
        ("mbr.sh", ("x",), "--out is needed"),
        ("mbr.sh", ("x", "--out", "y", "--samples", "0"), "--samples 0: a number is needed"),
        ("mbr.sh", ("x", "--out", "y", "--utility", "ter"), "--utility ter: chrf or bleu"),
        ("quickstart/run.sh", ("../variants/softmax",), "unknown variant '../variants/softmax'"),
    ],
)
def test_only_names_are_names(script: str, arguments: tuple, message: str) -> None:
    assert message in refusal(script, *arguments, status=2)


@pytest.mark.each_value
@pytest.mark.parametrize("option", ["--data-dir", "--run-dir", "--sweep-dir"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a:b", "fairseq takes ':' for the end of a path; use another folder: "),
        ("a\tb", "must have no tab or line break; use another: "),
        ("a\nb", "must have no tab or line break; use another: "),
        ("file", ": this folder cannot be made (see above); choose another"),
        ("file/inside", ": this folder cannot be made (see above); choose another"),
    ],
)
def test_folder_that_cannot_be_used(option: str, name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    script = "sweep.sh" if option == "--sweep-dir" else "run.sh"
    folders = {"--data-dir": tmp_path / "data", option: tmp_path / name}
    if script == "run.sh":
        folders = {"--run-dir": tmp_path / "run", **folders}
    arguments = [part for pair in folders.items() for part in pair]
    said = refusal(script, *RECIPES[script], "--cpu", *arguments, status=1)
    assert message in said.splitlines()[-1]
    if name.startswith("file"):
        assert f"{option}{message}" in said
    assert (tmp_path / "file").read_text() == "kept" and not (tmp_path / name.strip()).is_dir()


def test_folders_of_any_other_name_are_used(tmp_path: Path) -> None:
    for name in ("-rf", "a 'quoted' \"one\"", "$HOME `x` \\n *", "Läufe für uns", ".hidden"):
        folder = tmp_path / name
        options = ("--cpu", "--data-dir", folder / "data", "--run-dir", folder / "run")
        said = refusal("run.sh", *RECIPES["run.sh"], *options, status=1)
        assert f"no prepared data in {folder}/data/prepared: run the stage prepare first" in said
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
    assert f"{run} was not trained on the data in {tmp_path}/data/prepared" in text


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
