"""Files of scripts/ that are only imported by other scripts say so when they are started."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_every_file_is_a_command_or_says_that_it_is_none():
    for path in SCRIPTS.glob("*.py"):
        assert 'if __name__ == "__main__":' in path.read_text("utf-8"), path.name


@pytest.mark.parametrize(
    "name", ["command_line.py", "corpus_files.py", "corpus_tokens.py", "corpus_workers.py"]
)
def test_a_part_of_other_scripts_says_so(name):
    command = [sys.executable, str(SCRIPTS / name)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{name} is not a command: it is a part of ")
