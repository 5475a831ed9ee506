"""Stages of plain commands: what the engine runs and what ``--print`` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

import fairseq_sparse
from fairseq_sparse.recipes.recipe import Flags

# As Python found it: fairseq refuses another path to the same folder, such as one without links.
USER_DIR = Path(fairseq_sparse.__path__[0]).absolute()
Argument = Union[str, Path]
# An argument that stands for the number of cores: a variable in a script.
CORES = "$CORES"
# Flags of fairseq that change nothing of the result; the model that training begins with is an
# input, wherever it is.
_NO_RESULT = {"log-interval", "num-workers", "tensorboard-logdir", "no-progress-bar"}
_NO_RESULT |= {"keep-last-epochs", "keep-interval-updates", "finetune-from-model"}


@dataclass(frozen=True)
class Command:
    """A command line of an installed program.

    Attributes:
        argv: a program on the PATH, such as ``fairseq-train``, and its arguments.
        stdin: files that are its standard input, one after the other: ``cat A B | ...``.
        stdout: the file that gets its standard output; the engine writes it whole or not at all.
        with_errors: whether ``stdout`` gets the standard error, too: ``> FILE 2>&1``.
        outputs: files and folders that it makes besides ``stdout``. If all of ``stdout`` and
            ``outputs`` are there when an interrupted stage is resumed, it is left out. Without any,
            it always runs, as a command does that resumes by itself (fairseq-train).
        comment: what it is for, in a script; may be empty.
    """

    argv: tuple[Argument, ...]
    stdin: tuple[Path, ...] = ()
    stdout: Optional[Path] = None
    with_errors: bool = False
    outputs: tuple[Path, ...] = ()
    comment: str = ""

    @property
    def made(self) -> tuple[Path, ...]:
        """All files and folders that it makes."""
        return (*self.outputs, *([self.stdout] if self.stdout else []))


@dataclass(frozen=True)
class Stage:
    """Commands that make something which is reused while its settings and inputs stay the same.

    Attributes:
        name: ``prepare``, ``train``, ``average``, ``generate``, ``align`` or ``analyze``.
        folder: the folder that it writes into: the data's or the run's. It is locked while a stage
            works in it; records are ``FOLDER/stages/NAME.json`` and logs ``FOLDER/logs/NAME.log``.
        settings: what its result depends on besides the inputs, as JSON; nothing else makes it run
            again, not the number of devices, nor paths.
        inputs: files whose content its result depends on.
        outputs: files and folders without which it is not finished.
        commands: run in this order.
        changed: what changed settings or inputs mean for a finished or interrupted stage: ``redo``,
            or ``refuse`` where that would throw away hours (prepare, train).
        prolonged_by: settings that may rise, such as ``--max-epoch``: the stage then resumes.
        resumes_from: the file that its commands resume from, such as a checkpoint. The log of an
            interrupted stage that has none goes on; with one that is missing, it begins anew.
        before, after: bookkeeping in Python that a printed script leaves out; called in the process
            that does the stage's work.
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    commands: tuple[Command, ...]
    changed: str = "redo"
    prolonged_by: tuple[str, ...] = ()
    resumes_from: Optional[Path] = None
    before: Optional[Callable[[], None]] = None
    after: Optional[Callable[[], None]] = None


@dataclass(frozen=True)
class Plan:
    """All stages of a run.

    Attributes:
        title: the first line of a printed script.
        variables: names of folders for a printed script, such as ``DATA``, with the paths that they
            stand for.
        environment: variables of the commands, such as ``OMP_NUM_THREADS``.
    """

    title: str
    stages: tuple[Stage, ...]
    variables: dict[str, Path] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def as_arguments(flags: Flags) -> list[str]:
    """Return flags as words of a command line."""
    words: list[str] = []
    for name, value in flags.items():
        if value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def as_settings(flags: Flags, prefix: str = "") -> dict[str, str]:
    """Return flags as settings of a stage, in which 0.1 and "0.1" are the same."""
    return {
        f"{prefix}--{name}": "yes" if value is True else str(value)
        for name, value in flags.items()
        if value is not False and name not in _NO_RESULT
    }
