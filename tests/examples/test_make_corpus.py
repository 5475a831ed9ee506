"""examples/quickstart/make_corpus.py: what its files depend on, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import make_corpus
from quickstart_corpus import SMALL


def test_same_seed_gives_same_files_whatever_the_hashes(tmp_path: Path):
    content = {}
    for name, seed, hashes in (("a", "1", "1"), ("b", "1", "2"), ("c", "2", "1")):
        command = [sys.executable, make_corpus.__file__, tmp_path / name, *SMALL]
        environment = os.environ | {"PYTHONHASHSEED": hashes}
        subprocess.run([*command, "--seed", seed], check=True, env=environment)
        content[name] = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    assert content["a"] == content["b"]
    assert content["a"]["train.de"] != content["c"]["train.de"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train", "-1"], "-1 is negative"),
        (["--seed", "one"], "invalid int value"),
        (["--noise-share", "0.2"], "need --noise"),
        (["--noise", "all", "--noise-share", "1.5"], "not in (0, 1]"),
        (["--noise", "wrong"], "invalid choice"),
        ([*SMALL, "--noise", "dropped", "--noise-share", "1"], "lower --noise-share"),
        ([*SMALL, "--train", "20", "--held-out", "40"], "raise --train"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, capsys, flags: list[str], message: str):
    output = tmp_path / "corpus"
    try:
        status = make_corpus.main([str(output), *flags])
    except SystemExit as error:
        status = error.code
    assert status != 0
    assert message in capsys.readouterr().err
    assert not (output / "corpus.json").exists()


def test_output_that_is_a_file_is_refused(tmp_path: Path, capsys):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(SystemExit):
        make_corpus.main([str(path)])
    assert "name a folder" in capsys.readouterr().err
    assert path.read_text() == "mine"
