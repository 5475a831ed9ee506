"""How scripts report: Markdown tables, JSON files, and what they ran on."""

import json
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch

import fairseq_sparse


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table, padded so that it can be read as it stands."""
    lines = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    )


@contextmanager
def replacing(path: Path, binary: bool = False) -> Iterator[IO]:
    """Open a file for writing that takes the place of ``path`` when it is whole.

    If it cannot become whole, it is removed, and ``path`` is what it was.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        text = {} if binary else {"encoding": "utf-8", "newline": "\n"}
        with open(partial, "wb" if binary else "w", **text) as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file so that ``path`` holds either all of it or what it held before.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error}); make it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} has no JSON object: it is another file than it should be")
    return content


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """The hardware that a measurement ran on, and versions; of fairseq None where it is missing."""
    try:
        import fairseq
    except ImportError:
        fairseq = None
    return {
        "hardware": cpu_name() if device == "cpu" else torch.cuda.get_device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": fairseq and fairseq.__version__,
        "fairseq_sparse": fairseq_sparse.__version__,
    }


def cpu_name() -> str:
    """What the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()
