"""Description of the machine that measurements are made on."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import fairseq_sparse

# glibc returns every freed tensor to the system and requests the memory again, which costs a fifth
# of the time on a CPU; with these variables, read when a process starts, it keeps the memory.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4000000000"}


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Return hardware and versions for a measurement; ``fairseq`` is None if not installed."""
    import torch  # text tables need no torch

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


def describe_environment() -> dict[str, Any]:
    """Return versions and hardware for the summary of a run."""
    import fairseq
    import torch

    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fairseq": fairseq.__version__,
            "fairseq_sparse": fairseq_sparse.__version__,
            "sacrebleu": metadata.version("sacrebleu"),
        },
        "hardware": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        },
    }


def cpu_name() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()
