"""Recovery of a run that was killed while it saved a checkpoint.

fairseq first writes a checkpoint under another name, but copies it to ``checkpoint_last.pt`` in
place. A process killed during the copy leaves a partial file there, which blocks the next start;
one killed soon after leaves old checkpoints, which fairseq deletes only when it saves again. A
``checkpoint_best.pt`` can be cut off in the same way, but does not block: the resumed training
writes it when it comes to the same update, or finds better parameters.
"""

import errno
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from fairseq.checkpoint_utils import checkpoint_paths

from fairseq_sparse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_sparse.checkpoints.names import EPOCH, LAST, UPDATE
from fairseq_sparse.errors import CheckpointError
from fairseq_sparse.files import replacing

# checkpoint3.pt, checkpoint_2_150.pt, checkpoint_best.pt, checkpoint.best_loss_2.345.pt
_OTHERS = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")

# Settings that limit how many checkpoints fairseq keeps, with the names that they apply to.
_KEPT = {
    "keep_last_epochs": EPOCH,
    "keep_interval_updates": UPDATE,
}


@dataclass(frozen=True)
class Recovery:
    """The outcome of recovering a damaged ``checkpoint_last.pt``.

    Args:
        damaged: the new path of the damaged file.
        source: the checkpoint that took its place; None if no other can be read.
        updates: number of updates that the source was trained for.
    """

    damaged: str
    source: Optional[str] = None
    updates: int = 0

    def __str__(self) -> str:
        if self.source is None:
            instead = "no other checkpoint can be read, so training starts anew"
        else:
            instead = f"training resumes from {self.source}, after update {self.updates}"
        return f"{LAST} is damaged, and is kept as {self.damaged}; {instead}"


def recover_last_checkpoint(folder: str | os.PathLike) -> Optional[Recovery]:
    """Replace a damaged ``checkpoint_last.pt`` with the newest intact checkpoint.

    The damaged file is kept as ``checkpoint_last.pt.damaged``. No training may be running in the
    folder. If this function is killed, it can be called again.

    Args:
        folder: fairseq's ``--save-dir``.

    Returns:
        The outcome; None if there is nothing to do, because ``checkpoint_last.pt`` is intact or
        does not exist, as before the first save.

    Raises:
        OSError: a file cannot be read or written.
    """
    last = os.path.join(folder, LAST)
    if not os.path.exists(last) or not is_damaged(last):
        return None
    damaged = f"{last}.damaged"
    best = max(_intact_checkpoints(folder), default=None)
    if best is None:
        os.replace(last, damaged)
        return Recovery(damaged)
    _, updates, source = best
    for origin, copy in ((last, damaged), (source, last)):
        with open(origin, "rb") as old, replacing(Path(copy), binary=True) as new:
            shutil.copyfileobj(old, new)
    return Recovery(damaged, source, updates)


def remove_outdated(folder: str | os.PathLike) -> list[str]:
    """Delete the checkpoints that ``--keep-last-epochs`` and ``--keep-interval-updates`` exclude.

    Both settings are read from ``checkpoint_last.pt``. No training may be running in the folder.

    Args:
        folder: fairseq's ``--save-dir``.

    Returns:
        The paths of the deleted files.

    Raises:
        OSError: a file cannot be deleted.
    """
    try:
        state = load_checkpoint(os.path.join(folder, LAST), with_tensors=False)
    except CheckpointError:
        return []
    settings = settings_of(state, "checkpoint")
    kept_apart = settings.get("keep_interval_updates_pattern", -1) != -1
    outdated = []
    for setting, pattern in _KEPT.items():
        kept = settings.get(setting)
        if isinstance(kept, int) and kept > 0 and not kept_apart:
            outdated += checkpoint_paths(os.fspath(folder), pattern)[kept:]  # the newest are first
    for path in outdated:
        os.remove(path)
    return outdated


def is_damaged(path: str | os.PathLike) -> bool:
    """Return whether a checkpoint is truncated, or its content fails its checksums.

    A checkpoint of PyTorch before 1.6 has no checksums, and always counts as intact.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        if file.read(1) == b"\x80":  # a bare pickle
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except Exception as error:  # damaged files raise many kinds of exceptions
        # An archive that names a place which it does not have is an OSError, too.
        is_damage = not isinstance(error, OSError) or error.errno in (None, errno.EINVAL)
        if not is_damage or isinstance(error, MemoryError):
            raise
        return True


def _intact_checkpoints(folder: str | os.PathLike) -> list[tuple[bool, int, str]]:
    """Return the other checkpoints that training can be resumed from: whether they have the
    optimizer's state (without it fairseq resumes the epoch and the parameters), updates, path."""
    found = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not _OTHERS.fullmatch(name) or is_damaged(path):
            continue
        try:
            state = load_checkpoint(path, with_tensors=False)
        except CheckpointError:
            continue
        history = state.get("optimizer_history")
        if history:
            has_state = state.get("last_optimizer_state") is not None
            updates = history[-1].get("num_updates", 0)
            found.append((has_state, updates if isinstance(updates, int) else 0, path))
    return found
