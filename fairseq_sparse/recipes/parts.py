"""What the stages of a run share: flags, paths, and their first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fairseq_sparse
from fairseq_sparse.files import write_json
from fairseq_sparse.recipes.recipe import Flags, Recipe

USER_DIR = Path(fairseq_sparse.__file__).resolve().parent
# Flags of fairseq that change nothing of the result.
_NO_RESULT = {"log-interval", "num-workers", "tensorboard-logdir", "no-progress-bar"}


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


def begin(recipe: Recipe, *stale: Path) -> Callable[[], None]:
    """Return what a stage does first: write run.json, and remove results of an earlier model."""

    def record() -> None:
        recipe.run_dir.mkdir(parents=True, exist_ok=True)
        write_json(recipe.run_dir / "run.json", recipe.as_json())
        for path in stale:
            path.unlink(missing_ok=True)

    return record
