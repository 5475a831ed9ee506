"""docs/reproduction.md: it has every table and figure of the papers, and what it names is there."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

import recipes

ROOT = recipes.EXAMPLES.parent
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
# Tables and figures of each paper.
PAPERS = {"SUE": (7, 9), "SUE v1": (2, 6), "ReLA": (6, 10), "S2S": (3, 6)}
TABLES = sorted((recipes.EXAMPLES / "tables").glob("*.sh"))
COMMAND = re.compile(r"`reproduce\.sh ([a-z0-9_]+) ([a-z0-9]+)`")


def test_every_table_and_figure_has_its_row() -> None:
    sections = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
    assert list(sections) == list(PAPERS)
    for paper, (tables, figures) in PAPERS.items():
        items = re.findall(r"^\| (Table|Fig\.) (\d+)\b", sections[paper], re.MULTILINE)
        expected = [("Table", str(number)) for number in range(1, tables + 1)]
        assert items == expected + [("Fig.", str(number)) for number in range(1, figures + 1)]
        for line in re.findall(r"^\| (?:Table|Fig\.) .*", sections[paper], re.MULTILINE):
            kind, number, command = re.match(r"\| (Table|Fig\.) (\d+).*?\| (.*?) \|", line).groups()
            found = COMMAND.match(command)
            if found:
                assert found[2] == (number if kind == "Table" else f"fig{number}"), line
            else:
                assert command == "none" and (paper, kind, number) == ("ReLA", "Fig.", "1"), line


def test_every_command_says_on_what_it_has_been_run() -> None:
    legend = PAGE.partition("\n## ")[0]
    known = {*re.findall(r"^\| ([\w ]+) \| ", legend, re.MULTILINE), "as SUE"} - {"run on"}
    rows = [line.split(" | ") for line in PAGE.splitlines() if "`reproduce.sh " in line]
    assert len(rows) == len(COMMAND.findall(PAGE))
    for _, command, _, run_on, _ in rows:
        assert re.sub(r" \(.*?\)", "", run_on).split(", ")[0] in known, command


def test_every_command_is_there() -> None:
    files = {f"{paper}_{item}" for paper, item in COMMAND.findall(PAGE)}
    there = {path.stem for path in TABLES}
    assert files == there - {"rela_ablation"}  # which is no table of a paper
    assert PAGE.count("reproduce.sh") == len(COMMAND.findall(PAGE)) + 1  # named once by itself
    scripts = set(re.findall(r"`((?:benchmark/)?\w+\.py)[ `]", PAGE))
    assert {"threshold_table.py", "benchmark/losses.py"} <= scripts
    for name in scripts:
        assert (ROOT / "scripts" / name).is_file(), name
    for name, option in re.findall(r"`((?:benchmark/)?\w+\.py) (--[a-z-]+)", PAGE):
        source = (ROOT / "scripts" / name).read_text(encoding="utf-8")
        shared = (ROOT / "fairseq_sparse/commands/common.py").read_text(encoding="utf-8")
        if command := command_of(name):
            source = (ROOT / "fairseq_sparse" / "commands" / f"{command}.py").read_text("utf-8")
        assert f'"{option}"' in source + shared, f"{name} {option}"


def command_of(script: str) -> str:
    """The module of the command that a script runs; empty if it is none of a command."""
    source = (ROOT / "scripts" / script).read_text(encoding="utf-8")
    found = re.search(r'^    run\("(.*)"\)$', source, re.MULTILINE)
    return found[1].replace(" ", "_") if found else ""


def test_the_links_lead_somewhere() -> None:
    for target, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", PAGE):
        text = (ROOT / "docs" / target).resolve().read_text(encoding="utf-8")
        titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        assert not anchor or anchor in {title.lower().replace(" ", "-") for title in titles}


def words_of(table: Path) -> tuple[list[str], int]:
    """A table's LOOK, or its SCRIPT, as it is written, and the number of its rows."""
    script = f"""EXAMPLES='{recipes.EXAMPLES}'; LOOK=() SCRIPT=() ROWS=(); source '{table}'
    printf '%s\\n' "${{#ROWS[@]}}" ${{LOOK[@]+"${{LOOK[@]}}"}} ${{SCRIPT[@]+"${{SCRIPT[@]}}"}}"""
    result = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    rows, *words = result.stdout.splitlines()
    return words, int(rows)


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_the_scripts_take_what_a_table_gives_them(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    words, rows = words_of(table)
    numbers = range(rows)
    stand_for = {
        "MODELS": [f"{n}.pt" for n in numbers],
        "NAMES": [f"model {n}" for n in numbers],
        "LOGS": [f"{n}.log" for n in numbers],
        "SYSTEMS": [f"model {n}=run-{n}" for n in numbers],
    }
    while words:
        end = words.index("THEN") if "THEN" in words else len(words)
        (script, *given), words = words[:end], words[end + 1 :]
        arguments = []
        for word in given:
            arguments += stand_for.get(word, [word.replace("STEM", str(tmp_path / "stem"))])
        command = command_of(script)
        name = f"fairseq_sparse.commands.{command}" if command else script.removesuffix(".py")
        module = importlib.import_module(name.replace("/", "."))
        parse = getattr(module, "parse_arguments", None) or module.parse_args
        parse(arguments)  # or it ends
