"""Tables of papers from made-up runs: means against NumPy, and the paper's figures beside them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.plots.curves import draw_curve, draw_picture
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.recipes.tables import Table
from fairseq_sparse.tables import paper_tables
from fairseq_sparse.tables.rows import Row, holm, mean_of, read_row
from fairseq_sparse.tables.summaries import EMPTY

REFERENCES = [f"a small dog sees the {word} near a house ." for word in "cat tree car boy".split()]
# BLEU by variant and seed, made up unless a test writes translations and a reference.
SCORES = {
    "softmax": [30.0, 31.0, 32.5],
    "softmax+rela_g": [31.0, 30.0, 33.5],
    "softmax+rela_i": [29.0],
}
RELA_G, RELA_I = "softmax, rela_g attention", "softmax, rela_i attention"
SEEDS = (1, 2, 3)
RO_EN = "wmt16_ro_en_32k"


def recipe_of(folder: Path, dataset: str, variant: str, seed: int, **options: object) -> Recipe:
    """Return the recipe of a run in a folder of its own."""
    chosen = Options(seed=seed, data_dir=folder / "data", **options)
    name = resolve(dataset, variant, chosen).run_dir.name
    return resolve(dataset, variant, replace(chosen, run_dir=folder / dataset / name))


def finish(recipe: Recipe, **summary: object) -> None:
    """Write run.json and summary.json, as a finished run has them."""
    recipe.run_dir.mkdir(parents=True, exist_ok=True)
    names = {"dataset": recipe.dataset, "variant": recipe.variant, "settings": recipe.settings}
    content = {**names, "variant_name": recipe.label, "model": asdict(recipe.model), **summary}
    (recipe.run_dir / "run.json").write_text(json.dumps(recipe.as_json()))
    (recipe.run_dir / "summary.json").write_text(json.dumps(content))


def finish_translation(recipe: Recipe, bleu: float, seconds: float = 1800, **more: object) -> None:
    finish(
        recipe,
        bleu={"bleu": bleu, "signature": "nrefs:1|tok:13a|version:x", "empty_translations": 0},
        generation={"sentences_per_second": 2 * bleu},
        attention={"encoder": {"sparsity": bleu / 100}, "cross": {"sparsity": 0.5}},
        training={"updates": 1234, "seconds": seconds, "words_per_second": 100 * bleu},
        hardware={"cpu": "a CPU & more", "threads": 1, "gpus": []},
        versions={"torch": "2"},
        **{"test": {"nonzeros": 10.5}, **more},
    )


@pytest.fixture
def recipes(tmp_path: Path) -> list[list[Recipe]]:
    """The recipes of each row, by seed, most of whose runs are finished."""
    rows = [[recipe_of(tmp_path, RO_EN, name, seed) for seed in SEEDS] for name in SCORES]
    for row, scores in zip(rows, SCORES.values(), strict=True):
        for recipe, bleu in zip(row, scores, strict=False):
            finish_translation(recipe, bleu, 1800 * recipe.seed)
    return rows


def make(
    rows: list[list[Recipe]], columns: str, trials: int = 1000, **fields: object
) -> tuple[dict, str, str]:
    """Make the table of rows of any data sets; return its JSON, Markdown and LaTeX."""
    title = {"paper": "rela", "name": "1", "title": "Table_1", **fields}
    table = Table(columns=tuple(columns.split(",")), **title)
    datasets: dict[str, list[Row]] = {}
    for row in rows:
        ensemble = row[0].run_dir.with_name("ensemble")
        datasets.setdefault(row[0].dataset, []).append(read_row(row, ensemble))
    folder = rows[0][0].run_dir.parents[1]
    references = dict.fromkeys(datasets, [folder / "reference"])
    stem = folder / "out" / "table"
    page, messages = paper_tables.make(table, datasets, references, trials)
    page.write(stem)
    messages += paper_tables.draw_all(table, datasets, stem)
    markdown = page.text()
    latex = Path(f"{stem}.tex").read_text(encoding="utf-8")
    assert Path(f"{stem}.md").read_text(encoding="utf-8") == markdown
    content = json.loads(Path(f"{stem}.json").read_text(encoding="utf-8"))
    return {**content, "messages": messages}, markdown, latex


def rows_of(content: dict, dataset: str) -> dict[str, dict[str, str]]:
    """The cells by row and heading."""
    table = content["datasets"][dataset]
    return {line[0]: dict(zip(table["header"], line, strict=True)) for line in table["cells"]}


def test_a_mean_over_fewer_seeds_than_are_finished_says_of_how_many() -> None:
    summaries = {1: {"test": {"nonzeros": 2.0}}, 2: {"test": {}}, 3: {"test": {"nonzeros": 4.0}}}
    row = Row("entmax15", summaries=summaries)
    assert row.cell("nonzeros", row) == "3.0 (n = 2)"
    del summaries[2]
    assert row.cell("nonzeros", row) == "3.0"
    summaries[3]["attention"] = {"encoder": {"sparsity": 0.25}}
    assert row.cell("sparsity", row) == "25.0 (n = 1)"
    assert row.cell("null", row) == "-"
    summaries[1]["attention"] = {"encoder": {"sparsity": 0.75}}
    assert row.cell("sparsity", row) == "50.0"


def test_means_and_deviations_are_those_of_numpy(recipes: list[list[Recipe]]) -> None:
    columns = "bleu,sparsity,words_per_second,hours,watt_hours"
    content, markdown, latex = make(recipes, columns)
    rows = rows_of(content, RO_EN)
    for found, scores in zip(content["datasets"][RO_EN]["rows"], SCORES.values(), strict=True):
        assert found["mean"]["bleu"] == pytest.approx(np.mean(scores))
        hours = [0.5 * seed for seed in range(1, len(scores) + 1)]
        assert found["mean"]["hours"] == pytest.approx(np.mean(hours))
        assert [each["hours"] for each in found["seeds"].values()][: len(hours)] == hours
        assert rows[found["row"]]["seeds"] == str(len(scores))
        if len(scores) > 1:
            deviation = np.std(scores, ddof=1)
            assert found["deviation"]["bleu"] == pytest.approx(deviation)
            assert rows[found["row"]]["BLEU"] == f"{np.mean(scores):.2f} ± {deviation:.2f}"
    assert list(rows) == ["softmax", RELA_G, RELA_I] and rows[RELA_I]["BLEU"] == "29.00"
    ratio = np.mean(SCORES["softmax+rela_g"]) / np.mean(SCORES["softmax"])
    speed = 100 * np.mean(SCORES["softmax+rela_g"])
    assert rows[RELA_G]["words/s"] == f"{speed:,.0f} ({ratio:.2f})"
    assert rows["softmax"]["zeros in attention (%)"] == "31.2 / 50.0"
    assert rows["softmax"]["training (h)"] == "1.00"
    assert "energy (Wh)" not in rows["softmax"]  # nobody has it
    # The paper's column, and the notes below the table.
    assert rows[RELA_G]["BLEU, paper"] == "32.9" and rows[RELA_I]["BLEU, paper"] == "-"
    assert "± is the standard deviation over them, with n - 1 in the denominator" in markdown
    for text in ("7 of 9 runs are finished", "0.50 to 1.50 hours", "updates: 1,234", "tok:13a"):
        assert text in markdown
    latex = re.sub(" +", " ", latex)
    assert r"rela\_g attention & 3 & 31.50 $\pm$ 1.80 & 32.9" in latex and r"a CPU \& more" in latex


def test_p_stands_beside_bleu_seed_by_seed(recipes: list[list[Recipe]]) -> None:
    content, markdown, _ = make(recipes, "bleu")
    assert "no paired test of seed 1: " in markdown and len(content["messages"]) == 3
    assert "p" not in content["datasets"][RO_EN]["header"]
    folder = recipes[0][0].run_dir.parents[1]
    (folder / "reference").write_text("".join(line + "\n" for line in REFERENCES))
    metric = BLEU()
    for number, path in enumerate(sorted(folder.glob("*/*/summary.json"))):
        lines = [line.replace("dog", "wolf") if number % 2 else line for line in REFERENCES]
        (path.parent / "hyp.detok.txt").write_text("".join(line + "\n" for line in lines))
        score = metric.corpus_score(lines, [REFERENCES]).score
        bleu = {"bleu": score, "signature": str(metric.get_signature())}
        (path.parent / "bleu.json").write_text(json.dumps(bleu))
    content, markdown, _ = make(recipes, "bleu", trials=50)
    rows = rows_of(content, RO_EN)
    assert rows["softmax"]["p"] == "-" and "ar:50" in markdown
    found = [row["seeds"] for row in content["datasets"][RO_EN]["rows"]]
    assert rows[RELA_G]["p"] == " / ".join(f"{found[1][str(seed)]['p_holm']:.3f}" for seed in SEEDS)
    assert rows[RELA_I]["p"] == f"{found[2]['1']['p_holm']:.3f} / - / -"
    raw = [*(found[1][str(seed)]["p"] for seed in SEEDS), found[2]["1"]["p"]]
    assert sorted(holm(raw)) == sorted(
        [*(found[1][str(seed)]["p_holm"] for seed in SEEDS), found[2]["1"]["p_holm"]]
    )
    assert found[0]["1"]["p"] is None and "Holm's method for 4 tests" in markdown
    assert "p: sacreBLEU" in markdown
    assert "p: sacreBLEU" not in make(recipes, "nonzeros", trials=50)[1]


def test_several_data_sets_have_an_overview_and_the_paper_its_own(
    recipes: list[list[Recipe]], tmp_path: Path
) -> None:
    others = [[recipe_of(tmp_path, "quickstart", name, seed) for seed in SEEDS] for name in SCORES]
    finish_translation(others[0][0], 80)
    content, markdown, latex = make([*recipes, *others], "bleu")
    lines = [line for line in markdown.splitlines() if line.startswith("| softmax  ")]
    cells = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert cells == ["softmax", "31.17 ± 1.26", "32.7", "80.00"]
    assert "paper: it has no figure for quickstart that is measured in the same way" in markdown
    assert "## Table 3 of the paper, on other data" in markdown and "| 37.2 " in markdown
    assert "parameters" not in markdown
    assert "| 32.7 " not in markdown.partition("## Table 3 of the paper")[2]
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 5
    assert list(content["datasets"]) == [RO_EN, "quickstart"]


def test_a_table_of_no_paper_has_no_notes_about_one(recipes: list[list[Recipe]]) -> None:
    content, _, _ = make(recipes, "bleu", paper="attention")
    table = content["datasets"][RO_EN]
    assert table["header"] == ["", "seeds", "BLEU"]
    assert not [note for note in table["notes"] if note.startswith("paper:")]


def test_what_a_reader_must_know_to_compare_stands_below(recipes: list[list[Recipe]]) -> None:
    _, markdown, _ = make(recipes, "bleu", compared="Corpora and filters are ours")
    assert "Corpora and filters are ours" in markdown


def test_inflection_has_ensembles_and_the_share_of_empty_translations_its_place(
    tmp_path: Path,
) -> None:
    alphas = {"output_alpha": 1.0, "attention_alpha": 2.0}
    row = [recipe_of(tmp_path, "sigmorphon2018_high", "entmax", n, **alphas) for n in (1, 2)]
    for recipe, accuracy in zip(row, (50.0, 53.0), strict=True):
        finish(recipe, inflection={"accuracy": accuracy})
    ensemble = replace(row[0], run_dir=row[0].run_dir.with_name("ensemble"))
    finish(ensemble, inflection={"accuracy": 60.0}, seeds=[1, 2])
    empty = {"rows": [{"scores": "p", "empty_is_best": 0.125}, {"scores": "p / Σp"}]}
    (row[0].run_dir / EMPTY).write_text(json.dumps(empty))
    content, _, _ = make([row], "word_accuracy,empty_is_best")
    (cells,) = rows_of(content, row[0].dataset).values()
    assert cells == {
        "": "entmax: output 1, attention 2",
        "seeds": "2",
        "word accuracy (%)": "51.50 ± 2.12",
        "word accuracy (%), ensemble": "60.00",
        "p(empty) > p(best)": "12.50% (n = 1)",
    }
    found = content["datasets"][row[0].dataset]["rows"][0]
    assert found["model"]["attention_alpha"] == 2 and found["ensemble"]["word_accuracy"] == 60
    content, _, _ = make([row], "empty_is_best,word_accuracy")  # no ensemble has the first
    assert "p(empty) > p(best), ensemble" not in content["datasets"][row[0].dataset]["header"]
    finish(ensemble, inflection={"accuracy": 60.0}, seeds=[1, 2, 3])  # not of these seeds
    content, _, _ = make([row], "word_accuracy")
    assert "word accuracy (%), ensemble" not in content["datasets"][row[0].dataset]["header"]
    content, _, _ = make([row], "variant,word_accuracy")  # the variant is not a number
    (found,) = content["datasets"][row[0].dataset]["rows"]
    assert found["deviation"].keys() == {"word_accuracy"}


@pytest.mark.parametrize("subset", ["valid", "test"])
def test_the_paper_stands_beside_the_same_split_alone(subset: str, tmp_path: Path) -> None:
    rows = [
        [recipe_of(tmp_path, "iwslt14_de_en", variant, 1)]
        for variant in ("softmax", "alpha_relu", "sparsemax")
    ]
    for (recipe,) in rows:
        finish_translation(recipe, 30)
        if recipe.variant != "sparsemax":  # it has not been analysed yet
            found = [{"scores": "p", "subset": subset, "empty_is_best": 0.25}]
            (recipe.run_dir / EMPTY).write_text(json.dumps({"rows": found}))
    content, markdown, _ = make(rows, "empty_is_best", paper="speeding_up_entmax")
    theirs = {
        name: row.get("p(empty) > p(best), paper")
        for name, row in rows_of(content, "iwslt14_de_en").items()
    }
    other = (
        "Table 2, has p(empty) > p(best) on the valid set; ours is p(empty) > p(best) on the test"
    )
    assert (other in markdown) == (subset == "test")
    if subset == "valid":
        assert theirs == {"softmax": "7.5%", "alpha_relu": "0%", "sparsemax": "0%"}
        assert "29.8%" in markdown and "7.5%" not in markdown.partition("## Table 2")[2]
    else:
        assert set(theirs.values()) == {None}
        assert "7.5%" in markdown.partition("## Table 2")[2]


def test_word_accuracy_of_ten_languages_has_no_figure_of_the_paper_beside_it(
    tmp_path: Path,
) -> None:
    alphas = {"output_alpha": 2.0, "attention_alpha": 1.5}
    rows = []
    for name, count in (("sigmorphon2018_high", 86), ("sigmorphon2018_medium", 10)):
        rows.append([recipe_of(tmp_path, name, "entmax", 1, **alphas)])
        languages = {str(number): {} for number in range(count)}
        finish(rows[-1][0], inflection={"accuracy": 90.0, "languages": languages})
    content, markdown, _ = make(rows, "word_accuracy", paper="sparse_seq2seq")
    (high,) = rows_of(content, "sigmorphon2018_high").values()
    (medium,) = rows_of(content, "sigmorphon2018_medium").values()
    assert high["word accuracy (%), paper"] == "94.47"
    assert "word accuracy (%), paper" not in medium
    text = "on the test set of 102 languages; ours is word accuracy on the test set of 10 languages"
    assert text in markdown


def test_the_curve_has_a_point_for_each_row_with_figures_and_names_that_are_no_numbers(
    tmp_path: Path,
) -> None:
    scores = {
        "": ([30.0, 32.0], 1.0),
        "1.5": ([33.0], 1.5),
        "weights": ([29.0], 0.25),
        "9": ([], 9),
    }
    recipes = []
    for tau, (values, threshold) in scores.items():
        row = [recipe_of(tmp_path, "quickstart", "alpha_relu", n, output_tau=tau) for n in (1, 2)]
        for recipe, bleu in zip(row, values, strict=False):
            finish_translation(recipe, bleu, test={"nonzeros": 1.0, "tau": threshold})
        recipes.append(row)
    (axes,) = draw_curve([read_row(row) for row in recipes], "tau", "bleu").axes
    (line,) = axes.get_lines()[:1]
    assert line.get_xydata().tolist() == [[0.25, 29.0], [1.0, 31.0], [1.5, 33.0]]
    assert {text.get_text(): text.xy for text in axes.texts} == {
        "alpha_relu, τ = weights": (0.25, 29.0),
        "alpha_relu": (1.0, 31.0),
    }
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("τ", "BLEU")
    make(recipes, "bleu,tau", pictures=("tau",))
    assert (tmp_path / "out" / "table-tau.png").stat().st_size > 10_000
    # The table is written even if a picture cannot be drawn.
    content, _, _ = make(recipes, "bleu,tau", pictures=("watt_hours", "alphas", "training"))
    assert [message.partition(": ")[2] for message in content["messages"][-3:]] == [
        "no finished run has both watt_hours and bleu",
        "alpha_relu has no alphas",
        "no finished run has a training log",
    ]


def test_training_is_drawn_from_the_logs_of_finished_runs_and_accuracy_by_alpha(
    tmp_path: Path,
) -> None:
    recipes = []
    for number, (output, attention) in enumerate([(1, 1.5), (1.5, 1.5), (2, 1.5), (1.5, 1)]):
        alphas = {"output_alpha": output, "attention_alpha": attention}
        recipe, unfinished = (
            recipe_of(tmp_path, "quickstart", "entmax", seed, **alphas) for seed in (1, 2)
        )
        valid = {"accuracy": 50.0 + number}
        finish_translation(recipe, 30)
        summary = json.loads((recipe.run_dir / "summary.json").read_text())
        summary["training"]["valid"] = valid
        (recipe.run_dir / "summary.json").write_text(json.dumps(summary))
        (recipe.run_dir / "logs").mkdir()
        line = json.dumps({"epoch": 1, "valid_accuracy": "40", "valid_num_updates": "7"})
        (recipe.run_dir / "logs" / "train.log").write_text(f"x | INFO | valid | {line}\n")
        recipes.append([recipe, unfinished])
    rows = [read_row(row) for row in recipes]
    updates, hours = draw_picture(rows, "training", "bleu", 1.0).axes
    assert [line.get_xydata().tolist() for line in updates.lines] == [[[7, 40]]] * 4
    assert updates.lines[0].get_label() == "entmax: output 1, attention 1.5"
    attention, output = draw_picture(rows, "alphas", "bleu", 1.0).axes
    (points,) = attention.containers
    assert points.lines[0].get_xydata().tolist() == [[1, 53], [1.5, 51]]
    (points,) = output.containers
    assert points.lines[0].get_xydata().tolist() == [[1, 50], [1.5, 51], [2, 52]]
    make(recipes, "valid_accuracy,bleu", pictures=("training", "alphas"), early=0.5)
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        "table-training.png",
        "table-alphas.png",
    }


def test_runs_must_be_those_planned_and_seeds_trained_alike(tmp_path: Path) -> None:
    def row(**options: object) -> list[Recipe]:
        return [recipe_of(tmp_path, "quickstart", "softmax", seed, **options) for seed in (1, 2)]

    for recipe in row():
        finish_translation(recipe, 30)
    assert len(read_row(row()).summaries) == 2
    for planned, change in (
        ({"variant": "entmax15"}, "another model"),
        ({"dataset": "multi30k_de_en"}, "dataset 'quickstart', not 'multi30k_de_en'"),
        ({"seed": 3}, "seed 1, not 3"),
        ({"settings": "rela"}, "settings '', not 'rela'"),
    ):
        first = replace(row()[0], **{k: v for k, v in planned.items() if k != "variant"})
        if "variant" in planned:
            other = recipe_of(tmp_path, "quickstart", "entmax15", 1)
            first = replace(other, run_dir=first.run_dir)
        with pytest.raises(AnalysisError, match=f"{change}: move it away"):
            read_row([first])
    smoothed = recipe_of(tmp_path, "quickstart", "softmax", 1, label_smoothing=0.3)
    with pytest.raises(AnalysisError, match="label-smoothing"):
        read_row([replace(smoothed, run_dir=row()[0].run_dir)])
    finish_translation(recipe_of(tmp_path, "quickstart", "softmax", 2, epochs=2), 30)
    with pytest.raises(AnalysisError, match="seed-2 has a run of another training"):
        read_row(row())
    (row()[0].run_dir / "summary.json").write_text("{")
    with pytest.raises(ValueError, match="summary.json: not valid JSON"):
        read_row(row())
    with pytest.raises(AnalysisError, match="no run of the table is finished"):
        make([[recipe_of(tmp_path, "quickstart", "sparsemax", 1)]], "bleu")


def test_the_mean_of_summaries_is_that_of_what_they_have() -> None:
    first = {"a": 1, "b": {"c": 2.0, "name": "x"}, "d": None, "e": 5}
    second = {"a": 2, "b": {"c": 5.0, "name": "y"}, "d": 7}
    assert mean_of([first, second]) == {"a": 1.5, "b": {"c": 3.5, "name": "x"}, "d": 7, "e": 5}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_his_procedure_rejects(values: list[float]) -> None:
    """Step down: while the smallest of those left is at most level / their number, reject it."""
    corrected = holm(values)
    for level in (0.01, 0.05, 0.5):
        rejected, left = set(), sorted(range(len(values)), key=values.__getitem__)
        while left and len(left) * values[left[0]] <= level:
            rejected.add(left.pop(0))
        assert rejected == {place for place, p in enumerate(corrected) if p <= level}


def test_a_table_of_the_paper_can_be_shown_whole() -> None:
    table = Table("rela", "6", "ReLA, Table 6", ("bleu",), show="Table 6")
    ((title, header, rows, _),) = paper_tables.paper_elsewhere(table, {"quickstart": [Row("a")]})
    assert title == "Table 6 of the paper" and header[1:] == [
        "encoder",
        "decoder",
        "cross-attention",
    ]
    assert rows[2] == ["ReLA-g, τ = 1.00", "1.26", "0.81", "0.78"]
