"""Tables and picture of a grid of alphas, from made-up summaries."""

import json
import math
from statistics import fmean, stdev

import pytest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.plots.curves import draw_alphas
from fairseq_sparse.tables import alpha_grid
from fairseq_sparse.tables.rows import Row

OUTPUTS, ATTENTIONS, SEEDS = (1.0, 1.5, 2.0), (1.0, 1.25), (1, 2, 10)


def score(output, attention, seed):
    return 50 + 10 * output + attention + math.sin(7 * output + 3 * attention + seed)


def valid(output, attention, seed):
    return 50 + score(output, attention, seed) / 2


def row_of(output, attention, **summaries):
    kinds = {"output": "entmax", "attention": "entmax"}
    model = {**kinds, "output_alpha": output, "attention_alpha": attention}
    return Row(f"{output}, {attention}", model, **summaries)


@pytest.fixture
def rows():
    """The rows of a grid, each with three seeds and their ensemble."""
    return [
        row_of(
            *(output, attention),
            summaries={
                seed: {
                    "dataset": "words",
                    "dataset_note": "a part",
                    "inflection": {"accuracy": score(output, attention, seed)},
                    "training": {"valid": {"sentence_accuracy": valid(output, attention, seed)}},
                    "test": {"nonzeros": 100 / output},
                    "attention": {"cross": {"nonzeros": 9 / attention}},
                }
                for seed in SEEDS
            },
            ensemble={"inflection": {"accuracy": 90 + output + attention}},
        )
        for output in OUTPUTS
        for attention in ATTENTIONS
    ]


def make(rows):
    return alpha_grid.make("alphas", rows).parts


def test_each_field_is_of_its_own_alphas(rows):
    single, ensembles, outputs, attention = (part.rows for part in make(rows))
    for row, alpha in enumerate(ATTENTIONS):
        assert single[row][0] == f"{alpha:g}"
        for column, output in enumerate(OUTPUTS, start=1):
            values = [score(output, alpha, seed) for seed in SEEDS]
            expected = f"{fmean(values):.2f} ± {stdev(values):.2f} (3)"
            assert single[row][column] == expected
            assert ensembles[row][column] == f"{90 + output + alpha:.2f}"
            assert outputs[row][column].startswith(f"{100 / output:.2f}")
            assert attention[row][column].startswith(f"{9 / alpha:.2f}")


def test_what_is_not_finished_is_left_out(rows):
    del rows[4]  # 2, 1
    rows[0].summaries = {1: rows[0].summaries[1]}
    first = make(rows)[0].rows[0]
    assert first[1] == f"{score(1.0, 1.0, 1):.2f} (1)" and first[3] == "-"


def test_the_tables_and_their_figures_are_written(rows, tmp_path):
    page = alpha_grid.make("words: alphas", rows)
    page.write(tmp_path / "a" / "my.sweep")
    text = (tmp_path / "a" / "my.sweep.md").read_text(encoding="utf-8")
    assert text == page.text() and text.endswith("|\n\n- data: words\n- note on the data: a part\n")
    assert (tmp_path / "a" / "my.sweep.tex").read_text(encoding="utf-8") == page.text("latex")
    assert page.text("tsv").count("\t") == sum(3 * (1 + len(part.rows)) for part in page.parts)
    content = json.loads((tmp_path / "a" / "my.sweep.json").read_text())
    assert len(content["grid"]) == 6
    for cell in content["grid"]:
        alphas = cell["model"]["output_alpha"], cell["model"]["attention_alpha"]
        for seed, figures in cell["seeds"].items():
            assert figures["word_accuracy"] == score(*alphas, int(seed))
        assert cell["ensemble"]["word_accuracy"] == 90 + sum(alphas)


def test_the_picture_has_the_validation_accuracy_with_one_alpha_held(rows):
    (axes,) = draw_alphas(rows).axes  # no attention has an alpha of 1.5
    (container,) = axes.containers
    assert tuple(container.lines[0].get_xdata()) == ATTENTIONS
    expected = [fmean(valid(1.5, alpha, seed) for seed in SEEDS) for alpha in ATTENTIONS]
    assert list(container.lines[0].get_ydata()) == pytest.approx(expected)
    assert axes.get_xlabel() == "α of the attention (α of the output: 1.5)"
    assert axes.get_ylabel() == "validation accuracy (% of the words)"
    with pytest.raises(AnalysisError, match="no two finished runs"):
        draw_alphas([row for row in rows if row.alphas[0] != 1.5])


def test_bleu_is_a_score_as_well_and_without_a_score_there_is_no_table():
    summary = {"dataset": "text", "bleu": {"bleu": 33.333}, "test": {"nonzeros": 5.0}}
    first, *rest = make([row_of(1.0, 2.0, summaries={1: summary})])
    assert first.title == "BLEU, single models" and first.rows == [["2", "33.33 (1)"]]
    assert len(rest) == 1
    with pytest.raises(AnalysisError, match="no score"):
        make([row_of(1.0, 2.0, summaries={1: {"dataset": "words"}})])
    with pytest.raises(AnalysisError, match="relu has no alphas"):
        make([Row("relu", {"output": "alpha_relu"}, summaries={1: summary})])
