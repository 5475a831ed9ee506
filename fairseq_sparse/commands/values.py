"""What the values of options can be: parsers for argparse's ``type``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

# The endings of the pictures that can be drawn.
PICTURES = (".png", ".svg", ".pdf")


def whole(least: int, most: float = float("inf")) -> Callable[[str], int]:
    """Return a function that parses whole numbers of a range, for argparse."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            limit = f"at most {most}" if value > most else f"at least {least}"
            raise argparse.ArgumentTypeError(f"must be {limit}, not {value}")
        return value

    parse.__name__ = "whole number"  # in argparse's message about other text
    return parse


positive, not_negative = whole(1), whole(0)
# Of NumPy's generators.
seed = whole(0, 2**32 - 1)


def finite(text: str) -> float:
    """Parse a number that is neither infinite nor NaN, for argparse."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be finite, not {value}")
    return value


finite.__name__ = "number"


def share(text: str) -> float:
    """Parse a number from 0 to 1, for argparse."""
    value = float(text)
    if not 0 <= value <= 1:  # nor is NaN
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, not {value}")
    return value


share.__name__ = "number"


def numbers(text: str) -> list[int]:
    """Parse different whole numbers of at least 1, separated by commas, for argparse."""
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


def words(text: str) -> list[str]:
    """Parse different words, separated by commas, for argparse."""
    return list(dict.fromkeys(text.split(",")))


def output_file(text: str) -> Path:
    """Parse the path of a file to be written, in a folder that exists, for argparse."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text or 'nothing'} is a folder: name a file")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(
            f"{text} is not a regular file, and cannot be replaced by one"
        )
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such folder")
    return path


def picture_file(text: str) -> Path:
    """Parse the path of a picture to be written, for argparse."""
    path = output_file(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text}: the name must end in {', '.join(PICTURES)}")
    return path


def setting(text: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``, for argparse."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.removeprefix("--"), value
