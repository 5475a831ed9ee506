"""Errors whose messages are for the user, in a module of their own that loads quickly."""

import errno
import os
from fnmatch import fnmatch

# What makes a file, by the pattern of its name.
MAKERS = {
    "dict.*.txt": "fairseq-preprocess",
    "generate-*.txt": "fairseq-generate",
    "hyp*.detok.txt": "the stage generate of fairseq-sparse run, or fairseq-sparse score --output",
    "bleu*.json": "the stage generate of fairseq-sparse run, or fairseq-sparse score --json",
    "run.json": "fairseq-sparse run",
    "summary.json": "the stage analyze of fairseq-sparse run",
    "key.json": "fairseq-sparse sheets make or sheets draw-pairs",
    "manifest.json": "fairseq-sparse align",
}


class AnalysisError(Exception):
    """An analysis cannot be made; the message says why."""


class CheckpointError(Exception):
    """A checkpoint cannot be read, or is unsuitable; the message says why."""


class RecipeError(Exception):
    """Error in a recipe or its run; the message says what was wrong, where, and what to do."""


def in_words(error: Exception) -> str:
    """Return the message of an exception; of an OSError, the file and what would make it."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error) or type(error).__name__
    path = os.fsdecode(error.filename) if not isinstance(error.filename, int) else "a file"
    if error.errno != errno.ENOENT:
        return f"{path}: {error.strerror}"
    makers = (maker for name, maker in MAKERS.items() if fnmatch(os.path.basename(path), name))
    maker = next(makers, "")
    return f"there is no {path}" + (f" (made by {maker})" if maker else "")
