"""Records of stages, which say whether their work can be kept.

``FOLDER/stages/NAME.json`` has the settings of a stage, and the SHA-256 of its inputs and of what
it made. No time of a file decides anything: size and times only save hashing a file again. Folders
may be copied or moved, because an input is known by the end of its path.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_sparse import files
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.plan import Stage

FINISHED, INTERRUPTED, CHANGED, NEW = "finished", "interrupted", "changed", "new"


@dataclass(frozen=True)
class State:
    """What can be kept of a stage.

    Attributes:
        kind: ``FINISHED``; ``INTERRUPTED``, with the same settings and inputs, or to be prolonged,
            or with outputs that were deleted later; ``CHANGED``; or ``NEW``, without a record.
        differences: one line for each setting and input that is not as it was.
        inputs: those of the next record.
        missing: inputs that neither are there nor have been.
        running: files and folders that may be half written.
        was_finished: whether the record is of a finished stage.
    """

    kind: str
    differences: list[str] = field(default_factory=list)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[Path] = field(default_factory=list)
    running: list[Path] = field(default_factory=list)
    was_finished: bool = False


def check(stage: Stage) -> State:
    """Compare a stage with its record and its files."""
    record = _read(stage)
    old = record.get("inputs", {})
    inputs, missing = _digests(stage.inputs, old)
    if not record:
        return State(NEW, inputs=inputs, missing=missing)
    # As JSON has them: tuples are lists.
    was, settings = record.get("settings", {}), json.loads(json.dumps(stage.settings))
    longer = {name: settings[name] for name in stage.prolonged_by if _rises(was, settings, name)}
    resumed = {**was, **longer}
    prolonged, changed = _differences(was, resumed), _differences(resumed, settings)
    for name in dict.fromkeys([*old, *inputs]):
        before, now = (side.get(name, {}).get("sha256") for side in (old, inputs))
        if before != now:
            change = "has changed" if before and now else "is new" if now else "is no longer used"
            changed.append(f"input {name} {change}")
    was_finished = record.get("state") == FINISHED
    finished = was_finished and all(path.exists() for path in stage.outputs)
    return State(
        CHANGED if changed else FINISHED if finished and not prolonged else INTERRUPTED,
        [*prolonged, *changed],
        inputs,
        missing,
        [stage.folder / name for name in record.get("running", ())],
        was_finished,
    )


def is_finished(stage: Stage) -> bool:
    """Return whether a stage is finished; no input is read if it has no record."""
    return path_of(stage).is_file() and check(stage).kind == FINISHED


def write(stage: Stage, state: str, inputs: dict[str, Any], running: Sequence[Path] = ()) -> None:
    """Record that a stage is finished, or interrupted until it is recorded as finished.

    A kill may leave a part of what is ``running``: files and folders that the next command writes.
    """
    record: dict[str, Any] = {"state": state, "settings": stage.settings, "inputs": inputs}
    if state == FINISHED and stage.changed == "redo":
        record["outputs"] = {_place(path, stage): files.sha256_of(path) for path in _files(stage)}
    if running:
        record["running"] = [_place(path, stage) for path in running]
    files.write_json(path_of(stage), record)


def path_of(stage: Stage) -> Path:
    """Return the path of a stage's record."""
    return stage.folder / "stages" / f"{stage.name}.json"


def made(stage: Stage) -> list[Path]:
    """Return all files and folders that a stage makes."""
    of_commands = [path for command in stage.commands for path in command.made]
    return list(dict.fromkeys([*stage.outputs, *of_commands]))


def refuse_foreign(stages: Iterable[Stage]) -> None:
    """Check that stages would replace no file but those that they have made themselves.

    Raises:
        RecipeError: naming the files that are not as their stage left them.
    """
    if found := [str(path) for stage in stages for path in foreign(stage)]:
        raise RecipeError(
            f"{', '.join(found)}: not made by this command, which would replace them; move or "
            "delete them"
        )


def foreign(stage: Stage) -> list[Path]:
    """Return the files that a stage would replace although it did not make them."""
    record = _read(stage)
    if record.get("state") == INTERRUPTED or (record and "outputs" not in record):
        return []  # it had begun to replace them, or was recorded by an earlier version
    known = record.get("outputs", {})
    return [x for x in _files(stage) if known.get(_place(x, stage)) != files.sha256_of(x)]


def _files(stage: Stage) -> list[Path]:
    return [path for path in made(stage) if path.is_file()]


def _place(path: Path, stage: Stage) -> str:
    return os.path.relpath(path, stage.folder)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(stage: Stage) -> dict[str, Any]:
    path = path_of(stage)
    try:
        return files.read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise RecipeError(f"{error}; delete it, and what the stage has made") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error


def _digests(paths: Sequence[Path], old: dict[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """Return the entries of inputs in a record, and those that are missing.

    The entry of a file that has been deleted since it was recorded is kept.
    """
    inputs: dict[str, Any] = {}
    missing = []
    for name, path in _named(paths):
        known = old.get(name)
        try:
            found = os.stat(path)
            # Changing the content changes st_ctime, even where st_mtime is set back.
            stamp = [found.st_size, found.st_mtime_ns, found.st_ctime_ns]
            if known is None or known.get("stamp") != stamp:
                known = {"sha256": files.sha256_of(path), "stamp": stamp}
        except FileNotFoundError:
            if known is None:
                missing.append(path)
        except OSError as error:
            raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
        if known is not None:
            inputs[name] = known
    return inputs, missing


def _named(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield each path with the shortest end that it shares with no other one."""
    distinct = list(dict.fromkeys(paths))
    for path in distinct:
        for length in range(1, len(path.parts) + 1):
            end = path.parts[-length:]
            if sum(other.parts[-length:] == end for other in distinct) == 1:
                break
        yield "/".join(end), path


def _differences(before: Any, now: Any, name: str = "") -> list[str]:
    """Return a line for each setting that differs, named by its place: ``flags.lr``."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key in dict.fromkeys([*before, *now])
            for line in _differences(before.get(key), now.get(key), f"{name}.{key}".strip("."))
        ]
    if before == now and isinstance(before, bool) == isinstance(now, bool):
        return []
    return [f"{name}: was {_shown(before)}, now {_shown(now)}"]


def _rises(before: dict[str, Any], now: dict[str, Any], name: str) -> bool:
    """Return whether a setting is a limit that now lies higher; 0 is no limit."""
    try:
        return 0 < float(before[name]) < float(now[name])
    except (KeyError, TypeError, ValueError):
        return False


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return value if value and isinstance(value, str) else repr(value)
