"""The tables and figures in ``entries/tables.yaml``, and the commands on their finished models."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.recipes.plan import Command, Plan, Stage
from fairseq_sparse.recipes.recipe import Options, Recipe


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper; the head of ``entries/tables.yaml`` describes the fields."""

    paper: str
    name: str
    title: str
    columns: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    settings: str = ""
    rows: tuple[tuple[str, dict[str, Any]], ...] = ()
    ensembles: bool = False
    empty: bool = False
    pictures: tuple[str, ...] = ()
    early: float = 1.0
    follow_up: tuple[str, ...] = ()
    all_seeds: bool = False
    show: str = ""
    note: str = ""
    run_on: str = ""
    compared: str = ""


SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
GOLD = ("DeEnGoldAlignment.tar.gz", "DeEn")
_FIELDS = {field.name for field in fields(Table)} - {"paper", "name"}
_OPTIONS = {field.name for field in fields(Options)}


def read_table(paper: str, name: str) -> Table:
    """Return a table of the catalogue, whose title begins with the paper's."""
    entry = dict(catalogue.find("tables", f"{paper} {name}"))
    catalogue.check_keys("tables", f"{paper} {name}", entry, _FIELDS)
    entry["title"] = f"{catalogue.section('tables', 'papers')[paper]}, {entry['title']}"
    follow_up = entry.pop("follow_up", [])
    entry.setdefault("show", "none" if name.startswith("fig") else "")
    return Table(
        paper,
        name,
        rows=tuple(row for given in entry.pop("rows", []) for row in expand(given)),
        follow_up=(follow_up,) if isinstance(follow_up, str) else tuple(follow_up),
        **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()},
    )


def expand(row: Union[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows that an entry of ``rows`` stands for: one for each value of its lists."""
    if isinstance(row, str):
        return [(row, {})]
    given = dict(row)
    variant = given.pop("variant", None)
    if variant is None or not given.keys() <= _OPTIONS:
        raise RecipeError(f"tables.yaml: {row} is not a variant with fields of Options")
    values = [value if isinstance(value, list) else [value] for value in given.values()]
    return [
        (variant, dict(zip(given, several, strict=True))) for several in itertools.product(*values)
    ]


def list_tables() -> str:
    """Return a line for each table, with what ``fairseq-sparse reproduce`` calls it."""
    lines = []
    for key in catalogue.entries("tables"):
        table = read_table(*key.split())
        run_on = f" (run on: {table.run_on})" if table.run_on else ""
        lines.append(f"{key:<30} {table.title}{run_on}\n")
    return "".join(lines)


def follow_up(
    table: Table,
    recipes: Sequence[Recipe],
    stem: Path,
    gold: Optional[Path] = None,
    sentences: Sequence[int] = (),
    layer: Optional[int] = None,
    ends: int = 10_000,
    tags: Optional[Path] = None,
) -> Plan:
    """Return the plan of a table's commands for the models of one data set.

    Their placeholders are ``{data}`` and ``{prepared}``; ``{source}`` and ``{reference}``, the text
    of the test set; ``{models}``, ``{named}`` (NAME=CKPT), ``{logs}`` and ``{systems}``
    (NAME=FOLDER) of the runs; ``{cpu}`` and ``{device}``; and ``{gold}``, ``{layer}``, ``{ends}``
    and ``{tags}``. Within words, ``{stem}`` is where files go, and a command with ``{sentence}`` is
    run for each sentence. A word ``{stem}.SUFFIX`` names a file that the first command with it
    makes.
    """
    lists = {
        "models": [str(recipe.run_dir / "average.pt") for recipe in recipes],
        "named": [f"{each.label or each.variant}={each.run_dir}/average.pt" for each in recipes],
        "logs": [str(recipe.run_dir / "logs" / "train.log") for recipe in recipes],
        "systems": [f"{each.label or each.variant}={each.run_dir}" for each in recipes],
        "cpu": ["--cpu"] if recipes and recipes[0].config == "cpu" else [],
        "device": ["--device", "cuda"] if recipes and recipes[0].config == "gpu" else [],
        "gold": [str(gold)],
        "layer": [] if layer is None else ["--layer", str(layer)],
        "tags": [] if tags is None else ["--tags", str(tags)],
        "ends": [str(ends)],
    }
    if recipes:
        text = recipes[0].prepared / "text"
        lists["data"] = [str(recipes[0].binary)]
        lists["prepared"] = [str(recipes[0].prepared)]
        lists["source"] = [str(text / f"test.{recipes[0].corpus.source}")]
        lists["reference"] = [str(text / f"test.{recipes[0].corpus.target}")]
    inputs = [recipe.run_dir / "average.pt" for recipe in recipes]
    words = " ".join(table.follow_up)
    if "{systems}" in words:
        inputs += [recipe.run_dir / "hyp.detok.txt" for recipe in recipes]
    if "{logs}" in words:
        inputs += [recipe.run_dir / "logs" / "train.log" for recipe in recipes]
    inputs += [path for path in (gold, tags) if path is not None and path.is_file()]
    commands: list[Command] = []
    made: list[Path] = []
    for line in table.follow_up:
        for sentence in sentences if "{sentence}" in line else [None]:
            program, *words = line.split()
            argv: list[str] = []
            for word in words:
                name = word.strip("{}")
                whole = word == f"{{{name}}}" and name in lists
                argv += lists[name] if whole else [word.format(stem=stem, sentence=sentence)]
            number = f"-{len(commands) + 1}" if commands else ""
            printed = stem.with_name(f"{stem.name}{number}.txt")
            files = (Path(word) for word in argv if word.startswith(f"{stem}."))
            outputs = tuple(path for path in files if path not in made)
            commands.append(Command((*_program(program), *argv), stdout=printed, outputs=outputs))
            made += [printed, *outputs]
    stage = Stage(
        name="follow-up",
        folder=stem,
        settings={"commands": [list(map(str, command.argv[1:])) for command in commands]},
        inputs=tuple(inputs),
        outputs=tuple(made),
        commands=tuple(commands),
    )
    return Plan(table.title, (stage,))


def _program(word: str) -> tuple[str, ...]:
    if not word.endswith(".py"):
        return "fairseq-sparse", word
    if not (SCRIPTS / word).is_file():
        raise RecipeError(f"this table needs scripts/{word}, which is in a checkout alone")
    return sys.executable, str(SCRIPTS / word)


def find_gold(table: Table, given: Optional[Path], raw_dir: Optional[Path]) -> Optional[Path]:
    """Return the gold alignments if a table needs them; refuse to go on without them."""
    if not any("{gold}" in line for line in table.follow_up):
        return None
    places = [given] if given else [raw_dir / name for name in GOLD] if raw_dir else []
    for place in places:
        if place.exists():
            return place.absolute()
    raise RecipeError(
        f"--gold must name the gold alignments, the archive {GOLD[0]} or its folder {GOLD[1]}; "
        "https://www-i6.informatik.rwth-aachen.de/goldAlignment/ gives them to anyone who fills in "
        "a form"
    )
