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
    ("script", "arguments", "message"),
    [
        ("setup_env.sh", ("--bogus",), "unknown argument --bogus (see --help)"),
        ("setup_env.sh", ("--python",), "--python needs an interpreter"),
        ("setup_env.sh", ("--python", "/"), "is not an interpreter"),
        ("setup_env.sh", ("--python", "cat"), "is not a Python: name another"),
        ("test.sh", ("--active", "--venv", "x"), "leave out --active"),
        ("test_matrix.sh", ("--python", "cat"), "is not a Python: name another with --python"),
    ],
)
def test_a_wrong_command_line_is_one_line(script: str, arguments: tuple, message: str) -> None:
    assert message in refusal(script, *arguments)


def test_a_folder_of_other_files_is_not_emptied(tmp_path: Path) -> None:
    """A new environment would replace everything in its folder."""
    folder, file = tmp_path / "papers", tmp_path / "file"
    folder.mkdir()
    for path in (folder / "thesis.tex", file):
        path.write_text("kept")
    command = ("setup_env.sh", "--python", sys.executable, "--venv")
    assert "which would be lost: name a new folder with --venv" in refusal(*command, folder)
    assert "is not a folder: name another with --venv" in refusal(*command, file)
    assert (folder / "thesis.tex").read_text() == file.read_text() == "kept"
