"""fairseq-sparse itself: its list of commands, its refusals, and which modules it avoids."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_sparse
import script_cases
from bad_input import assert_refused
from fairseq_sparse import files
from fairseq_sparse.commands import cli, common, models

ROOT = Path(fairseq_sparse.__file__).resolve().parents[1]
# Commands that read only text. Valid input: the first script case whose name begins so.
ON_TEXT = ("analyze alignment", "analyze samples", "compare", "mbr", "score")
ON_TEXT += ("corpus clean", "corpus extract", "corpus inflection", "score-inflection")
ON_TEXT += (
    "sheets make",
    "sheets draw-pairs",
    "sheets score-pairs",
    "sheets score",
    "table results",
)
# Runs a command, then prints its status and which heavy modules it has loaded.
LOADED = """
import sys
from fairseq_sparse.commands import cli
try:
    status = cli.main(sys.argv[1:])
except SystemExit as end:
    status = end.code
heavy = {"torch", "fairseq", "hydra", "omegaconf", "matplotlib"} & set(sys.modules)
print(status, sorted(heavy), file=sys.stderr)
"""


def start(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )


def test_levels_of_loggers_are_as_before():
    logger = logging.getLogger("fairseq_sparse")
    before = logger.level
    with pytest.raises(SystemExit):
        cli.main(["flags", "--help"])
    assert logger.level == before


def test_every_module_is_a_command_and_the_other_way_round() -> None:
    folder = Path(cli.__file__).parent
    shared = {"__init__", "cli", "common", "models", "values"}
    modules = {path.stem for path in folder.glob("*.py")} - shared
    assert modules == set(map(cli.module_name, cli.COMMANDS))


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("no command nonsense; see --help", ("nonsense",)),
        ("no command analyze it", ("analyze", "it")),
        ("no command --nonsense", ("--nonsense",)),
        ("no command --", ("--", "average")),
        ("did you mean translate", ("trnaslate", "--help")),
        ("did you mean analyze support", ("analyze", "suport", "--help")),
        ("average", ("average", "--nonsense")),
        ("did you mean score", ("scor", "x.txt")),
        ("did you mean analyze alignment", ("analyse", "alignment")),
        ("did you mean sheets draw-pairs", ("sheets", "draw-pair")),
        ("did you mean analyze", ("anlyze",)),
    ],
)
def test_what_is_no_command_is_refused(named: str, arguments: tuple[str, ...], capsys) -> None:
    assert_refused(capsys, named, cli.main, arguments)


@pytest.mark.parametrize("group", ["", "analyze", "sheets"])
def test_without_a_command_all_commands_are_listed(group: str, capsys) -> None:
    assert cli.main(group.split()) == 2
    printed = capsys.readouterr()
    listed = {
        name for name, text in cli.COMMANDS.items() if re.search(f"{name} +{text}", printed.err)
    }
    assert not printed.out and listed == {name for name in cli.COMMANDS if name.startswith(group)}


def test_an_error_of_the_user_is_one_line_and_a_status(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    result = start("-m", "fairseq_sparse", "analyze", "alignment", missing, missing)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("fairseq-sparse analyze alignment: error: ") and missing in line


def test_errors_say_which_file_is_missing_and_what_makes_it(tmp_path: Path, capsys) -> None:
    (tmp_path / "locked").mkdir()
    for path, maker in (
        (tmp_path / "run/hyp.detok.txt", "fairseq-sparse score"),
        (tmp_path / "dict.de.txt", "made by fairseq-preprocess"),
        (tmp_path / "other", ""),
        (tmp_path / "locked", "Is a directory"),
    ):
        assert common.report_errors("it", files.lines_of, path) == 1
        message = capsys.readouterr().err
        assert str(path) in message and maker in message and "Errno" not in message


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried", "alloc_cpu.cpp:127] . can't allocate memory: you tried"]
)
def test_lack_of_memory_is_one_line(words: str, capsys) -> None:
    def fail(message: str) -> int:
        raise RuntimeError(message)

    assert common.exit_status(lambda: fail(words), name="it") == 1
    assert capsys.readouterr().err.startswith("it: there is not enough memory")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        common.exit_status(lambda: fail("shapes cannot be multiplied"))


def test_output_that_nobody_reads_is_no_error() -> None:
    script = "from fairseq_sparse.commands import common as c; c.exit_status(lambda: print(1) or 0)"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_name_and_a_path_can_have_an_equals_sign(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lr=0.1", "lr=0.3"):
        Path(name).mkdir()
        Path(name, "out.txt").touch()
    found = common.find_systems(["a=lr=0.1/out.txt", "tau=1=lr=0.3/out.txt"])
    assert found == {"a": Path("lr=0.1/out.txt"), "tau=1": Path("lr=0.3/out.txt")}
    assert common.find_systems(["lr=0.1/out.txt"]) == {"out": Path("lr=0.1/out.txt")}
    assert common.find_systems(["a=b=none"]) == {"a=b": Path("none")}


def test_models_have_names_and_those_of_one_name_are_seeds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "lr=1"):
        Path(name).mkdir()
        Path(name, "x.pt").touch()
    parser = argparse.ArgumentParser()
    models.add_paths(parser)

    def named(*texts: str) -> list[tuple[str, str]]:
        options = parser.parse_args(["--path", *texts])
        models.name_models(parser, options)
        return list(zip(options.names, options.path, strict=True))

    assert named("a/x.pt", "b/x.pt") == [("a", "a/x.pt"), ("b", "b/x.pt")]
    assert named("A=a/x.pt", "A=b/x.pt") == [("A", "a/x.pt"), ("A", "b/x.pt")]
    assert named("A=a/x.pt", "b/x.pt") == [("A", "a/x.pt"), ("b", "b/x.pt")]
    assert named("t=1=lr=1/x.pt:a/x.pt") == [("t=1", "lr=1/x.pt:a/x.pt")]
    assert named("lr=1/x.pt") == [("lr=1/x.pt", "lr=1/x.pt")]
    with pytest.raises(SystemExit):
        named("A=a/x.pt", "B=a/x.pt")


def test_what_is_not_installed_is_one_line(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['sacrebleu'] = None\nfrom fairseq_sparse.commands import cli\n"
        "sys.exit(cli.main(['score', 'x', '--reference', 'x']))\n"
    )
    (tmp_path / "x").write_text("x\n")
    result = start("-c", program, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("fairseq-sparse score: ") and "bash scripts/setup_env.sh" in line


# Asks every command for help in one process, where anything that one of them loads stays loaded.
HELPED = """
import sys
from fairseq_sparse.commands import cli
for name in ["", *cli.COMMANDS]:
    try:
        cli.main([*name.split(), "--help"])
    except SystemExit as end:
        assert end.code == 0, name
print(sorted({"torch", "fairseq", "omegaconf", "matplotlib"} & set(sys.modules)))
"""


def test_help_loads_neither_torch_nor_fairseq() -> None:
    result = start("-c", HELPED)
    *usages, loaded = result.stdout.splitlines()
    assert (result.returncode, result.stderr, loaded) == (0, "", "[]")
    for name in cli.COMMANDS:
        assert any(line.startswith(f"usage: fairseq-sparse {name} ") for line in usages)


@pytest.mark.parametrize("name", ON_TEXT)
def test_text_is_read_without_torch_and_fairseq(name: str, tmp_path: Path) -> None:
    case = next(
        case for key, case in script_cases.SCRIPTS.items() if f"{key} ".startswith(f"{name} ")
    )
    folder = tmp_path / "in put"
    folder.mkdir()
    case.make(folder, tmp_path)
    result = start("-c", LOADED, *name.split(), *case.command(folder), cwd=tmp_path)
    assert result.stderr.splitlines()[-1] == "0 []", result.stderr
    for path in case.written:
        assert (folder / path).stat().st_size
        if path.endswith(".json"):
            json.loads((folder / path).read_text("utf-8"))
