"""What the scripts' command lines have in common; it imports nothing heavy, so --help is quick."""

from __future__ import annotations

import argparse
import os


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def seed(text: str) -> int:
    """A number that NumPy's generators start from, for argparse."""
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 2^32 - 1")
    return value


def one_line(error: Exception) -> str:
    """What an exception says, in one line of readable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def short_names(paths: list[str]) -> list[str]:
    """The parts of the paths that differ: ``runs/a/x.pt`` and ``runs/b/x.pt`` are a and b."""
    parts = [checkpoint.split(os.sep) for path in paths for checkpoint in path.split(":")]
    first = len(os.path.commonprefix(parts))
    last = len(os.path.commonprefix([part[first:][::-1] for part in parts]))

    def shorten(checkpoint: str) -> str:
        part = checkpoint.split(os.sep)
        return os.sep.join(part[first : len(part) - last])

    names = [" + ".join(map(shorten, path.split(":"))) for path in paths]
    return names if len(paths) > 1 and len(set(names) - {""}) == len(paths) else paths
