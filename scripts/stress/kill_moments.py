"""Moments at which ``kills.py`` kills a recipe, and the damage that a kill can leave."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stress.kills import Recipe


def moment_has_come(moment: str, recipe: Recipe, seconds: float, chance: random.Random):
    """Return a function to call repeatedly, which returns whether the moment has come."""
    if moment in ("random", "preparing"):
        until = time.monotonic() + chance.uniform(0, seconds)
        return lambda: time.monotonic() > until
    if moment == "averaging":
        return lambda: any(recipe.run.glob("average.pt*.partial"))
    if moment == "finishing":
        return _after_training(recipe, chance.uniform(0, 0.2 * seconds))
    signs = {
        "writing": lambda: {str(path) for path in recipe.checkpoints.glob("*.tmp")},
        "copying": lambda: set(_epochs_and_updates(recipe.checkpoints)),
        "saved": lambda: set(range(recipe.printed().count("Saved checkpoint"))),
    }
    return _after_new(signs[moment], chance.randint(1, 3))


def _after_new(signs: Callable[[], set], count: int) -> Callable[[], bool]:
    """Return a function that says whether new signs have appeared ``count`` times."""
    seen, known = 0, signs()

    def come() -> bool:
        nonlocal seen, known
        now = signs()
        seen += bool(now - known)
        known = now
        return seen >= count

    return come


def _after_training(recipe: Recipe, seconds: float) -> Callable[[], bool]:
    done = recipe.printed().count("done training") if recipe.output.exists() else 0
    until = None

    def come() -> bool:
        nonlocal until
        if until is None and recipe.printed().count("done training") > done:
            until = time.monotonic() + seconds
        return until is not None and time.monotonic() > until

    return come


def _epochs_and_updates(folder: Path) -> dict[str, int]:
    """Return the complete checkpoints of fairseq, with their modification times."""
    found = {}
    for pattern in ("checkpoint[0-9]*.pt", "checkpoint_[0-9]*.pt"):
        for path in folder.glob(pattern):
            with suppress(FileNotFoundError):  # fairseq deletes old ones meanwhile
                found[str(path)] = path.stat().st_mtime_ns
    return found


def cut_the_copy(folder: Path, chance: random.Random) -> bool:
    """Truncate ``checkpoint_last.pt`` as a kill would, unless it is damaged; return whether it was
    truncated."""
    from fairseq_sparse.checkpoints.names import LAST
    from fairseq_sparse.checkpoints.recovery import is_damaged

    written, last = _epochs_and_updates(folder), folder / LAST
    if not written or (last.exists() and is_damaged(last)):
        return False
    content = Path(max(written, key=written.__getitem__)).read_bytes()
    last.write_bytes(content[: chance.randrange(len(content))])
    return True
