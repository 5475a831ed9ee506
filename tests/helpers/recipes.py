"""The recipes of ``examples/``, run by their own command lines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fork_python import PYTHON

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
USER_DIR = str(EXAMPLES.parent / "fairseq_sparse")


def command(script: str, *arguments: object) -> list[str]:
    """Return the command line of a script of ``examples/``."""
    return ["bash", str(EXAMPLES / script), *map(str, arguments)]


def environment(**variables: object) -> dict[str, str]:
    """Return a recipe's environment: this Python, few workers, and ``variables`` (None: unset)."""
    kept = {name: os.environ.get(name) for name in ("PATH", "HOME", "TMPDIR")}
    kept |= {"PYTHON": PYTHON, "OMP_NUM_THREADS": 1, "WORKERS": 2}
    kept |= {"PYTHON_EXEC": PYTHON} | variables  # which torchrun starts workers with
    return {name: str(value) for name, value in kept.items() if value is not None}


def run(
    script: str, *arguments: object, check: bool = True, **variables: object
) -> subprocess.CompletedProcess:
    """Run a script from a folder outside the project; its ``stdout`` includes the errors.

    With ``check``, a script that fails fails the test.
    """
    result = subprocess.run(
        command(script, *arguments),
        env=environment(**variables),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    if check:
        assert result.returncode == 0, result.stdout
    return result


def loaded(dataset: str, config: str, show: str, settings: str = "") -> list[str]:
    """Return the words to which bash expands ``show`` in a recipe of the variant softmax."""
    script = f"source '{EXAMPLES}/stages/common.sh'; load_recipe; printf '%s\\n' {show}"
    names = {"DATASET": dataset, "VARIANT": "softmax", "SETTINGS": settings, "CONFIG": config}
    names |= {"DATA_DIR": "data", "RUN_DIR": "run", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(["bash", "-c", script], env=names, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()
