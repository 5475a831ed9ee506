"""Markdown tables, and a description of the machine that something was measured on."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import SEPARATING_LINE, DataRow, Line, TableFormat, tabulate

import fairseq_sparse

_ROW = DataRow("| ", " | ", " |")
# Each cell with one space around it, and dashes below the header.
_MARKDOWN = TableFormat(
    lineabove=None,
    linebelowheader=Line("| ", "-", " | ", " |"),
    linebetweenrows=None,
    linebelow=None,
    headerrow=_ROW,
    datarow=_ROW,
    padding=0,
    with_header_hide=None,
)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table, padded so that it can be read as it stands."""
    # As a row: tabulate would make the column of a header wider than the header.
    lines = [header, SEPARATING_LINE, *rows]
    return tabulate(lines, tablefmt=_MARKDOWN, disable_numparse=True)


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
