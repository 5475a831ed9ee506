"""Pictures of the output show the right numbers, and all parts are visible and distinct."""

import math

import pytest
import torch

from fairseq_sparse.measure.output.output_statistics import OutputStatistics
from fairseq_sparse.measure.translator import ForcedSteps
from fairseq_sparse.plots.output_plots import (
    draw_nonzeros,
    draw_positions,
    draw_ranks,
    draw_sums,
    draw_training,
    draw_zeros,
    output_figures,
)
from fairseq_sparse.plots.pictures import COLOURS

COLOUR_OF = {"softmax": COLOURS[0], "relu": COLOURS[1], "a": COLOURS[2], "b": COLOURS[3]}
CURVES = [
    {"name": "relu", "updates": [10, 20], "tau": [1.5, 1.6], "logit_norm": [30.0, 40.0]},
    {
        "name": "softmax",
        "updates": [10, 20, 30],
        "tau": [None] * 3,
        "logit_norm": [20.0, None, 25.0],
    },
]


def row(name, p, subset="test"):
    p = torch.tensor(p)
    statistics = OutputStatistics(p.size(1))
    given = torch.zeros(len(p), dtype=torch.long)
    statistics.add(ForcedSteps(p.log(), given, given, given))
    return {"name": name, "output": name, "subset": subset, **statistics.result()}


def sparse_row(name="relu", subset="test", vocabulary=100):
    """Steps with 0, 1, 2, 3, 4 and 64 possible tokens, of 0.1 each."""
    p = [[0.1] * count + [0.0] * (vocabulary - count) for count in (0, 1, 2, 3, 4, 64)]
    return row(name, p, subset)


def dense_row(name="softmax", subset="test", vocabulary=100):
    return row(name, [[1 / vocabulary] * vocabulary] * 3, subset)


def outlines(axes):
    """Return the values and edges of the histograms' outlines, without their filled areas."""
    return [patch.get_data()[:2] for patch in axes.patches if not patch.get_fill()]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_histogram_is_that_of_the_statistics():
    figure = draw_nonzeros([sparse_row()], COLOUR_OF)
    ((shares, edges),) = outlines(figure.axes[0])
    counts = [1, 1, 2, 1, 0, 0, 0, 1]  # 0; 1; 2-3; 4-7; ...; 64-127
    assert shares.tolist() == pytest.approx([100 * count / 6 for count in counts])
    assert edges.tolist() == [0.5, 1, 2, 4, 8, 16, 32, 64, 128]
    low, high = figure.axes[0].get_xlim()
    assert low < 0.5 and high > 100
    assert legend_of(figure) == ["relu: mean 12.3"]


def test_a_dense_model_is_a_line_at_the_size_of_its_vocabulary():
    rows = [dense_row(), dense_row(subset="train"), sparse_row(), sparse_row(subset="train")]
    figure = draw_nonzeros(rows, COLOUR_OF)
    assert len(outlines(figure.axes[0])) == 2
    assert {tuple(line.get_xdata()) for line in figure.axes[0].lines} == {(100, 100)}
    expected = ["softmax: always 100", "relu, test: mean 12.3", "relu, train: mean 12.3"]
    assert legend_of(figure) == expected


def test_the_share_of_zeros_is_a_distribution_over_the_steps():
    figure = draw_zeros([dense_row(), sparse_row()], COLOUR_OF)
    ((shares, edges),) = outlines(figure.axes[0])
    counts = [1, 1, 2, 1, 0, 0, 0, 1]  # nothing is nonzero; 1; 2-3; 4-7; ...; 64-100
    assert shares.tolist() == pytest.approx([100 * count / 6 for count in counts])
    assert edges.tolist() == pytest.approx([e / 100 for e in (0.5, 1, 2, 4, 8, 16, 32, 64, 101)])
    left, right = figure.axes[0].get_xlim()
    assert left > 1.01 and right < 0.005  # from no zeros on the left to nothing else on the right
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["0", "50", "80", "90", "95", "98", "99"]
    assert legend_of(figure) == ["relu: mean 87.67 % zeros"]
    assert draw_zeros([dense_row()], COLOUR_OF) is None


def test_sums_are_drawn_where_they_are_not_1():
    rows = [dense_row(), sparse_row()]
    figure = draw_sums(rows, COLOUR_OF)
    ((shares, edges),) = outlines(figure.axes[0])
    assert edges[0] == pytest.approx(-0.025) and edges[-1] == pytest.approx(6.425)
    assert sum(shares) == pytest.approx(100)
    assert legend_of(figure) == ["relu: 1.23 ± 2.31", "Σp = 1"]
    assert draw_sums([dense_row()], COLOUR_OF) is None


def test_training_has_a_panel_for_what_there_is():
    figure = draw_training(CURVES, COLOUR_OF)
    tau, norm = figure.axes
    assert [line.get_label() for line in tau.lines] == ["relu"]
    assert [line.get_label() for line in norm.lines] == ["relu", "softmax"]
    assert tau.lines[0].get_xydata().tolist() == [[10, 1.5], [20, 1.6]]
    assert math.isnan(norm.lines[1].get_ydata()[1])
    assert tau.lines[0].get_color() == norm.lines[0].get_color() == COLOUR_OF["relu"]
    assert legend_of(figure) == ["relu", "softmax"]
    (norm,) = draw_training(CURVES[1:], COLOUR_OF).axes
    assert norm.get_ylabel().startswith("mean norm") and norm.get_xlabel() == "updates"
    for figure in (draw_training(CURVES, COLOUR_OF), draw_training(CURVES[:1], COLOUR_OF)):
        assert figure.axes[-1].xaxis.get_tick_params()["labelbottom"]
    assert draw_training([], COLOUR_OF) is None


def test_a_threshold_that_never_changes_gets_no_panel():
    fixed = {**CURVES[0], "tau": [1.5, 1.5]}
    (axes,) = draw_training([fixed, CURVES[1]], COLOUR_OF).axes
    assert axes.get_ylabel().startswith("mean norm")
    assert draw_training([{**fixed, "logit_norm": [30.0, 30.0]}], COLOUR_OF) is None


def measured(name, steps, nonzeros, by_rank):
    edges = [0, 10, 100][: len(by_rank) + 1]
    return {
        **sparse_row(name),
        "by_position": {"steps": steps, "nonzeros": nonzeros},
        "by_rank": {"edges": edges, "nonzeros": by_rank},
    }


def test_support_by_position_ends_where_few_sentences_do():
    rows = [measured("relu", [100, 60, 5, 4], [2, 4, 6, 50], [1]), dense_row()]
    (line,) = draw_positions(rows, COLOUR_OF).axes[0].lines
    assert line.get_xydata().tolist() == [[1, 2], [2, 4], [3, 6]]
    assert draw_positions(rows[1:], COLOUR_OF) is None


def test_support_by_rank_has_a_bar_for_each_model_and_part():
    rows = [measured("relu", [1], [1], [3.0, 0.5]), measured("a", [1], [1], [4.0, 0.0])]
    (axes,) = draw_ranks([*rows, dense_row()], COLOUR_OF).axes
    bars = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert bars == [[3.0, 0.5], [4.0, 0.0]]
    ends = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(end <= start + 1e-9 for (_, end), (start, _) in zip(ends, ends[1:], strict=False))
    labels = [label.get_text().split() for label in axes.get_xticklabels()]
    assert labels == [["1–", "10"], ["11–", "100"]]
    assert draw_ranks([dense_row()], COLOUR_OF) is None


def test_figures_are_those_that_the_results_allow():
    rows = [dense_row("$x_"), measured("_relu", [1], [1], [1.0])]
    names = ["nonzeros", "zeros", "positions", "ranks", "prob_sum", "training"]
    assert list(output_figures(rows, CURVES)) == names
    assert output_figures([dense_row()], []) == {}
