"""Tables of papers from made-up runs: means against NumPy, and the paper's figures beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

import reproduce_table
from fairseq_sparse.analysis.runs.curves import draw_curve, draw_picture
from fairseq_sparse.analysis.runs.paper_tables import Paper, paper_elsewhere
from fairseq_sparse.analysis.runs.rows import (
    EMPTY,
    Row,
    gather,
    mean_of,
    read_plan,
    read_sweep,
)
from fairseq_sparse.errors import AnalysisError

REFERENCES = [f"a small dog sees the {word} near a house ." for word in "cat tree car boy".split()]
# BLEU by variant and seed, made up unless a test writes translations and a reference.
SCORES = {"softmax": [30.0, 31.0, 32.5], "rela_g": [31.0, 30.0, 33.5], "rela_i": [29.0]}
SEEDS = (1, 2, 3)


def make_run(folder: Path, dataset: str, variant: str, bleu: float, seconds: float = 1800) -> None:
    """Write the summary of a finished run, as scripts/summarize_run.py does."""
    folder.mkdir(parents=True)
    summary = {
        "dataset": dataset,
        "variant": variant,
        "settings": "",
        "bleu": {"bleu": bleu, "signature": "nrefs:1|tok:13a|version:x", "empty_translations": 0},
        "generation": {"sentences_per_second": 2 * bleu},
        "test": {"nonzeros": 10.5},
        "attention": {"encoder": {"sparsity": bleu / 100}, "cross": {"sparsity": 0.5}},
        "training": {"updates": 1234, "seconds": seconds, "words_per_second": 100 * bleu},
        "hardware": {"cpu": "a CPU & more", "threads": 1, "gpus": []},
        "versions": {"torch": "2"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def write_plan(folder: Path, dataset: str) -> Path:
    plan = folder / "table.plan"
    lines = [
        f"{seed}\t{dataset}\t{variant}\t-\t-\t{folder / 'data'}\t{folder / variant}-{seed}\n"
        for seed in SEEDS
        for variant in SCORES
    ]
    plan.write_text("".join(lines), encoding="utf-8")
    return plan


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    folder = tmp_path / "Läufe hier"
    folder.mkdir()
    for variant, scores in SCORES.items():
        for seed, bleu in enumerate(scores, start=1):
            make_run(folder / f"{variant}-{seed}", "wmt16_ro_en_32k", variant, bleu, 1800 * seed)
    return write_plan(folder, "wmt16_ro_en_32k")


def make(plan: Path, columns: str, *more: str) -> tuple[dict, str, str]:
    """Run the script on a plan; return its JSON, Markdown and LaTeX."""
    stem = plan.parent / "out" / "table"
    arguments = ["--paper", "rela", "--title", "Table_1", "--columns", columns, *more]
    assert reproduce_table.main([str(plan), *arguments, "--output", str(stem)]) == 0
    assert not list(stem.parent.glob("*.partial"))
    texts = [Path(f"{stem}.{suffix}").read_text(encoding="utf-8") for suffix in ("md", "tex")]
    return json.loads(Path(f"{stem}.json").read_text(encoding="utf-8")), *texts


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


def test_means_and_deviations_are_those_of_numpy(plan: Path) -> None:
    content, markdown, latex = make(plan, "bleu,sparsity,words_per_second,hours,watt_hours")
    rows = rows_of(content, "wmt16_ro_en_32k")
    for variant, scores in SCORES.items():
        found = next(
            row for row in content["datasets"]["wmt16_ro_en_32k"]["rows"] if row["row"] == variant
        )
        assert found["mean"]["bleu"] == pytest.approx(np.mean(scores))
        hours = [0.5 * seed for seed in range(1, len(scores) + 1)]
        assert found["mean"]["hours"] == pytest.approx(np.mean(hours))
        assert [each["hours"] for each in found["seeds"].values()][: len(hours)] == hours
        assert rows[variant]["seeds"] == str(len(scores))
        if len(scores) > 1:
            deviation = np.std(scores, ddof=1)
            assert found["deviation"]["bleu"] == pytest.approx(deviation)
            assert rows[variant]["BLEU"] == f"{np.mean(scores):.2f} ± {deviation:.2f}"
    assert rows["rela_i"]["BLEU"] == "29.00"
    ratio = np.mean(SCORES["rela_g"]) / np.mean(SCORES["softmax"])
    assert rows["rela_g"]["words/s"] == f"{100 * np.mean(SCORES['rela_g']):,.0f} ({ratio:.2f})"
    assert rows["softmax"]["zeros in attention (%)"] == "31.2 / 50.0"
    assert rows["softmax"]["training (h)"] == "1.00"
    assert "energy (Wh)" not in rows["softmax"]  # nobody has it
    # The paper's column, and the notes below the table.
    assert rows["rela_g"]["BLEU, paper"] == "32.9" and rows["rela_i"]["BLEU, paper"] == "-"
    assert "± is the standard deviation over them, with n - 1 in the denominator" in markdown
    for text in ("7 of 9 runs are finished", "0.50 to 1.50 hours", "updates: 1,234", "tok:13a"):
        assert text in markdown
    assert r"rela\_g & 3 & 31.50 $\pm$ 1.80 & 32.9" in latex and r"a CPU \& more" in latex


def test_p_stands_beside_bleu_seed_by_seed(plan: Path) -> None:
    folder = plan.parent
    content, markdown, _ = make(plan, "bleu")
    assert "no paired test of seed 1: " in markdown
    assert "p" not in content["datasets"]["wmt16_ro_en_32k"]["header"]
    reference = folder / "data" / "prepared" / "reference" / "test.en"
    reference.parent.mkdir(parents=True)
    reference.write_text("".join(line + "\n" for line in REFERENCES))
    metric = BLEU()
    for number, path in enumerate(sorted(folder.glob("*/summary.json"))):
        lines = [line.replace("dog", "wolf") if number % 2 else line for line in REFERENCES]
        (path.parent / "hyp.detok.txt").write_text("".join(line + "\n" for line in lines))
        score = metric.corpus_score(lines, [REFERENCES]).score
        bleu = {"bleu": score, "signature": str(metric.get_signature())}
        (path.parent / "bleu.json").write_text(json.dumps(bleu))
        (path.parent / "settings").mkdir()
        (path.parent / "settings" / "generate").write_text("--target-lang en\n")
    content, markdown, _ = make(plan, "bleu", "--samples", "50")
    rows = rows_of(content, "wmt16_ro_en_32k")
    assert rows["softmax"]["p"] == "-" and "bs:50" in markdown
    found = [row["seeds"] for row in content["datasets"]["wmt16_ro_en_32k"]["rows"]]
    assert rows["rela_g"]["p"] == " / ".join(f"{found[1][str(seed)]['p']:.3f}" for seed in SEEDS)
    assert rows["rela_i"]["p"] == f"{found[2]['1']['p']:.3f} / - / -"
    assert found[0]["1"]["p"] is None
    assert "p: sacreBLEU" in markdown
    assert "p: sacreBLEU" not in make(plan, "nonzeros", "--samples", "50")[1]


def test_several_data_sets_have_an_overview_and_the_paper_its_own(plan: Path) -> None:
    folder = plan.parent
    other = folder / "other"
    make_run(other / "softmax-1", "quickstart", "softmax", 80)
    with open(plan, "a", encoding="utf-8") as handle:
        handle.write(write_plan(other, "quickstart").read_text(encoding="utf-8"))
    content, markdown, latex = make(plan, "bleu")
    lines = [line for line in markdown.splitlines() if line.startswith("| softmax")]
    cells = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert cells == ["softmax", "31.17 ± 1.26", "32.7", "80.00"]
    assert "paper: it has no figure for quickstart that is measured in the same way" in markdown
    assert "## Table 3 of the paper, on other data" in markdown and "| 37.2 " in markdown
    assert "parameters" not in markdown
    assert "| 32.7 " not in markdown.partition("## Table 3 of the paper")[2]
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 5
    assert list(content["datasets"]) == ["wmt16_ro_en_32k", "quickstart"]


def test_a_table_of_no_paper_has_no_notes_about_one(plan: Path) -> None:
    content, _, _ = make(plan, "bleu", "--paper", "attention")
    table = content["datasets"]["wmt16_ro_en_32k"]
    assert table["header"] == ["", "seeds", "BLEU"]
    assert not [note for note in table["notes"] if note.startswith("paper:")]


def test_inflection_has_ensembles_and_the_share_of_empty_translations_its_place(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "output-1-attention-2"
    for name, accuracy in (("seed-1", 50.0), ("seed-2", 53.0), ("ensemble", 60.0)):
        (folder / name).mkdir(parents=True)
        names = {
            "dataset": "morph",
            "variant": "entmax",
            "settings": "",
            "variant_name": "α = 1, 2",
        }
        content = {**names, "inflection": {"accuracy": accuracy}}
        (folder / name / "summary.json").write_text(json.dumps(content))
    empty = {"rows": [{"scores": "p", "empty_is_best": 0.125}, {"scores": "p / Σp"}]}
    (folder / "seed-1" / EMPTY).write_text(json.dumps(empty))
    fields = ["morph", "entmax", "-", "OUTPUT_ALPHA=1 ATTENTION_ALPHA=2", str(tmp_path)]
    plan = tmp_path / "plan"
    plan.write_text("".join("\t".join([s, *fields, f"{folder}/seed-{s}\n"]) for s in "12"))
    content, _, _ = make(plan, "word_accuracy,empty_is_best")
    (row,) = rows_of(content, "morph").values()
    assert row == {
        "": "α = 1, 2",
        "seeds": "2",
        "word accuracy (%)": "51.50 ± 2.12",
        "word accuracy (%), ensemble": "60.00",
        "p(empty) > p(best)": "12.50% (n = 1)",
    }
    assert content["datasets"]["morph"]["rows"][0]["row"] == "entmax " + fields[3]
    content, _, _ = make(plan, "empty_is_best,word_accuracy")  # no ensemble has the first
    assert "p(empty) > p(best), ensemble" not in content["datasets"]["morph"]["header"]
    content = json.loads((folder / "ensemble" / "summary.json").read_text())
    content["members"] = ["seed-1", "seed-2", "seed-3"]  # the plan has only two of these
    (folder / "ensemble" / "summary.json").write_text(json.dumps(content))
    content, _, _ = make(plan, "word_accuracy")
    assert "word accuracy (%), ensemble" not in content["datasets"]["morph"]["header"]
    content, _, _ = make(plan, "variant,word_accuracy")  # the variant is not a number
    assert content["datasets"]["morph"]["rows"][0]["deviation"].keys() == {"word_accuracy"}


@pytest.mark.parametrize("subset", ["valid", "test"])
def test_the_paper_stands_beside_the_same_split_alone(subset: str, tmp_path: Path) -> None:
    for variant in ("softmax", "alpha_relu", "sparsemax"):
        make_run(tmp_path / f"{variant}-1", "iwslt14_de_en", variant, 30)
        if variant != "sparsemax":  # it has not been analysed yet
            rows = [{"scores": "p", "subset": subset, "empty_is_best": 0.25}]
            (tmp_path / f"{variant}-1" / EMPTY).write_text(json.dumps({"rows": rows}))
    plan = tmp_path / "plan"
    plan.write_text(
        "".join(
            f"1\tiwslt14_de_en\t{variant}\t-\t-\tdata\t{tmp_path / variant}-1\n"
            for variant in ("softmax", "alpha_relu", "sparsemax")
        )
    )
    content, markdown, _ = make(plan, "empty_is_best", "--paper", "speeding_up_entmax")
    rows = rows_of(content, "iwslt14_de_en")
    theirs = {name: row.get("p(empty) > p(best), paper") for name, row in rows.items()}
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
    for name, count in (("high", 86), ("medium", 10)):
        folder = tmp_path / name
        folder.mkdir()
        languages = {str(number): {} for number in range(count)}
        accuracy = {"accuracy": 90.0, "languages": languages}
        content = {"dataset": f"sigmorphon2018_{name}", "variant": "entmax", "settings": ""}
        (folder / "summary.json").write_text(json.dumps({**content, "inflection": accuracy}))
    row = "1\tsigmorphon2018_{0}\tentmax\t-\tOUTPUT_ALPHA=2 ATTENTION_ALPHA=1.5\tdata\t{1}/{0}\n"
    plan = tmp_path / "plan"
    plan.write_text(row.format("high", tmp_path) + row.format("medium", tmp_path))
    content, markdown, _ = make(plan, "word_accuracy", "--paper", "sparse_seq2seq")
    (high,) = rows_of(content, "sigmorphon2018_high").values()
    (medium,) = rows_of(content, "sigmorphon2018_medium").values()
    assert high["word accuracy (%), paper"] == "94.47"
    assert "word accuracy (%), paper" not in medium
    text = "on the test set of 102 languages; ours is word accuracy on the test set of 10 languages"
    assert text in markdown


def test_the_curve_has_a_point_for_each_row_with_figures_and_names_that_are_no_numbers(
    tmp_path: Path, capsys
) -> None:
    scores = {"-": [30.0, 32.0], "OUTPUT_TAU=1.5": [33.0], "OUTPUT_TAU=weights": [29.0]}
    thresholds = {"-": 1.0, "OUTPUT_TAU=1.5": 1.5, "OUTPUT_TAU=weights": 0.25}
    lines = ["1\tquickstart\talpha_relu\t-\tOUTPUT_TAU=9\tdata\tnowhere\n"]
    for variable, values in scores.items():
        for seed, bleu in enumerate(values, start=1):
            folder = tmp_path / f"{variable}-{seed}"
            make_run(folder, "quickstart", "alpha_relu", bleu)
            summary = json.loads((folder / "summary.json").read_text())
            summary["test"]["tau"] = thresholds[variable]
            (folder / "summary.json").write_text(json.dumps(summary))
            lines.append(f"{seed}\tquickstart\talpha_relu\t-\t{variable}\tdata\t{folder}\n")
    (tmp_path / "table.plan").write_text("".join(lines))
    rows = gather(read_plan(tmp_path / "table.plan"))["quickstart"]
    (axes,) = draw_curve(rows, "tau", "bleu").axes
    (line,) = axes.get_lines()[:1]
    assert line.get_xydata().tolist() == [[0.25, 29.0], [1.0, 31.0], [1.5, 33.0]]
    assert {text.get_text(): text.xy for text in axes.texts} == {
        "weights": (0.25, 29.0),
        "alpha_relu": (1.0, 31.0),
    }
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("τ", "BLEU")
    make(tmp_path / "table.plan", "bleu,tau", "--draw", "tau")
    assert (tmp_path / "out" / "table-tau.png").stat().st_size > 10_000
    # The table is written even if a picture cannot be drawn.
    make(tmp_path / "table.plan", "bleu,tau", "--draw", "watt_hours,alphas,training")
    message = "no picture of quickstart: no finished run has both watt_hours and bleu"
    messages = capsys.readouterr().err
    assert message in messages and "no picture of quickstart: alpha_relu has no alphas" in messages
    assert "no picture of quickstart: no finished run has a training log" in messages


def test_training_is_drawn_from_the_logs_of_finished_runs_and_accuracy_by_alpha(
    tmp_path: Path,
) -> None:
    rows = []
    for number, (output, attention) in enumerate([(1, 1.5), (1.5, 1.5), (2, 1.5), (1.5, 1)]):
        name = f"OUTPUT_ALPHA={output} ATTENTION_ALPHA={attention}"
        folder = tmp_path / str(number)
        make_run(folder, "quickstart", "entmax", 30)
        summary = json.loads((folder / "summary.json").read_text())
        summary["training"]["valid"] = {"accuracy": 50.0 + number}
        summary["variant_name"] = f"{output} and {attention}"
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "logs").mkdir()
        line = json.dumps({"epoch": 1, "valid_accuracy": "40", "valid_num_updates": "7"})
        (folder / "logs" / "2_train.log").write_text(f"x | INFO | valid | {line}\n")
        rows.append(f"1\tquickstart\tentmax\t-\t{name}\tdata\t{folder}\n")
    rows.append(f"2\tquickstart\tentmax\t-\t{name}\tdata\tnowhere\n")
    plan = tmp_path / "table.plan"
    plan.write_text("".join(rows))
    found = gather(read_plan(plan))["quickstart"]
    updates, hours = draw_picture(found, "training", "bleu", 1.0).axes
    assert [line.get_xydata().tolist() for line in updates.lines] == [[[7, 40]]] * 4
    assert updates.lines[0].get_label() == "1 and 1.5"
    attention, output = draw_picture(found, "alphas", "bleu", 1.0).axes
    (points,) = attention.containers
    assert points.lines[0].get_xydata().tolist() == [[1, 53], [1.5, 51]]
    (points,) = output.containers
    assert points.lines[0].get_xydata().tolist() == [[1, 50], [1.5, 51], [2, 52]]
    make(plan, "valid_accuracy,bleu", "--draw", "training,alphas", "--early", "0.5")
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        "table-training.png",
        "table-alphas.png",
    }


def test_seeds_of_a_row_must_have_been_trained_alike(plan: Path, tmp_path: Path) -> None:
    def train(variant: str, seed: int, flags: str) -> None:
        folder = plan.parent / f"{variant}-{seed}" / "settings"
        folder.mkdir(exist_ok=True)
        (folder / "train").write_text(f"--lr 1\n--seed {seed}\n{flags}\n")

    train("softmax", 1, "--max-epoch 8")
    train("softmax", 2, "--max-epoch 8")
    train("rela_g", 1, "--max-epoch 2")  # another row may have other settings
    assert gather(read_plan(plan))
    train("softmax", 2, "--max-epoch 2")
    with pytest.raises(AnalysisError, match="softmax-1 and .*softmax-2 were trained with diff"):
        gather(read_plan(plan))
    for seed in (1, 2):
        folder = tmp_path / "sweep" / "output-1-attention-1" / f"seed-{seed}"
        (plan.parent / f"softmax-{seed}").rename(tmp_path / f"softmax-{seed}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"softmax-{seed}").rename(folder)
    with pytest.raises(AnalysisError, match="seed-1 and .*seed-2 were trained with different"):
        read_sweep(tmp_path / "sweep")


def test_wrong_plans_and_runs_are_named(plan: Path, capsys) -> None:
    arguments = ["--paper", "rela", "--title", "t", "--output", str(plan.parent / "out")]
    with pytest.raises(SystemExit):
        reproduce_table.main([str(plan), "--columns", "bleu,nothing", *arguments])
    assert "no column nothing; choose from" in capsys.readouterr().err
    for text, message in (
        ("1\ttwo\n", "no run: '1\\ttwo'"),
        ("", "has no run"),
        (plan.read_text(encoding="utf-8").replace("Läufe", "nowhere"), "is finished"),
        (plan.read_text(encoding="utf-8").replace("\trela_g\t", "\trela_i\t"), "move it away"),
    ):
        plan.with_name("wrong").write_text(text, encoding="utf-8")
        arguments = ["--columns", "bleu", *arguments]
        assert reproduce_table.main([str(plan.with_name("wrong")), *arguments]) == 1
        assert message in capsys.readouterr().err
    settings = plan.parent / "softmax-1" / "settings" / "train"
    settings.parent.mkdir()
    settings.write_text("--seed 1\n--lr 0.1\n")
    gather(read_plan(plan))
    settings.write_text("--seed 1\n--lr 0.1\n--seed 7\n")
    with pytest.raises(AnalysisError, match="softmax-1 has a run of seed 7, not 1: move it away"):
        gather(read_plan(plan))
    settings.unlink()
    (plan.parent / "softmax-1" / "summary.json").write_text("{")
    with pytest.raises(ValueError, match="softmax-1/summary.json: not valid JSON"):
        gather(read_plan(plan))


def test_the_mean_of_summaries_is_that_of_what_they_have() -> None:
    first = {"a": 1, "b": {"c": 2.0, "name": "x"}, "d": None, "e": 5}
    second = {"a": 2, "b": {"c": 5.0, "name": "y"}, "d": 7}
    assert mean_of([first, second]) == {"a": 1.5, "b": {"c": 3.5, "name": "x"}, "d": 7, "e": 5}


def test_a_table_of_the_paper_can_be_shown_whole() -> None:
    paper = Paper("rela", "ReLA, Table 6", ("bleu",), table="Table 6")
    ((title, (header, rows), _),) = paper_elsewhere(paper, {"quickstart": [Row("rela_g")]})
    assert title == "Table 6 of the paper" and header[1:] == [
        "encoder",
        "decoder",
        "cross-attention",
    ]
    assert rows[2] == ["ReLA-g, τ = 1.00", "1.26", "0.81", "0.78"]
