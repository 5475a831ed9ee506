"""What the scripts' command lines have in common; it imports nothing heavy, so --help is quick."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def one_line(error: Exception) -> str:
    """What an exception says, in one line of readable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."
