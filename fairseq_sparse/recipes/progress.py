"""What a terminal shows of the stages at work: lines that stay, and one that moves."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional

_TAIL = 1 << 16  # bytes of a log that are read for its last lines
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_PREFIX = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| \w+ \| [\w.]+ \| "
)  # of fairseq's logging


class Line:
    """The last line of a terminal, which moves; elsewhere only lines that stay are written."""

    def __init__(self) -> None:
        self.moves = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.shown = ""

    def say(self, text: str) -> None:
        """Write lines that stay."""
        self.show("")
        print(text, file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        """Replace the moving line; an empty text removes it."""
        if self.moves and text != self.shown:
            with suppress(OSError):
                columns = os.get_terminal_size(sys.stderr.fileno()).columns
                text = shortened(text, columns - 1)
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            self.shown = text


def shortened(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into so many columns of a terminal."""
    from tqdm.utils import disp_trim

    text = _CONTROL.sub("", text).replace("\t", " ")
    return disp_trim(text[:columns], columns)  # which knows the characters of two columns


def last_lines(log: Path, count: int, start: int = 0) -> list[str]:
    """Return the last lines of a log that have any text, from its byte ``start`` on."""
    with suppress(OSError), open(log, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(start if start <= size else 0, size - _TAIL))
        lines = re.split(r"[\r\n]+", handle.read().decode("utf-8", errors="replace"))
        return [line.rstrip() for line in lines if line.strip()][-count:]
    return []


def describe(argv: Sequence[str], log: Path, start: int = 0) -> str:
    """Return how far a command is, from what it has written into its log after ``start``."""
    lines = last_lines(log, _TAIL, start)
    for line in reversed(lines):
        if "| train_inner | {" in line:
            with suppress(ValueError, KeyError, TypeError):
                return _of_training(argv, json.loads(line.partition("| train_inner | ")[2]))
    return _PREFIX.sub("", lines[-1]) if lines else ""


def _of_training(argv: Sequence[str], record: dict[str, Any]) -> str:
    updates = int(record["num_updates"])
    total = _total(argv, updates, float(record["update"]))
    text = f"update {updates:,}" + (f" of {total:,}" if total else "")
    text += f", loss {float(record['loss']):.3f}"
    if "wps" in record:
        text += f", {float(record['wps']):,.0f} words/s"
    if total and float(record.get("ups", 0)) > 0:
        left = max(total - updates, 0) / float(record["ups"])
        text += f", {timedelta(seconds=round(left))} left"
    return text


def _total(argv: Sequence[str], updates: int, epochs: float) -> Optional[int]:
    """Return after how many updates a training will end, given those of its epochs until now."""
    values = dict(zip(argv, argv[1:], strict=False))
    last, last_epoch = (float(values.get(flag, 0)) for flag in ("--max-update", "--max-epoch"))
    limits = [last, last_epoch * updates / (epochs or 1)]
    return min((round(limit) for limit in limits if limit >= 1), default=None)
