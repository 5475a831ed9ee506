"""Files are written whole or not at all, whoever else writes them and whatever lies beside them."""

import os
import subprocess

import pytest
import torch

from fairseq_sparse.files import read_json, replacing, write_text
from fork_python import PYTHON

OLD_NAME, ABANDONED = "table.md.partial", "table.md.01ab89ef.partial"


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_two_writers_of_a_file_leave_one_whole_file(tmp_path):
    path = tmp_path / "table.md"
    with replacing(path) as first, replacing(path) as second:
        for handle, letter in ((first, "a"), (second, "b"), (first, "a"), (second, "b")):
            handle.write(letter * 9**5)
            handle.flush()
    assert path.read_text() in ("a" * 2 * 9**5, "b" * 2 * 9**5)
    assert names(tmp_path) == {"table.md"}


@pytest.mark.parametrize("name", [OLD_NAME, ABANDONED])
def test_a_link_beside_a_file_is_not_followed(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    write_text(tmp_path / "table.md", "new")
    assert precious.read_text() == "mine" and (tmp_path / name).is_symlink()
    assert (tmp_path / "table.md").read_text() == "new"


def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "table.md", "")
        (tmp_path / "ordinary").write_text("")
    finally:
        os.umask(before)
    assert (tmp_path / "table.md").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_nothing_is_left_of_a_writer_that_failed_or_was_killed(tmp_path):
    path = tmp_path / "table.md"
    path.write_text("old")
    (tmp_path / ABANDONED).write_text("of a killed process")
    with pytest.raises(KeyboardInterrupt), replacing(path) as handle:
        handle.write("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and names(tmp_path) == {"table.md"}


@pytest.mark.parametrize("length", [50, 230, 255])
def test_long_names_are_possible(tmp_path, length):
    write_text(tmp_path / ("n" * length), "long")
    assert (tmp_path / ("n" * length)).read_text() == "long"


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**6, "{", "[]", "1" * 5000, '"\\ud800"'])
def test_what_is_no_json_object_is_refused_by_name(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ValueError, match="summary.json"):
        read_json(tmp_path / "summary.json")


def test_a_full_disk_is_named_with_the_file(tmp_path):
    """Imitated by a limit on the size of files: parts of a checkpoint are written by torch."""
    state = {"model": {"w": torch.zeros(10_000)}, "extra_state": {}}
    write_text(tmp_path / "table.md", "old")
    torch.save(state, tmp_path / "in.pt")
    average = ["average", "--inputs", "in.pt", "--output", "out.pt"]
    code = f"""
import resource, signal
from pathlib import Path
from fairseq_sparse.commands import cli, common
from fairseq_sparse.files import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
cli.main({average})
common.report_errors("table", write_text, Path("table.md"), "x" * 5000)
"""
    done = subprocess.run([PYTHON, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    first, second = [line for line in done.stderr.splitlines() if "error: " in line]
    assert "out.pt" in first and "table.md" in second
    assert done.returncode == 0 and names(tmp_path) == {"in.pt", "table.md"}
    assert (tmp_path / "table.md").read_text() == "old"
