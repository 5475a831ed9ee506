"""What tables, pictures, the report and sheets may touch: measurements, and never a model."""

import subprocess
import sys

import pytest

import toy

PROGRAM = """
import importlib, pkgutil, sys

room = importlib.import_module(f"fairseq_sparse.{sys.argv[1]}")
names = [module.name for module in pkgutil.iter_modules(room.__path__)]
assert names
for name in names:
    importlib.import_module(f"{room.__name__}.{name}")
loaded = {"torch", "fairseq", "fairseq_sparse.measure.translator"} & sys.modules.keys()
assert not loaded, loaded
"""


@pytest.mark.parametrize("room", ["tables", "plots", "report", "sheets"])
def test_a_room_that_reads_loads_no_model(room: str) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-c", PROGRAM, room]
    done = subprocess.run(command, cwd=toy.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
