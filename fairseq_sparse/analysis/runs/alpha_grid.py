"""Results over a grid of alphas, of the output and of the attention, with several seeds.

Table 1 and Fig. 4 of "Sparse Sequence-to-Sequence Models" (Peters, Niculae, Martins 2019).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Optional

from fairseq_sparse.analysis.markdown import markdown_table
from fairseq_sparse.analysis.pictures import COLOURS, draw_means, new_figure
from fairseq_sparse.analysis.runs.columns import look_up
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FOLDER = re.compile(r"output-(?P<output>[\d.]+)-attention-(?P<attention>[\d.]+)")
# What a run's summary can have been scored by: heading, path in summary.json
SCORES = (("word accuracy (%)", "inflection.accuracy"), ("BLEU", "bleu.bleu"))
# The accuracy on the validation set, by what the runs were scored by.
_VALIDATION = {
    "inflection.accuracy": (
        "validation accuracy (% of the words)",
        "training.valid.sentence_accuracy",
    ),
    "bleu.bleu": ("validation accuracy (% of the tokens)", "training.valid.accuracy"),
}
# The alpha at which Fig. 4 holds the one that does not vary.
HELD = 1.5


@dataclass
class Cell:
    """The runs of one pair of alphas.

    Attributes:
        seeds: the summaries of single models, by seed.
        ensemble: the summary of all of them together, if there is one.
    """

    output: float
    attention: float
    seeds: dict[int, dict[str, Any]] = field(default_factory=dict)
    ensemble: Optional[dict[str, Any]] = None

    def values(self, path: str) -> list[float]:
        """What the summaries have at a dotted path, of the seeds that have it."""
        found = (look_up(summary, path) for summary in self.seeds.values())
        return [value for value in found if value is not None]


def read_grid(folder: Path) -> list[Cell]:
    """The finished runs that ``examples/sweep.sh`` has left in a folder.

    Raises:
        AnalysisError: there is none, or they are of different data sets.
    """
    cells = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _FOLDER.fullmatch(path.name)
        if not match:
            continue
        cell = Cell(float(match["output"]), float(match["attention"]))
        for summary in sorted(path.glob("*/summary.json")):
            content = read_json(summary)
            name = summary.parent.name
            if name == "ensemble":
                cell.ensemble = content
            elif name.startswith("seed-"):
                cell.seeds[int(name.removeprefix("seed-"))] = content
        if cell.seeds:
            cells.append(cell)
    if not cells:
        raise AnalysisError(f"{folder} has no finished run (output-A-attention-B/seed-N)")
    datasets = {summary["dataset"] for cell in cells for summary in cell.seeds.values()}
    if len(datasets) > 1:
        raise AnalysisError(f"{folder} has runs of different data sets: {', '.join(datasets)}")
    return sorted(cells, key=lambda cell: (cell.output, cell.attention))


def score_of(cells: Sequence[Cell]) -> tuple[str, str]:
    """What the runs were scored by: one of ``SCORES``.

    Raises:
        AnalysisError: they have no score.
    """
    for heading, path in SCORES:
        if any(cell.values(path) for cell in cells):
            return heading, path
    raise AnalysisError("the runs have no score: run the stages generate and analyze")


def tables(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """Titles and Markdown tables, with the alphas of the output as columns.

    Single models (mean ± standard deviation over the seeds) and ensembles; then, of single models,
    how many tokens and how many source positions have a weight that is not 0, on the test set with
    the references given.
    """
    heading, path = score_of(cells)
    result = [(f"{heading}, single models", _table(cells, path))]
    if any(cell.ensemble for cell in cells):
        result.append((f"{heading}, ensembles of the seeds", _ensembles(cells, path)))
    for title, path in (
        ("Nonzero probabilities at a step", "test.nonzeros"),
        ("Nonzero weights of the attention to the source", "attention.cross.nonzeros"),
    ):
        if any(cell.values(path) for cell in cells):
            result.append((title, _table(cells, path)))
    return result


def _table(cells: Sequence[Cell], path: str) -> str:
    return _grid(cells, lambda cell: _mean(cell.values(path)))


def _ensembles(cells: Sequence[Cell], path: str) -> str:
    def text(cell: Cell) -> str:
        value = look_up(cell.ensemble or {}, path)
        return "-" if value is None else f"{value:.2f}"

    return _grid(cells, text)


def _grid(cells: Sequence[Cell], text) -> str:
    outputs = sorted({cell.output for cell in cells})
    by_alphas = {(cell.output, cell.attention): text(cell) for cell in cells}
    rows = [
        [f"{attention:g}", *(by_alphas.get((output, attention), "-") for output in outputs)]
        for attention in sorted({cell.attention for cell in cells})
    ]
    return markdown_table(["α attention \\ α output", *(f"{alpha:g}" for alpha in outputs)], rows)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread} ({len(values)})"


def as_json(cells: Sequence[Cell]) -> dict[str, Any]:
    """The figures of :func:`tables`, by seed."""
    heading, path = score_of(cells)
    grid = []
    for cell in cells:
        seeds = {
            seed: {
                "score": look_up(summary, path),
                "nonzeros": look_up(summary, "test.nonzeros"),
                "attention_nonzeros": look_up(summary, "attention.cross.nonzeros"),
            }
            for seed, summary in cell.seeds.items()
        }
        ensemble = look_up(cell.ensemble or {}, path)
        grid.append(
            {
                "output_alpha": cell.output,
                "attention_alpha": cell.attention,
                "seeds": seeds,
                "ensemble": ensemble,
            }
        )
    dataset = next(iter(cells[0].seeds.values()))["dataset"]
    return {"dataset": dataset, "score": heading, "grid": grid}


def draw_grid(cells: Sequence[Cell]) -> Figure:
    """Draw the validation accuracy by the alpha of the attention and of the output (Fig. 4).

    The other alpha is ``HELD``; a panel without two such points is left out. Points are means over
    the seeds, bars their standard deviations.

    Raises:
        AnalysisError: there is no panel, or the runs have no score.
    """
    title, path = _VALIDATION[score_of(cells)[1]]
    panels = {}
    for along, across in (("attention", "output"), ("output", "attention")):
        line = [cell for cell in cells if getattr(cell, across) == HELD and cell.values(path)]
        if len(line) > 1:
            panels[along, across] = sorted(line, key=attrgetter(along))
    if not panels:
        raise AnalysisError(
            f"no two finished runs have a validation accuracy, and α = {HELD:g} on one side"
        )
    figure = new_figure(0.6 + 4.2 * len(panels), 3.6, columns=len(panels))
    for axes, ((along, across), line) in zip(figure.axes, panels.items(), strict=True):
        places = [getattr(cell, along) for cell in line]
        draw_means(axes, places, [cell.values(path) for cell in line], color=COLOURS[0])
        axes.set_xlabel(f"α of the {along} (α of the {across}: {HELD:g})")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.tick_params(axis="x", labelsize=8)
    figure.axes[0].set_ylabel(title)
    return figure
