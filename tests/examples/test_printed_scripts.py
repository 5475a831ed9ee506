"""The recipes in examples/ as plain commands: they are what ``--print`` gives."""

import shlex

import pytest

import toy
from fairseq_sparse.commands import run

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
    assert run.main(shlex.split(line.removeprefix(MARK))) == 0
    assert capsys.readouterr().out == SCRIPTS[name]
