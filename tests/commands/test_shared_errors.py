"""Errors that all commands on a trained model have in common take one line, and leave no file."""

from __future__ import annotations

import importlib
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
# An option with no effect, and one with which it has.
NEEDS = [
    ("translate M --nodes 9", "--exact"),
    ("mbr S --output OUT --metrics bleu", "--reference R"),
    ("mbr S --output OUT --baseline B", "--reference R"),
    ("mbr S --output OUT --reference R --trials 9", "--baseline B"),
    ("mbr S --output OUT --tokenize zh", "--utility bleu"),
    ("mbr S --output OUT --reference R --metrics ter --tokenize zh", "--utility bleu"),
    ("score H --reference R --trials 9", "--baseline B"),
    ("score H --reference R --metrics chrf --tokenize zh", "--by-frequency T"),
    ("compare A --reference R --trials 9", None),
    ("compare A B --reference R --metrics chrf --tokenize zh", "--by-frequency T"),
    ("calibrate D --path M --subwords sentencepiece", "--by-frequency T"),
    ("compare A B --reference R --source S", "--sentences 1"),
    ("analyze nulls D --path M --output OUT --seed 2", "--shuffle 10"),
    ("analyze nulls D --path M --output OUT --json J", "--shuffle 10"),
    ("analyze attention D --path M --tags T", "--by-previous 3"),
    ("analyze support D --path M --subwords sentencepiece", "--by-frequency T"),
    ("analyze alternatives D --path M --sentence 1 --target T", None),
    ("analyze alternatives D --path M --source T --subset valid", None),
    ("draw attention D --path M --output A.png --source T --subset valid", None),
    ("draw tree D --path M --source T --subset valid", None),
    ("evaluate R D --tokenize zh", "--reference R"),
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


@pytest.mark.parametrize(("line", "needed"), NEEDS)
def test_no_option_is_ignored(
    line: str,
    needed: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = line.split()
    length = 1 if words[0] in cli.COMMANDS else 2
    module = cli.module_name(" ".join(words[:length]))
    parse = importlib.import_module(f"fairseq_sparse.commands.{module}").parse_arguments
    with pytest.raises(SystemExit):
        parse(words[length:])
    assert "unrecognized" not in capsys.readouterr().err
    if needed is not None:
        parse([*words[length:], *needed.split()])
