"""Tables and picture of a grid of alphas, from summaries that the test writes."""

import json
import math
from statistics import fmean, stdev

import pytest

import summarize_sweep
from fairseq_sparse.analysis.runs import alpha_grid
from fairseq_sparse.analysis.runs.curves import draw_alphas
from fairseq_sparse.analysis.runs.rows import read_sweep
from fairseq_sparse.errors import AnalysisError

OUTPUTS, ATTENTIONS, SEEDS = (1.0, 1.5, 2.0), (1.0, 1.25), (1, 2, 10)


def score(output, attention, seed):
    return 50 + 10 * output + attention + math.sin(7 * output + 3 * attention + seed)


def valid(output, attention, seed):
    return 50 + score(output, attention, seed) / 2


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
                    dataset_note="a part",
                    inflection={"accuracy": score(output, attention, seed)},
                    training={"valid": {"sentence_accuracy": valid(output, attention, seed)}},
                    test={"nonzeros": 100 / output},
                    attention={"cross": {"nonzeros": 9 / attention}},
                )
            best = {"accuracy": 90 + output + attention}
            write(folder / "ensemble" / "summary.json", dataset="words", inflection=best)
    (tmp_path / "prepare").mkdir()
    return tmp_path


def cells_of(table):
    """Return the cells of a Markdown table, row by row, without its two heading lines."""
    rows = table.strip().split("\n")[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_each_field_is_of_its_own_alphas(sweep):
    tables = dict(alpha_grid.tables(read_sweep(sweep)))
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
    tables = alpha_grid.tables(read_sweep(sweep))
    first = cells_of(tables[0][1])[0]
    assert first[1] == f"{score(1.0, 1.0, 1):.2f} (1)" and first[3] == "-"


def test_the_script_writes_the_tables_the_figures_and_the_picture(sweep, capsys):
    assert summarize_sweep.main([str(sweep)]) == 0
    text = (sweep / "sweep.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text and text.endswith(
        "|\n\ndata: words\n\nnote on the data: a part\n"
    )
    content = json.loads((sweep / "sweep.json").read_text())
    assert content["score"] == "word accuracy (%)" and len(content["grid"]) == 6
    for cell in content["grid"]:
        for seed, figures in cell["seeds"].items():
            alphas = cell["output_alpha"], cell["attention_alpha"]
            assert figures["score"] == score(*alphas, int(seed))
    assert (sweep / "sweep.png").stat().st_size > 0
    assert not list(sweep.glob("*.partial"))


def test_the_picture_has_the_validation_accuracy_with_one_alpha_held(sweep):
    cells = read_sweep(sweep)
    (axes,) = draw_alphas(cells).axes  # no attention has an alpha of 1.5
    (container,) = axes.containers
    assert tuple(container.lines[0].get_xdata()) == ATTENTIONS
    expected = [fmean(valid(1.5, alpha, seed) for seed in SEEDS) for alpha in ATTENTIONS]
    assert list(container.lines[0].get_ydata()) == pytest.approx(expected)
    assert axes.get_xlabel() == "α of the attention (α of the output: 1.5)"
    assert axes.get_ylabel() == "validation accuracy (% of the words)"


def test_without_an_alpha_of_one_and_a_half_there_is_no_picture(sweep, capsys):
    for folder in sweep.glob("output-1.5-*"):
        folder.rename(sweep / f"moved {folder.name}")
    assert summarize_sweep.main([str(sweep)]) == 0
    assert "no picture, no two finished runs" in capsys.readouterr().err
    assert (sweep / "sweep.md").is_file() and not (sweep / "sweep.png").exists()


def test_bleu_is_a_score_as_well(tmp_path):
    write(
        tmp_path / "output-1-attention-2" / "seed-1" / "summary.json",
        dataset="text",
        bleu={"bleu": 33.333},
        test={"nonzeros": 5.0},
    )
    (title, table), *rest = alpha_grid.tables(read_sweep(tmp_path))
    assert title == "BLEU, single models" and cells_of(table) == [["2", "33.33 (1)"]]
    assert len(rest) == 1


def test_folders_that_are_no_sweep_are_refused(sweep, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, message in ((empty, "no finished run"), (tmp_path / "nowhere", "no finished run")):
        with pytest.raises(AnalysisError, match=message):
            read_sweep(folder)
        assert summarize_sweep.main([str(folder)]) == 1
        assert message in capsys.readouterr().err
    write(sweep / "output-1-attention-1" / "seed-3" / "summary.json", dataset="others")
    with pytest.raises(AnalysisError, match="different data sets"):
        read_sweep(sweep)
    write(empty / "output-1-attention-1" / "seed-1" / "summary.json", dataset="words")
    with pytest.raises(AnalysisError, match="no score"):
        alpha_grid.tables(read_sweep(empty))
    write(empty / "output-1.0-attention-1" / "seed-1" / "summary.json", dataset="words")
    with pytest.raises(AnalysisError, match="two folders with the same alphas"):
        read_sweep(empty)
