"""Markdown tables, and a description of the machine that something was measured on."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """The hardware that a measurement ran on, and versions; of fairseq None where it is missing."""
    import torch  # tables of text are made without it

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
