"""Plans name the plugin so that fairseq takes it for the one that is already loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import toy


def test_the_plugin_is_named_as_python_found_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(toy.ROOT)
    program = """
import fairseq_sparse
from fairseq_sparse.recipes.plan import USER_DIR
assert str(USER_DIR) in fairseq_sparse.__path__, (USER_DIR, fairseq_sparse.__path__)
"""
    environment = {**os.environ, "PYTHONPATH": str(link)}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True)
