"""Make a table or figure of a paper: train its models with several seeds, and compare them.

Writes the table as .md, .tex and .json, and the pictures. The paper's figures stand beside ours
where data set, split and metric are the same; notes below the table say where they differ. BLEU
comes with sacreBLEU's paired test against the first row, corrected for the number of tests.

All rows of a seed come before the next seed, so that a stopped grid still gives a table. When the
same command is started again, finished runs are skipped and interrupted ones resume; failed runs
are named at the end. docs/reproduction.md lists every table and figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from fairseq_sparse.commands import common
from fairseq_sparse.commands.run import add_training_options, options_of
from fairseq_sparse.commands.values import not_negative, positive
from fairseq_sparse.errors import AnalysisError, RecipeError
from fairseq_sparse.recipes import engine, reproduce
from fairseq_sparse.recipes.corpora.reading import log
from fairseq_sparse.recipes.tables import Table, find_gold, follow_up, list_tables, read_table

# The options for some tables, and where the commands of these tables take them.
_PLACEHOLDERS = {
    "gold": "{gold}",
    "layer": "{layer}",
    "ends": "{ends}",
    "tags": "{tags}",
    "sentences": "{sentence}",
}


def parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = common.command_parser("reproduce", __doc__)
    parser.usage = "%(prog)s PAPER ITEM [options]\n       %(prog)s --list"
    parser.add_argument("names", nargs="*", metavar="NAME", help=argparse.SUPPRESS)
    add = parser.add_argument
    add("--list", action="store_true", help="list the tables and figures")
    text = "use this instead of the table's data sets; may be repeated"
    add("--dataset", action="append", default=[], metavar="NAME", help=text)
    add("--seeds", type=positive, default=3, metavar="N", help="seeds 1 to N (default: 3)")
    add_grid_options(parser)
    add("--dry-run", action="store_true", help="list the runs, and train nothing")
    add("--table-only", action="store_true", help="make the table from the finished runs")
    add = parser.add_argument_group("for some tables").add_argument
    text = "rela 5, fig4: RWTH's gold alignments (default: in --raw-dir)"
    add("--gold", type=Path, metavar="PATH", help=text)
    text = "rela fig7 to fig9: sentences that are drawn (default: 0 1 2)"
    numbers = {"type": not_negative, "nargs": "+"}
    add("--sentences", metavar="N", help=text, **numbers)
    add("--layer", type=positive, metavar="N", help="rela fig7 to fig9 (default: the last)")
    text = "rela ranking: pairs at each end from which some are drawn (default: 10000)"
    add("--ends", type=positive, metavar="N", help=text)
    text = "rela previous: tags in place of the test set's target words, a line for each sentence"
    add("--tags", type=Path, metavar="FILE", help=text)
    options = parser.parse_intermixed_args(arguments)
    if not options.list and len(options.names) != 2:
        parser.error("name a paper and one of its tables or figures; --list shows them")
    return options


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a grid of runs."""
    for name, what in (("data", "prepared data are"), ("runs", "runs are")):
        help = f"{what} in DIR/DATASET (default: {name})"
        parser.add_argument(f"--{name}", type=Path, default=Path(name), metavar="DIR", help=help)
    add_training_options(parser)
    common.add_format(parser)


def run(given: argparse.Namespace) -> None:
    if given.list:
        print(list_tables(), end="")
        return
    table = read_table(*given.names)
    check_choices(table, given)
    datasets, settings = reproduce.choose(table, given.dataset, given.settings)
    table = replace(table, datasets=datasets, settings=settings)
    options = options_of(given, settings=settings)
    runs = reproduce.plan_runs(table, range(1, given.seeds + 1), options, given.data, given.runs)
    stem = stem_of(table, options.config, given.runs, given.dataset)
    if given.dry_run:
        print(reproduce.describe(runs), end="")
        return
    gold = find_gold(table, given.gold, options.raw_dir)
    failed: list[str] = []
    if table.rows:
        if not given.table_only:
            log(f"{table.title}: {len(list(runs))} runs, {options.config} configuration")
            failed = reproduce.train(runs, given.jobs)
        make(runs, stem, given.format)
    for dataset, recipes in reproduce.finished(runs).items():
        place = stem.with_name(f"{stem.name}-{dataset}") if len(runs.recipes) > 1 else stem
        if table.follow_up and (recipes or not table.rows):
            sentences, ends = given.sentences or [0, 1, 2], given.ends or 10_000
            choices = gold, sentences, given.layer, ends, given.tags
            plan = follow_up(table, recipes, place, *choices)
            engine.run(plan)
            for output in plan.stages[0].outputs:
                if output.suffix == ".txt":
                    print(output.read_text(encoding="utf-8"), end="")
    log(f"the table, pictures and more: {stem}.*")
    end(failed)


def check_choices(table: Table, given: argparse.Namespace) -> None:
    """Refuse choices that no command of the table takes, and tags that are not there."""
    words = " ".join(table.follow_up)
    for name, place in _PLACEHOLDERS.items():
        if getattr(given, name) is not None and place not in words:
            raise RecipeError(f"--{name}: the table {table.paper} {table.name} takes none")
    if given.tags and not given.tags.is_file():
        raise RecipeError(f"--tags: there is no file {given.tags}")


def stem_of(table: Table, config: str, runs: Path, chosen: Sequence[str] = ()) -> Path:
    """Return the beginning of the names of all files of a table, on its own or ``chosen`` data."""
    words = [f"{table.paper}_{table.name}"]
    if table.rows:
        words += [table.settings] if table.settings else []
        words += [config, *chosen]
    return runs.absolute() / "tables" / "-".join(words)


def make(runs: reproduce.Runs, stem: Path, style: str) -> None:
    """Write the table and the pictures of the finished runs, and print the table."""
    from fairseq_sparse.tables import paper_tables

    rows = reproduce.read_rows(runs)
    page, messages = paper_tables.make(runs.table, rows, reproduce.references(runs))
    page.write(stem)
    for message in messages + paper_tables.draw_all(runs.table, rows, stem):
        log(message)
    print(page.text(style), end="")


def end(failed: Sequence[str]) -> None:
    """End with an error if runs have failed."""
    if failed:
        raise AnalysisError(
            f"{len(failed)} runs failed (see above): the table has their earlier results, if any; "
            "start the same command again to go on"
        )
