"""Train a grid of alphas of output and attention with several seeds, and compare them.

Trains the variant entmax for each pair of alphas (1 is softmax, 1.5 is 1.5-entmax, 2 is sparsemax)
and each seed, and decodes with the ensemble of the seeds of each pair. Writes a table like Table 1
of "Sparse Sequence-to-Sequence Models", and a picture of the validation accuracy by one alpha, the
other held at 1.5, like its Fig. 4: RUNS/tables/sweep_DATASET-cpu.md, .tex, .json, .png. Finished
runs are skipped, those of "fairseq-sparse reproduce", too, and interrupted ones resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Optional

from fairseq_sparse.commands.common import command_parser
from fairseq_sparse.commands.reproduce import add_grid_options, end, stem_of
from fairseq_sparse.commands.run import options_of
from fairseq_sparse.commands.values import numbers
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import reproduce
from fairseq_sparse.recipes.corpora.reading import log
from fairseq_sparse.recipes.tables import Table, expand

ALPHAS = [1.0, 1.5, 2.0]


def alphas(text: str) -> list[float]:
    """Parse different numbers of at least 1, separated by commas, for argparse."""
    values = [float(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"an alpha is at least 1, not {min(values):g}")
    return list(dict.fromkeys(values))


def parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = command_parser("sweep", __doc__)
    add = parser.add_argument
    add("dataset", metavar="DATASET")
    for side in ("output", "attention"):
        add(f"--{side}-alphas", type=alphas, default=ALPHAS, metavar="X,...", help="(1,1.5,2)")
    add("--seed", type=numbers, default=[1, 2, 3], metavar="N,...", help="(default: 1,2,3)")
    add_grid_options(parser)
    return parser.parse_args(arguments)


def run(given: argparse.Namespace) -> None:
    options = options_of(given)
    grid = {"output_alpha": given.output_alphas, "attention_alpha": given.attention_alphas}
    table = Table(
        paper="sweep",
        name=given.dataset,
        title=f"{given.dataset}: alphas of output and attention",
        datasets=(given.dataset,),
        settings=given.settings,
        rows=tuple(expand({"variant": "entmax", **grid})),
        ensembles=True,
    )
    runs = reproduce.plan_runs(table, given.seed, options, given.data, given.runs)
    if next(iter(runs)).corpus.kind == "text":
        raise RecipeError(f"{given.dataset} is for language models, which have no score to compare")
    failed = reproduce.train(runs, given.jobs)
    from fairseq_sparse.tables import alpha_grid, paper_tables

    stem = stem_of(table, options.config, given.runs)
    rows = [row for row in reproduce.read_rows(runs)[given.dataset] if row.summaries]
    page = alpha_grid.make(table.title, rows)
    page.write(stem)
    print(page.text(given.format), end="")
    for message in paper_tables.draw(rows, ["alphas"], "", 1.0, stem):
        log(message)
    log(f"the table and the picture: {stem}.*")
    end(failed)
