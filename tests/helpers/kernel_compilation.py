"""Compiling Triton kernels to machine code for a GPU that need not be there.

Triton's interpreter takes programs that its compiler refuses. To run the compiler in a process
without TRITON_INTERPRET, call ``run_compiled(__file__, "name of a function", ...)``.
"""

import os
import subprocess
from pathlib import Path

from fork_python import PYTHON

TESTS = Path(__file__).parents[1]


def run_compiled(path, function, cache, *arguments):
    """Call a function of a test file in a process where kernels are compiled, into ``cache``."""
    folders = (Path(path).parent, TESTS / "helpers", TESTS.parent, TESTS.parent / "scripts")
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    command = f"import {Path(path).stem} as tests; tests.{function}{arguments}"
    done = subprocess.run([PYTHON, "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
