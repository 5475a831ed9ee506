"""The script that runs the tests under each Python: its arguments, and its table."""

from __future__ import annotations

import os
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
        f"""folder=.venv
        while (($# > 0)); do
            case "$1" in
                --venv) folder="$2" ;;
                --fails) failures=2 ;;
                --stops) exit 3 ;;
                --quick) seconds=9.00s ;;
            esac
            shift
        done
        mkdir -p "$folder/bin"
        printf '#!/bin/sh\\nexec "{sys.executable}" "$@"\\n' > "$folder/bin/python"
        chmod +x "$folder/bin/python"
        echo "seed ${{TEST_SEED:-1}}, threads ${{TEST_THREADS:-1}}, options ${{PYTEST_ADDOPTS:-}}"
        echo "== ${{failures:+2 failed, }}8 passed, 1 skipped in ${{seconds:-60.00s (0:01:00)}} =="
        exit "${{failures:-0}}"
        """
    )
    return scripts.parent


def matrix(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", checkout / "scripts" / "test_matrix.sh", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def rows_of(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_a_run_of_seconds_has_ended_too(checkout):
    done = matrix(checkout, "--python", "python3", "--quick")
    assert done.returncode == 0 and "| 8 passed, 1 skipped in 9.00s |" in done.stdout


@pytest.mark.parametrize(
    ("flags", "result"),
    [([], "8 passed"), (["--fails"], "2 failed, 8 passed"), (["--stops"], None)],
)
def test_the_table_has_what_the_tests_gave(checkout, flags, result):
    done = matrix(checkout, "--python", "python3", *flags)
    assert done.returncode == (result != "8 passed"), done.stderr
    ended = [["full", f"{result}, 1 skipped in 60.00s (0:01:00)"]] if result else []
    assert [row[2:4] for row in rows_of(done.stdout)] == ended
    assert matrix(checkout, "--table").stdout == done.stdout
    assert "-m ''" in done.stderr or result != "2 failed, 8 passed"  # the log of a failure


def test_each_setting_sets_its_variables(checkout):
    done = matrix(checkout, "--setting", "seed", "--setting", "threads")
    assert {row[2] for row in rows_of(done.stdout)} == {"seed", "threads"}
    for name, expected in (("seed", "seed 2, threads 1"), ("threads", "seed 1, threads 2")):
        log = checkout / "runs" / "test_matrix" / ".venv" / name / "log"
        assert log.read_text().startswith(f"{expected}, options \n")
    assert matrix(checkout, "--setting", "sse9").returncode == 1


def test_all_settings_run_in_the_main_environment_and_full_under_each_python(checkout):
    (checkout / "bin").mkdir()
    for name in ("python3.10", "python3.13"):
        (checkout / "bin" / name).write_text(
            '#!/bin/sh\n[ -n "$2" ] && case "$2" in *version*) echo "3${0##*python3}.0";; esac; :\n'
        )
        (checkout / "bin" / name).chmod(0o755)
    done = matrix(checkout, PATH=f"{checkout / 'bin'}:/usr/bin:/bin", PYENV_ROOT="/nowhere")
    assert done.returncode == 0, done.stderr
    settings = [row[2] for row in rows_of(done.stdout)]
    assert settings.count("full") >= 2  # of the machine's own Pythons, too
    assert len({*settings}) > 5 and settings.count("plain") == 1


def test_a_python_that_is_not_there_is_named(checkout):
    done = matrix(checkout, "--python", "python2.99")
    assert done.returncode == 1 and done.stderr.endswith("there is no python2.99\n")
