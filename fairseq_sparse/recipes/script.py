"""A plan as one bash script, which needs nothing but the installed commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from fairseq_sparse.recipes.plan import CORES, Argument, Command, Plan

_WIDTH = 96
# Variables that a script finds out by itself.
_FOUND = {
    "USER_DIR": '"$(python -m fairseq_sparse)"',
    "EXAMPLES": '"$(dirname "$USER_DIR")/examples"',
}
_TITLES = {
    "prepare": "Text -> tokens -> subwords -> fairseq's binary format",
    "train": "Training; the same command again resumes it",
    "average": "The model that is used: an average of checkpoints, or the best one",
    "generate": "Decoding and scoring of the test set",
    "align": "Word alignments from the cross-attention",
    "analyze": "Statistics of output and attention on the references",
}


def as_script(plan: Plan, names: Sequence[str] = (), origin: str = "") -> str:
    """Return a plan as a bash script that makes the same files as the engine.

    Paths below the current directory are relative, so that the script can be moved. Bookkeeping is
    left out: records, ``train.json``, ``summary.json``. ``origin`` is the command that prints
    it, for a comment.
    """
    body: list[str] = []
    made: set[Path] = set()
    for stage in plan.stages:
        if names and stage.name not in names:
            continue
        body += ["", f"# {_TITLES[stage.name]}"]
        files = [path for command in stage.commands for path in command.made]
        folders = {path.parent: None for path in files if path.parent not in made}
        made |= {above for folder in folders for above in (folder, *folder.parents)}
        if folders:
            body += _wrap(["mkdir -p", *(_word(folder, plan.variables) for folder in folders)])
        for command in stage.commands:
            body += [f"# {line}" for line in command.comment.splitlines()]
            body += _wrap(_groups(command, plan.variables))
    head = ["#!/usr/bin/env bash", f"# {plan.title}"]
    head += [f"# Printed by: {origin}"] if origin else []
    head += ["set -euo pipefail", ""]
    used = "\n".join(body)
    if "$EXAMPLES" in used:
        used += "$USER_DIR"
    for name, path in plan.variables.items():
        if f"${name}" in used:
            head.append(f"{name}={_FOUND.get(name) or shlex.quote(_shown(path))}")
    head += ['CORES="$(getconf _NPROCESSORS_ONLN)"'] if CORES in used else []
    head += [f"export {name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    if " 2>&1" in used:  # or a line of the log can cut a translation in two
        head.append("export PYTHONUNBUFFERED=1")
    return "\n".join([*head, *body]) + "\n"


def as_line(command: Command) -> str:
    """Return a command as one line of bash."""
    return " ".join(_groups(command, {}))


def _shown(path: Path) -> str:
    """Return a path, relative if it is below the current directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _groups(command: Command, variables: dict[str, Path]) -> list[str]:
    """Return the parts of a command between which a line may end: each flag with its values."""
    groups: list[str] = []
    after_flag = False
    for argument in command.argv:
        word = _word(argument, variables)
        if after_flag and not word.startswith("-"):
            groups[-1] += f" {word}"
        else:
            groups.append(word)
            after_flag = word.startswith("-")
    files = [_word(path, variables) for path in command.stdin]
    if len(files) == 1:
        groups.append(f"< {files[0]}")
    elif files:
        flags = next((at for at, word in enumerate(groups) if word.startswith("-")), len(groups))
        groups[:flags] = ["cat", *files, f"| {' '.join(groups[:flags])}"]
    if command.stdout:
        errors = " 2>&1" if command.with_errors else ""
        groups.append(f"> {_word(command.stdout, variables)}{errors}")
    return groups


def _wrap(groups: list[str]) -> list[str]:
    """Return the lines of a command."""
    lines = [groups[0]]
    for group in groups[1:]:
        if len(lines[-1]) + len(group) < _WIDTH:
            lines[-1] += f" {group}"
        else:
            lines[-1] += " \\"
            lines.append(f"  {group}")
    return lines


def _word(argument: Argument, variables: dict[str, Path]) -> str:
    """Return an argument as bash reads it, with variables in place of their folders."""
    if argument == CORES:
        return '"$CORES"'
    text = str(argument)
    if not variables:
        return shlex.quote(text)
    names = {str(path): name for name, path in variables.items()}
    folders = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    # A folder at the beginning, or after a comma in a list of paths.
    parts = re.split(f"((?:^|(?<=,))(?:{folders})(?=[/,]|$))", text)
    if len(parts) == 1:
        return shlex.quote(text)
    quoted = [re.sub(r'([\\"$`])', r"\\\1", part) for part in parts]
    quoted[1::2] = [f"${names[part]}" for part in parts[1::2]]
    return f'"{"".join(quoted)}"'
