"""The tables and figures in ``entries/tables.yaml``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any, Union

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.recipes.recipe import Options


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
