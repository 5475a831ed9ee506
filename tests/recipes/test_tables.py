"""The tables of the catalogue: every name in them exists, and docs/reproduction.md has them all."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_sparse.commands import cli
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.recipes.tables import (
    SCRIPTS,
    Table,
    expand,
    find_gold,
    follow_up,
    list_tables,
    read_table,
)
from fairseq_sparse.tables.columns import COLUMNS

TABLES = {name: read_table(*name.split()) for name in catalogue.entries("tables")}
ROOT = SCRIPTS.parent
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


def recipes_of(table: Table) -> list[Recipe]:
    """Return the recipes of seed 1 on the first data set."""
    return [
        resolve(table.datasets[0], variant, Options(**{"settings": table.settings, **given}))
        for variant, given in table.rows
    ]


def words_of(table: Table, folder: Path) -> list[list[str]]:
    """Return the commands that follow a table, with their arguments."""
    recipes = recipes_of(table) if table.rows else []
    plan = follow_up(table, recipes, folder / "stem", folder, [0, 1])
    return [[str(word) for word in command.argv] for command in plan.stages[0].commands]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_names_what_there_is(table: Table, tmp_path: Path) -> None:
    assert table.title and set(table.columns) <= set(COLUMNS)
    assert set(table.pictures) <= {*COLUMNS, "training", "alphas"} and 0 < table.early <= 1
    papers = {"rela": "rela", "speeding_up_entmax": "sue", "speeding_up_entmax_v1": "sue"}
    if not table.rows:
        assert table.follow_up and not table.datasets
    else:
        assert table.datasets and table.columns
        assert table.settings == papers.get(table.paper, "")
        assert set(table.datasets) <= set(catalogue.entries("datasets"))
        folders = [recipe.run_dir for recipe in recipes_of(table)]
        assert len(set(folders)) == len(folders)
    for words in words_of(table, tmp_path):
        called = (words[1:2], words[1:3]) if words[0] == "fairseq-sparse" else ()
        assert not called or any(" ".join(name) in cli.COMMANDS for name in called)


def test_runs_that_share_a_folder_are_the_same() -> None:
    known: dict[Path, Recipe] = {}
    for table in TABLES.values():
        for recipe in recipes_of(table) if table.rows else ():
            assert known.setdefault(recipe.run_dir, recipe) == recipe
    assert len(known) > 50


def test_a_row_with_lists_stands_for_each_of_their_values() -> None:
    assert expand("softmax+relu") == [("softmax+relu", {})]
    rows = expand({"variant": "entmax", "output_alpha": [1, 2], "attention_alpha": [1.5, 2]})
    assert [tuple(given.values()) for _, given in rows] == [(1, 1.5), (1, 2), (2, 1.5), (2, 2)]
    for wrong in ({"output_alpha": 1}, {"variant": "entmax", "alpha": 1}):
        with pytest.raises(RecipeError, match="not a variant with fields of Options"):
            expand(wrong)


def test_an_unknown_table_is_refused_and_all_are_listed() -> None:
    for names in (("rela", "77"), ("nobody", "1")):
        with pytest.raises(RecipeError, match="there is no table"):
            read_table(*names)
    assert [line[:30].strip() for line in list_tables().splitlines()] == list(TABLES)
    assert (
        read_table("rela", "fig4").show == "Table 5" and read_table("rela", "fig2").show == "none"
    )


def test_the_page_has_every_paper() -> None:
    papers = re.findall(r"<!-- items (\w+) -->", PAGE)
    assert sorted(papers) == sorted({table.paper for table in TABLES.values()})
    assert sorted(papers) == sorted(catalogue.section("tables", "papers"))


def test_an_unknown_key_of_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"rela 1": {"title": "Table 1", "compares": "with a typing error"}}
    monkeypatch.setattr(catalogue, "entries", lambda kind: entries)
    with pytest.raises(RecipeError, match="did you mean compared"):
        read_table("rela", "1")


def test_page_and_notes_name_what_there_is() -> None:
    text = PAGE + " ".join(table.compared + table.note for table in TABLES.values())
    scripts = re.findall(r"scripts/((?:\w+/)?\w+\.py)(?: (--[a-z-]+))?", text)
    commands = re.findall(r"fairseq-sparse ((?:[a-z][a-z-]* ?)+)(--[a-z-]+)?", text)
    assert ("paper/thresholds.py", "--data") in scripts
    assert ("draw attention ", "--subset") in commands
    shared = "".join(
        (ROOT / f"fairseq_sparse/commands/{name}.py").read_text(encoding="utf-8")
        for name in ("common", "models")
    )
    for name, option in scripts + commands:
        if name.endswith(".py"):
            path = SCRIPTS / name
        else:
            module = cli.module_name(command_of(name.split()))
            path = ROOT / "fairseq_sparse" / "commands" / f"{module}.py"
        source = path.read_text(encoding="utf-8")
        assert not option or f'"{option}"' in source + shared, f"{name} {option}"


def command_of(words: list[str]) -> str:
    """Return the command with which the words begin."""
    for length in (2, 1):
        if (name := " ".join(words[:length])) in cli.COMMANDS:
            return name
    raise AssertionError(f"no command: {words}")


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.follow_up])
def test_the_commands_take_what_a_table_gives_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    for _, program, *words in words_of(TABLES[name], tmp_path):
        if program.endswith(".py"):
            path = Path(program).relative_to(SCRIPTS).with_suffix("")
            module = importlib.import_module(".".join(path.parts))
        else:
            called = command_of([program, *words])
            words = words[called.count(" ") :]
            module = importlib.import_module(f"fairseq_sparse.commands.{cli.module_name(called)}")
        parse = getattr(module, "parse_arguments", None) or module.parse_args
        parse(words)  # exits on an unknown argument


def test_placeholders_stand_for_the_runs_and_the_choices(tmp_path: Path) -> None:
    lines = ("report {models} {named} {tags} --output {stem}.html {cpu}",)
    lines += ("draw attention {data} {sentence} {layer} {device} --output {stem}-{sentence}.png",)
    lines += ("compare {systems} --source {source} --reference {reference} --json {stem}.html",)
    rows = (("entmax15", {}), ("alpha_relu", {"output_tau": "0.5"}))
    table = Table("p", "1", "t", datasets=("quickstart",), rows=rows, follow_up=lines)
    recipes = [replace(recipe, config="gpu") for recipe in recipes_of(table)]
    choices = {"sentences": [4, 7], "layer": 3, "tags": Path("tags")}
    (stage,) = follow_up(table, recipes, tmp_path / "my stem", **choices).stages
    first, *drawn, last = [[str(word) for word in command.argv] for command in stage.commands]
    one, two = (str(recipe.run_dir) for recipe in recipes)
    models = [f"{one}/average.pt", f"{two}/average.pt"]
    assert first == [
        *("fairseq-sparse", "report", *models),
        *(f"entmax15={models[0]}", f"alpha_relu, τ = 0.5={models[1]}"),
        *("--tags", "tags", "--output", f"{tmp_path}/my stem.html"),
    ]
    data = recipes[0].data_dir / "prepared"
    assert [words[3:] for words in drawn] == [
        [
            *(f"{data}/bin", number, "--layer", "3", "--device", "cuda"),
            *("--output", f"{tmp_path}/my stem-{number}.png"),
        ]
        for number in ("4", "7")
    ]
    assert last[2:8] == [
        *(f"entmax15={one}", f"alpha_relu, τ = 0.5={two}"),
        *("--source", f"{data}/text/test.de", "--reference", f"{data}/text/test.en"),
    ]
    # what the commands read
    systems = [f"{one}/hyp.detok.txt", f"{two}/hyp.detok.txt"]
    assert [str(path) for path in stage.inputs] == [*models, *systems]
    # A file belongs to the first command that names it; what is printed is kept as well.
    made = ["my stem.txt", "my stem.html", "my stem-2.txt", "my stem-3.txt", "my stem-4.txt"]
    assert [path.name for path in stage.outputs] == made


def test_the_gold_alignments_are_found_or_asked_for(tmp_path: Path) -> None:
    needs = read_table("rela", "5")
    assert find_gold(read_table("rela", "1"), None, None) is None
    for given, raw in ((tmp_path / "nowhere", None), (None, tmp_path), (None, None)):
        with pytest.raises(RecipeError, match="--gold"):
            find_gold(needs, given, raw)
    (tmp_path / "DeEn").mkdir()
    assert find_gold(needs, None, tmp_path) == find_gold(needs, tmp_path / "DeEn", None)
