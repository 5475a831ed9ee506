"""Tables and picture of a grid of alphas, from summaries that the test writes."""

import json
import math
from statistics import fmean, stdev

import pytest

import summarize_sweep
from fairseq_sparse.analysis import alpha_grid
from fairseq_sparse.analysis.trained_models import AnalysisError

OUTPUTS, ATTENTIONS, SEEDS = (1.0, 1.5, 2.0), (1.0, 1.25), (1, 2, 10)


def score(output, attention, seed):
    return 50 + 10 * output + attention + math.sin(7 * output + 3 * attention + seed)


def write(path, **content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def sweep(tmp_path):
    for output in OUTPUTS:
        for attention in ATTENTIONS:
            folder = tmp_path / f"output-{output:g}-attention-{attention:g}"
            for seed in SEEDS:
                write(
                    folder / f"seed-{seed}" / "summary.json",
                    dataset="words",
                    inflection={"accuracy": score(output, attention, seed)},
                    test={"nonzeros": 100 / output},
                    attention={"cross": {"nonzeros": 9 / attention}},
                )
            best = {"accuracy": 90 + output + attention}
            write(folder / "ensemble" / "summary.json", dataset="words", inflection=best)
    (tmp_path / "prepare").mkdir()
    return tmp_path


def cells_of(table):
    """Rows of a Markdown table, without its two heading lines, in cells."""
    rows = table.strip().split("\n")[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_each_field_is_of_its_own_alphas(sweep):
    tables = dict(alpha_grid.tables(alpha_grid.read_grid(sweep)))
    assert len(tables) == 4
    single, ensembles, outputs, attention = map(cells_of, tables.values())
    for row, alpha in enumerate(ATTENTIONS):
        assert single[row][0] == f"{alpha:g}"
        for column, output in enumerate(OUTPUTS, start=1):
            values = [score(output, alpha, seed) for seed in SEEDS]
            expected = f"{fmean(values):.2f} ± {stdev(values):.2f} (3)"
            assert single[row][column] == expected
            assert ensembles[row][column] == f"{90 + output + alpha:.2f}"
            assert outputs[row][column].startswith(f"{100 / output:.2f}")
            assert attention[row][column].startswith(f"{9 / alpha:.2f}")


def test_what_is_not_finished_is_left_out(sweep):
    for seed in SEEDS:
        (sweep / "output-2-attention-1" / f"seed-{seed}" / "summary.json").unlink()
    (sweep / "output-1-attention-1" / "seed-2" / "summary.json").unlink()
    (sweep / "output-1-attention-1" / "seed-10" / "summary.json").unlink()
    tables = alpha_grid.tables(alpha_grid.read_grid(sweep))
    first = cells_of(tables[0][1])[0]
    assert first[1] == f"{score(1.0, 1.0, 1):.2f} (1)" and first[3] == "-"


def test_the_script_writes_the_tables_the_figures_and_the_picture(sweep, capsys):
    assert summarize_sweep.main([str(sweep)]) == 0
    assert capsys.readouterr().out == (sweep / "sweep.md").read_text(encoding="utf-8")
    content = json.loads((sweep / "sweep.json").read_text())
    assert content["score"] == "word accuracy (%)" and len(content["grid"]) == 6
    for cell in content["grid"]:
        for seed, figures in cell["seeds"].items():
            alphas = cell["output_alpha"], cell["attention_alpha"]
            assert figures["score"] == score(*alphas, int(seed))
    assert (sweep / "sweep.png").stat().st_size > 0
    assert not list(sweep.glob("*.partial"))


def test_the_picture_has_a_line_for_each_alpha(sweep):
    left, right = alpha_grid.draw_grid(alpha_grid.read_grid(sweep)).axes
    for axes, lines, points in ((left, OUTPUTS, ATTENTIONS), (right, ATTENTIONS, OUTPUTS)):
        assert len(axes.containers) == len(lines)
        for container in axes.containers:
            assert tuple(container.lines[0].get_xdata()) == points
    means = left.containers[1].lines[0].get_ydata()
    assert means[0] == pytest.approx(fmean(score(1.5, 1.0, seed) for seed in SEEDS))


def test_bleu_is_a_score_as_well(tmp_path):
    write(
        tmp_path / "output-1-attention-2" / "seed-1" / "summary.json",
        dataset="text",
        bleu={"bleu": 33.333},
        test={"nonzeros": 5.0},
    )
    (title, table), *rest = alpha_grid.tables(alpha_grid.read_grid(tmp_path))
    assert title == "BLEU, single models" and cells_of(table) == [["2", "33.33 (1)"]]
    assert len(rest) == 1


def test_folders_that_are_no_sweep_are_refused(sweep, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, message in ((empty, "no finished run"), (tmp_path / "nowhere", "no finished run")):
        with pytest.raises(AnalysisError, match=message):
            alpha_grid.read_grid(folder)
        assert summarize_sweep.main([str(folder)]) == 1
        assert message in capsys.readouterr().err
    write(sweep / "output-1-attention-1" / "seed-3" / "summary.json", dataset="others")
    with pytest.raises(AnalysisError, match="different data sets"):
        alpha_grid.read_grid(sweep)
    write(empty / "output-1-attention-1" / "seed-1" / "summary.json", dataset="words")
    with pytest.raises(AnalysisError, match="no score"):
        alpha_grid.tables(alpha_grid.read_grid(empty))
