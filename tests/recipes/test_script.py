"""A plan as a bash script: what bash makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_sparse.recipes.plan import CORES, Command, Plan, Stage
from fairseq_sparse.recipes.script import as_script

AWKWARD = ("it's", 'a "b"', "$HOME `x` \\n *", "", "-x", "--", "ä ö", "(0.9, 0.98)", "a\tb")
SHOW = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")


def plan(folder: Path, *commands: Command) -> Plan:
    stage = Stage("prepare", folder, {}, (), (), commands)
    return Plan("a title", (stage,), {"DATA": folder}, {"NAME": "a value"})


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.sh").write_text(script, encoding="utf-8")
    command = ["bash", "script.sh"]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")


@pytest.mark.parametrize("name", ["plain", 'awk\'ward, $HOME "`x`" \\n'])
def test_bash_reads_the_arguments_that_were_meant(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    paths = [folder, folder / "a $b `", tmp_path / f"{name}-other", f"{folder}/a,{folder}/b"]
    words = [*AWKWARD, *map(str, paths)]
    output = folder / "in here" / "output"
    assert (
        run(as_script(plan(folder, Command((*SHOW, *words), stdout=output))), tmp_path).stdout == ""
    )
    assert json.loads(output.read_text()) == words


def test_input_output_and_the_number_of_cores(tmp_path: Path) -> None:
    first, second, both = (tmp_path / name for name in ("one", "two", "both"))
    commands = (
        Command(("printf", "%s\\n", "a  b"), stdout=first, comment="what it is for"),
        Command(("sh", "-c", "echo out; echo error >&2"), stdout=second, with_errors=True),
        Command(("sort", "-r"), stdin=(first, second), stdout=both),
        Command(("cat",), stdin=(both,)),
        Command(("printenv", "NAME")),
        Command(("echo", CORES)),
    )
    script = as_script(plan(tmp_path, *commands))
    assert "\n# what it is for\n" in script
    assert run(script, tmp_path).stdout == f"out\nerror\na  b\na value\n{os.cpu_count()}\n"


def test_no_message_cuts_a_line_of_the_output_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = "import sys\nfor _ in range(99): print('x' * 200); print('message', file=sys.stderr)"
    output = tmp_path / "output"
    command = Command((sys.executable, "-c", code), stdout=output, with_errors=True)
    assert run(as_script(plan(tmp_path, command)), tmp_path).returncode == 0
    assert output.read_text().splitlines() == ["x" * 200, "message"] * 99


def test_a_script_stops_at_the_first_failure(tmp_path: Path) -> None:
    commands = (Command(("false",)), Command(("touch", tmp_path / "there")))
    assert run(as_script(plan(tmp_path, *commands)), tmp_path).returncode == 1
    assert not (tmp_path / "there").exists()


def test_a_script_works_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    output = Path.cwd() / "data" / "folder" / "output"
    script = as_script(plan(Path.cwd() / "data", Command(("echo",), stdout=output)))
    (tmp_path / "other").mkdir()
    run(script, tmp_path / "other")
    assert (tmp_path / "other" / "data" / "folder" / "output").is_file()
    assert not output.exists()


def test_lines_are_short_and_flags_stay_with_their_values(tmp_path: Path) -> None:
    flags = [word for number in range(40) for word in (f"--flag-{number}", f"value{number}")]
    lines = as_script(plan(tmp_path, Command(("train", *flags)))).splitlines()
    assert max(map(len, lines)) < 100
    assert not any(line.strip().startswith("value") for line in lines)
