"""The sweep of errors against 50-digit arithmetic, on a few rows."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numerics.measures import Worst

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "numerics" / "sweep.py"
OPS = ("entmax 2", "alpha_relu 1.5 0.3", "linear losses", "RMSNorm")


def run(folder, *arguments):
    command = [sys.executable, str(SCRIPT), "--results", str(folder / "results"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_page_is_made_from_figures_that_are_kept(tmp_path):
    page = tmp_path / "page.md"
    arguments = ["--rows", "20", "--ops", *OPS, "--output", str(page)]
    assert run(tmp_path, *arguments).returncode == 0
    first = page.read_text()
    assert "--ops 'entmax 2' 'alpha_relu 1.5 0.3' 'linear losses' RMSNorm --output" in first
    assert "| entmax 2 " in first and "| rms_norm " in first
    files = sorted((tmp_path / "results").iterdir())
    assert len(files) == len(OPS)
    # Figures that were kept are not measured again, except those of other code.
    for file, changes in (
        (files[-1], {"slowest": 1234.5}),
        (files[0], {"slowest": 1e9, "code": ""}),
    ):
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert run(tmp_path, *arguments).returncode == 0
    assert "the slowest batch took 1234.5 s" in page.read_text()

    # The claims hold for alpha as a tensor, too, not for the other algorithms.
    (file,) = (tmp_path / "results").glob("entmax_2_*")
    kept = json.loads(file.read_text())
    for version, error in (("tensor", 7.5), ("sort", 8.5)):
        kept["worst"].append([f"{version} distance", "fp32", "another path", 1, error, "", error])
    file.write_text(json.dumps(kept))
    assert run(tmp_path, *arguments).returncode == 0
    assert "except for logits within 7.5 eps of the threshold" in page.read_text()


def test_ops_that_are_not_there_or_not_enough_for_the_page_are_refused(tmp_path):
    assert run(tmp_path, "--ops", "entmax 7").returncode == 2
    result = run(tmp_path, "--ops", "RMSNorm", "--output", str(tmp_path / "page.md"))
    assert result.returncode == 2 and result.stdout == ""
    assert "--output" in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_nan_is_the_worst_error_whatever_follows():
    worst = Worst()
    for errors in (np.array([0.1, np.nan]), np.array([0.5])):
        worst.add(errors, f"{errors[0]}")
    assert (worst.error, worst.where, worst.rows) == (np.inf, "0.1", 3)
