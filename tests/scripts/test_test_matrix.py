"""The script that runs the tests under each Python: its arguments, and its table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toy


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the script beside a test.sh that only makes an environment and writes results."""
    scripts = tmp_path / "a clone" / "scripts"
    scripts.mkdir(parents=True)
    shutil.copy(Path(toy.ROOT, "scripts", "test_matrix.sh"), scripts)
    (scripts / "test.sh").write_text(
        f"""while (($# > 0)); do
            case "$1" in
                --venv)
                    mkdir -p "$2/bin"
                    printf '#!/bin/sh\\nexec "{sys.executable}" "$@"\\n' > "$2/bin/python"
                    chmod +x "$2/bin/python"
                    ;;
                --junitxml) results="$2" ;;
                --fails) failures=2 ;;
                --stops) exit 3 ;;
            esac
            shift
        done
        {{
            printf '<testsuites><testsuite tests="9" skipped="1" errors="0" time="60" '
            printf 'failures="%s"/></testsuites>' "${{failures:-0}}"
        }} > "$results"
        exit "${{failures:-0}}"
        """
    )
    return scripts.parent


def matrix(checkout: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = ["bash", checkout / "scripts" / "test_matrix.sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("flags", "status", "results"),
    [([], 0, ["8", "1", "0", "1"]), (["--fails"], 1, ["6", "1", "2", "1"]), (["--stops"], 1, None)],
)
def test_the_table_has_what_the_tests_gave(checkout, flags, status, results):
    done = matrix(checkout, "--python", "python3", *flags)
    assert done.returncode == status, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[4:8] for row in rows] == ([results] if results else [])
    assert matrix(checkout, "--table").stdout == done.stdout
    assert results or "did not run to the end" in done.stderr


def test_a_python_that_is_not_there_is_named(checkout):
    done = matrix(checkout, "--python", "python2.99")
    assert done.returncode == 1 and done.stderr.endswith("there is no python2.99\n")
