"""docs/reproduction.md has every table and figure of the papers, and its commands exist."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

import recipes
from fairseq_sparse.commands import cli

ROOT = recipes.EXAMPLES.parent
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
TABLES = sorted((recipes.EXAMPLES / "tables").glob("*.sh"))
COMMAND = re.compile(r"`reproduce\.sh ([a-z0-9_]+) ([a-z0-9]+)`")


def test_every_command_is_there() -> None:
    files = {f"{paper}_{item}" for paper, item in COMMAND.findall(PAGE)}
    there = {path.stem for path in TABLES}
    assert files == there - {"rela_ablation", "attention_controls"}  # not from a paper
    scripts = re.findall(r"`((?:benchmark/)?\w+\.py)(?: (--[a-z-]+))?", PAGE)
    commands = re.findall(r"`fairseq-sparse ((?:[a-z]+ ?)+)(--[a-z-]+)?", PAGE)
    assert ("benchmark/losses.py", "") in scripts and ("table thresholds ", "--data") in commands
    shared = (ROOT / "fairseq_sparse/commands/common.py").read_text(encoding="utf-8")
    for name, option in scripts + commands:
        if name.endswith(".py"):
            path = ROOT / "scripts" / name
        else:
            path = ROOT / "fairseq_sparse" / "commands" / f"{module_of(name.split())}.py"
        source = path.read_text(encoding="utf-8")
        assert not option or f'"{option}"' in source + shared, f"{name} {option}"


def module_of(words: list[str]) -> str:
    """Return the module in ``commands/`` of the command with which the words begin."""
    for length in (2, 1):
        if " ".join(words[:length]) in cli.COMMANDS:
            return "_".join(words[:length])
    raise AssertionError(f"no command: {words}")


def words_of(table: Path) -> tuple[list[str], int]:
    """Return the words of a table's commands, if any, unexpanded, and the number of its rows."""
    script = f"""EXAMPLES='{recipes.EXAMPLES}'; FOLLOW_UP=() COMMAND=() ROWS=(); source '{table}'
    printf '%s\\n' "${{#ROWS[@]}}" ${{FOLLOW_UP[@]+"${{FOLLOW_UP[@]}}"}} \\
      ${{COMMAND[@]+"${{COMMAND[@]}}"}}"""
    result = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    rows, *words = result.stdout.splitlines()
    return words, int(rows)


@pytest.mark.parametrize(
    "table",
    [path for path in TABLES if re.search("^(COMMAND|FOLLOW_UP)=", path.read_text(), re.MULTILINE)],
    ids=lambda path: path.stem,
)
def test_the_commands_take_what_a_table_gives_them(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    words, rows = words_of(table)
    assert words
    numbers = range(rows)
    stand_for = {
        "MODELS": [f"{n}.pt" for n in numbers],
        "NAMES": [f"model {n}" for n in numbers],
        "LOGS": [f"{n}.log" for n in numbers],
        "SYSTEMS": [f"model {n}=run-{n}" for n in numbers],
    }
    while words:
        end = words.index("THEN") if "THEN" in words else len(words)
        called, words = words[:end], words[end + 1 :]
        if called[0].endswith(".py"):
            name, given = called[0].removesuffix(".py").replace("/", "."), called[1:]
        else:
            name = module_of(called)
            given = called[len(name.split("_")) :]
            name = f"fairseq_sparse.commands.{name}"
        arguments = []
        for word in given:
            arguments += stand_for.get(word, [word.replace("STEM", str(tmp_path / "stem"))])
        module = importlib.import_module(name)
        parse = getattr(module, "parse_arguments", None) or module.parse_args
        parse(arguments)  # exits on an unknown argument
