"""Resuming where a training was killed while it saved.

fairseq writes a checkpoint under another name first, but copies it to ``checkpoint_last.pt`` in
place. A process that is killed in between leaves a part of it there, which blocks the next start;
one that is killed soon after leaves old checkpoints that fairseq deletes only when it saves again.
"""

import os
import re
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from typing import Optional

from fairseq.checkpoint_utils import checkpoint_paths

from fairseq_sparse.checkpoints.safety import CheckpointError, load_checkpoint

LAST = "checkpoint_last.pt"
# checkpoint3.pt, checkpoint_2_150.pt, checkpoint_best.pt, checkpoint.best_loss_2.345.pt
_OTHERS = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")

# How many fairseq keeps of checkpoint3.pt, and of checkpoint_2_150.pt.
_KEPT = {
    "keep_last_epochs": r"checkpoint(\d+)\.pt",
    "keep_interval_updates": r"checkpoint_\d+_(\d+)\.pt",
}


@dataclass(frozen=True)
class Recovery:
    """What was done about a damaged ``checkpoint_last.pt``.

    Args:
        damaged: where it is now.
        source: the checkpoint that took its place, or None: there is no other that can be read.
        updates: that the source was trained for.
    """

    damaged: str
    source: Optional[str] = None
    updates: int = 0

    def __str__(self) -> str:
        if self.source is None:
            instead = "no other checkpoint can be read, so training starts anew"
        else:
            instead = f"training resumes from {self.source}, after update {self.updates}"
        return f"{LAST} is damaged, and is now {self.damaged}; {instead}"


def recover_last_checkpoint(folder: str | os.PathLike) -> Optional[Recovery]:
    """Put the newest checkpoint that is whole in the place of a damaged ``checkpoint_last.pt``.

    The damaged file is kept as ``checkpoint_last.pt.damaged``. Nobody may be training in the
    folder. Killed at any time, this can be called again.

    Args:
        folder: fairseq's ``--save-dir``.

    Returns:
        What was done; None where there is nothing to do: ``checkpoint_last.pt`` is whole, or it is
        not there, as after a training that never saved one.

    Raises:
        OSError: a file cannot be read or written.
    """
    last = os.path.join(folder, LAST)
    if not os.path.exists(last) or not is_damaged(last):
        return None
    damaged = f"{last}.damaged"
    newest = max(_whole_checkpoints(folder), default=None)
    if newest is None:
        os.replace(last, damaged)
        return Recovery(damaged)
    updates, source = newest
    shutil.copyfile(last, damaged)
    partial = f"{last}.partial"
    shutil.copyfile(source, partial)
    os.replace(partial, last)
    return Recovery(damaged, source, updates)


def remove_outdated(folder: str | os.PathLike) -> list[str]:
    """Delete what ``--keep-last-epochs`` and ``--keep-interval-updates`` do not keep.

    The two are those that ``checkpoint_last.pt`` was trained with. Nobody may be training in the
    folder.

    Args:
        folder: fairseq's ``--save-dir``.

    Returns:
        The paths of what was deleted.

    Raises:
        OSError: a file cannot be deleted.
    """
    try:
        cfg = load_checkpoint(os.path.join(folder, LAST)).get("cfg") or {}
    except (CheckpointError, FileNotFoundError):
        return []
    settings = cfg.get("checkpoint") or {}
    kept_apart = settings.get("keep_interval_updates_pattern", -1) != -1
    outdated = []
    for setting, pattern in _KEPT.items():
        kept = settings.get(setting) or 0
        if kept > 0 and not kept_apart:
            outdated += checkpoint_paths(os.fspath(folder), pattern)[kept:]  # the newest are first
    for path in outdated:
        os.remove(path)
    return outdated


def is_damaged(path: str | os.PathLike) -> bool:
    """Return whether a checkpoint was cut off, or its content is not what was written.

    A checkpoint of PyTorch before 1.6, which has no checksums, is never called damaged.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        if file.read(1) == b"\x80":  # a bare pickle
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, zlib.error):
        return True


def _whole_checkpoints(folder: str | os.PathLike) -> list[tuple[int, str]]:
    """Return the updates and paths of the other checkpoints that training can be resumed from."""
    found = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not _OTHERS.fullmatch(name) or is_damaged(path):
            continue
        try:
            state = load_checkpoint(path)
        except CheckpointError:
            continue
        history = state.get("optimizer_history")
        if history and state.get("last_optimizer_state") is not None:
            found.append((history[-1].get("num_updates", 0), path))
    return found
