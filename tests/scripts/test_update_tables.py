"""The tables of the pages agree with docs/results and the catalogue, and these with one another."""

import csv
import json
import re
import shutil
import subprocess
import sys

import pytest

import toy
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.tables.rows import holm

SCRIPT = toy.ROOT / "scripts" / "update_tables.py"
RUNS = toy.ROOT / "docs" / "results" / "runs"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
    )


def pages():
    return [toy.ROOT / "README.md", *sorted((toy.ROOT / "docs").glob("*.md"))]


def test_the_tables_are_up_to_date():
    result = run("--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_file_of_figures_stands_on_exactly_one_page():
    named = [
        name for page in pages() for name in re.findall(r"<!-- table (\w+) -->", page.read_text())
    ]
    assert sorted(named) == sorted(p.stem for p in (toy.ROOT / "docs/results").glob("*.csv"))


def test_paired_tests_are_those_of_the_published_runs():
    with open(RUNS / "paired_tests.csv", encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert rows
    for row in rows:
        scores = []
        for name in (row["run"], row["compared with"]):
            path = RUNS / row["data set"] / f"{name}-{row['seed']}" / "summary.json"
            part = json.loads(path.read_text())["long" if row["test set"] == "long" else "bleu"]
            scores.append(part["bleu" if row["metric"] == "BLEU" else "chrf"])
        assert float(row["difference"]) == pytest.approx(scores[0] - scores[1], abs=0.0051)
    for dataset in {row["data set"] for row in rows}:
        tests = [row for row in rows if row["data set"] == dataset]
        corrected = [float(row["p by Holm's method"]) for row in tests]
        assert corrected == pytest.approx(holm([float(row["p"]) for row in tests]), abs=0.01)


def test_a_changed_figure_is_noticed_and_written(tmp_path):
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "README.md").write_text(
        "before\n<!-- table speed -->\nold\n<!-- end of table -->\nafter\n"
    )
    (tmp_path / "docs/results/speed.csv").write_text('what,"a, b"\none,0.40\n')
    assert run("--check", "--root", tmp_path).returncode == 1
    assert "old" in (tmp_path / "README.md").read_text()
    assert run("--root", tmp_path).returncode == 0
    text = (tmp_path / "README.md").read_text()
    assert "0.40" in text and "a, b" in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert run("--check", "--root", tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "docs")
    assert run("--root", tmp_path).returncode == 2


def test_a_table_of_runs_has_means_over_their_seeds(tmp_path):
    for name, bleu in (("softmax-1", 30.0), ("softmax-2", 32.0), ("entmax15-1", 33.0)):
        folder = tmp_path / "docs/results/runs/multi30k" / name
        folder.mkdir(parents=True)
        summary = {"variant": name[:-2], "bleu": {"bleu": bleu}, "test": {"nonzeros": bleu}}
        (folder / "summary.json").write_text(json.dumps(summary))
    runs = "<!-- runs multi30k/entmax15-*,multi30k/softmax-* variant,bleu,nonzeros -->"
    (tmp_path / "README.md").write_text(f"{runs}\n<!-- end of runs -->\n")
    assert run("--check", "--root", tmp_path).returncode == 1
    assert run("--root", tmp_path).returncode == 0
    rows = [line.split("|") for line in (tmp_path / "README.md").read_text().splitlines()[2:6]]
    assert [[cell.strip() for cell in row[1:-1]] for row in rows if "-" not in row[1][:3]] == [
        ["variant", "BLEU", "nonzeros"],
        ["entmax15", "33.00", "33.0"],
        ["softmax", "31.00 ± 1.41", "31.0"],
    ]
    for change in ("multi30k/no-*", "no_such_column"):
        old = "multi30k/softmax-*" if "/" in change else "nonzeros"
        (tmp_path / "README.md").write_text(f"{runs.replace(old, change)}\n<!-- end of runs -->\n")
        result = run("--root", tmp_path)
        assert result.returncode == 2 and change in result.stderr


def test_a_table_of_items_has_each_of_a_paper_and_a_comparison_once(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("<!-- items sparse_seq2seq -->\n<!-- end of items -->\n")
    assert run("--root", tmp_path).returncode == 0
    rows = [line.split("|")[1:-1] for line in page.read_text().splitlines() if "|" in line][2:]
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    keys = [key.split() for key in catalogue.entries("tables")]
    assert names == [name for paper, name in keys if paper == "sparse_seq2seq"]
    texts = [row[3].strip() for row in rows]
    assert len(set(texts)) == len(texts) and "as `speeding_up_entmax fig1`" in texts
    page.write_text("<!-- items nobody -->\n<!-- end of items -->\n")
    result = run("--root", tmp_path)
    assert result.returncode == 2 and "nobody" in result.stderr


@pytest.mark.parametrize("rest", ["", "<!-- table speed -->\n<!-- end of table -->\n"])
def test_a_table_without_an_end_takes_no_prose_with_it(rest, tmp_path):
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "docs/results/speed.csv").write_text("what,time\none,0.40\n")
    page = f"<!-- table speed -->\nold\n\nprose\n{rest}"
    (tmp_path / "README.md").write_text(page)
    result = run("--root", tmp_path)
    assert result.returncode == 2 and "speed" in result.stderr
    assert (tmp_path / "README.md").read_text() == page


def test_a_row_that_does_not_fit_the_headings_is_refused(tmp_path):
    (tmp_path / "docs/results").mkdir(parents=True)
    page = "<!-- table speed -->\nold\n<!-- end of table -->\n"
    (tmp_path / "README.md").write_text(page)
    (tmp_path / "docs/results/speed.csv").write_text("what,of 7,944\none,0.40\n")
    result = run("--root", tmp_path)
    assert result.returncode == 2 and "speed.csv" in result.stderr
    assert (tmp_path / "README.md").read_text() == page
