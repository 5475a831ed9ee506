"""The recipes in examples/ as plain commands: they are what ``--print`` gives."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toy
from fairseq_sparse.commands import cli

RAW_DIR = os.environ.get("RAW_DIR")
MARK = "# Printed by: fairseq-sparse run "
SCRIPTS = {
    path.name: path.read_text("utf-8")
    for path in sorted((toy.ROOT / "examples").glob("*.sh"))
    if MARK in path.read_text("utf-8")
}


def test_there_are_scripts_for_the_papers_and_small_data():
    assert {"iwslt14_de_en.sh", "multi30k_de_en.sh", "extract_alignments.sh"} <= SCRIPTS.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_what_its_command_prints(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAW_DIR", raising=False)
    (line,) = (text for text in SCRIPTS[name].splitlines() if text.startswith(MARK))
    assert cli.run("run", shlex.split(line.removeprefix(MARK))) == 0
    assert capsys.readouterr().out == SCRIPTS[name]


@pytest.mark.slow
@pytest.mark.skipif(not RAW_DIR, reason="RAW_DIR has to name a folder with the files of Multi30k")
def test_a_whole_script_gives_the_score_of_the_engine(tmp_path):
    """For one epoch of training, which is all that is changed in a copy of the script."""
    text = SCRIPTS["multi30k_de_en.sh"]
    for flag, value in {
        "--max-epoch": 20,
        "--keep-last-epochs": 5,
        "--num-epoch-checkpoints": 5,
    }.items():
        assert text.count(f"{flag} {value}") == 1
        text = text.replace(f"{flag} {value}", f"{flag} 1")
    raw = tmp_path / "script" / "data" / "multi30k_de_en" / "raw"
    shutil.copytree(RAW_DIR, raw)  # so that nothing is downloaded
    engine = "fairseq-sparse run multi30k_de_en entmax15 --cpu --epochs 1 --average 1"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for folder, commands in {"script": text, "engine": engine}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        environment = {**os.environ, "PATH": path}
        subprocess.run(["bash", "-c", commands], cwd=tmp_path / folder, env=environment, check=True)
    own, other = (tmp_path / name / "runs/multi30k_de_en" for name in ("script", "engine"))
    for file in ("bleu.json", "hyp.detok.txt"):
        assert _content(own, file) == _content(other, file)


def _content(runs, file):
    (path,) = runs.glob(f"*/{file}")
    return path.read_text("utf-8")
