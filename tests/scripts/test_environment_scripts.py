"""The scripts that make environments and test in them: what they refuse before they begin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import toy


def refusal(script: str, *arguments: object) -> str:
    """Return the one line with which a script refuses its command line."""
    command = ["bash", f"{toy.ROOT}/scripts/{script}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{script}: error: ")
    return line


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("setup_env.sh", ("--bogus",)),
        ("setup_env.sh", ("--python",)),
        ("setup_env.sh", ("--python", "/")),
        ("setup_env.sh", ("--python", "cat")),
        ("test.sh", ("--venv", "x", "--active")),
        ("test_matrix.sh", ("--python", "cat")),
    ],
)
def test_a_wrong_command_line_is_one_line(script: str, arguments: tuple) -> None:
    assert arguments[-1] in refusal(script, *arguments)


def test_a_folder_of_other_files_is_not_emptied(tmp_path: Path) -> None:
    """A new environment would replace everything in its folder."""
    folder, file = tmp_path / "papers", tmp_path / "file"
    folder.mkdir()
    for path in (folder / "thesis.tex", file):
        path.write_text("kept")
    command = ("setup_env.sh", "--python", sys.executable, "--venv")
    for path in (folder, file):
        assert str(path) in refusal(*command, path)
    (folder / "pyvenv.cfg").touch()  # an environment of the user's own
    assert str(folder) in refusal(*command, folder)
    assert (folder / "thesis.tex").read_text() == file.read_text() == "kept"


def test_an_environment_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    """This script began it: it may be emptied, and stays its own if it is interrupted again."""
    folder = tmp_path / "a venv"
    folder.mkdir()
    (folder / "fairseq_sparse.stamp").write_text("unfinished")
    (folder / "old").touch()
    python = tmp_path / "python"  # makes no environment: as if interrupted there
    python.write_text(f'#!/bin/sh\n[ "$2" = venv ] && exit 1\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    command = ["bash", f"{toy.ROOT}/scripts/setup_env.sh", "--python", python, "--venv", folder]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == 1
    assert [path.name for path in folder.iterdir()] == ["fairseq_sparse.stamp"]
