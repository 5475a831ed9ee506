"""Errors that all commands on a trained model have in common take one line, and leave no file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import toy
from fairseq_sparse.commands import cli

COMMANDS = {
    "align": "DATA --path MODEL --output-folder OUT",
    "analyze attention": "DATA --path MODEL --json OUT",
    "analyze nulls": "DATA --path MODEL --output OUT",
    "analyze support": "DATA --path MODEL --json OUT",
    "draw attention": "DATA --path MODEL --sentence 3 --output OUT",
    "report": "MODEL --data DATA --output OUT",
}
PLOTTING = ("analyze attention", "analyze support")
# Name, flags, message, and the commands to which the error does not apply.
CASES = [
    ("no model", "", "no such file", ()),
    ("ensemble", "", "name one checkpoint, not an ensemble", ("analyze support", "report")),
    ("subset", "--subset tset", "no readable part tset: ", ()),
    ("batch", "--max-tokens 3", "--max-tokens 3: ", ("draw attention", "report")),
    ("no folder", "", "there is no such folder", ("align",)),
    ("matplotlib", "--plots PLOTS.svg", "pip install matplotlib", set(COMMANDS) - set(PLOTTING)),
]


@pytest.fixture(scope="module")
def model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    return toy.train(tmp_path_factory.mktemp("model"), data, *flags, "--attention", "rela_g")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_one_line(
    name: str,
    model: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    usual = COMMANDS[name]
    for fault, flags, message, others in CASES:
        if name in others:
            continue
        places = {"DATA": data, "MODEL": model, "OUT": tmp_path / "out.png"}
        places["PLOTS.svg"] = tmp_path / "plots.svg"
        if fault == "no model":
            places["MODEL"] = tmp_path / "none.pt"
        elif fault == "ensemble":
            places["MODEL"] = f"{model}:{model}"
        elif fault == "no folder":
            places["OUT"] = tmp_path / "none" / "out.png"
        elif fault == "matplotlib":
            monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        arguments = [str(places.get(word, word)) for word in f"{usual} {flags} --cpu".split()]
        try:
            assert cli.run(name, arguments) == 1, fault
        except SystemExit as end:
            assert end.code == 2
        printed = capfd.readouterr()
        (line,) = [line for line in printed.err.splitlines() if "error: " in line]
        who, _, what = line.partition(": error: ")
        assert who.startswith(f"fairseq-sparse {name}") and message in what
        assert not printed.out and not list(tmp_path.iterdir())
