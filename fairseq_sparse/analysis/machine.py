"""The machine that something was measured on."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import fairseq_sparse


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Return the hardware that a measurement ran on, and versions; of fairseq None where it is
    missing."""
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
    """Return what the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()
