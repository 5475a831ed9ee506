"""The commands of the environment, as scripts that fork a Python which has loaded torch."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from fork_python import PYTHON


def path_with_commands(folder: Path, *names: str) -> str:
    """Write scripts of these commands, and of ``python``, and return a PATH that finds them."""
    folder.mkdir()
    programs = {"python": PYTHON}
    for name in names:
        (found,) = metadata.entry_points(group="console_scripts", name=name)
        start = f"import sys; from {found.module} import {found.attr}; sys.argv[0] = '{name}'"
        programs[name] = f'{PYTHON} -c "{start}; sys.exit({found.attr}())"'
    for name, program in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
