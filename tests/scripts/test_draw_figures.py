"""The pictures of docs/ show the published numbers."""

import csv
import json
from pathlib import Path

import pytest

import draw_figures

RESULTS = Path(draw_figures.__file__).resolve().parents[1] / "docs" / "results"


def test_bars_are_the_published_f1() -> None:
    rows = draw_figures.read_rows(RESULTS / "rare_words.csv")
    (axes,) = draw_figures.draw_word_frequency(rows).axes
    labels = [bars.get_label() for bars in axes.containers]
    assert labels == ["softmax", "1.5-entmax", "1.5-ReLU"]
    for bars in axes.containers:
        (row,) = [x for x in rows if (x["corpus"], x["model"]) == ("Multi30k", bars.get_label())]
        published = [float(row[column]) for column in draw_figures.FREQUENCIES]
        assert [bar.get_height() for bar in bars] == published


def test_points_are_the_kinds_of_attention_under_a_softmax_output(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [
        ("`softmax`", "31.7", "0 / 0 / 0"),
        ("`rela_g_cross`", "28.5", "0 / 0 / 75"),
        ("`rela_g_gelu`", "31.2", "12 / 14 / 16 (rounded to 0)"),
        ("`rela_g_alpha_relu` (1.5-ReLU output)", "27.0", "71 / 40 / 75"),
    ]
    with open(path, "w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("attention", "BLEU", "zeros (%)"), *rows])
    (axes,) = draw_figures.draw_attention_zeros(draw_figures.read_rows(path)).axes
    points = [tuple(line.get_xydata()[0]) for line in axes.lines]
    assert points == [(0, 31.7), (25, 28.5), (14, 31.2)]
    assert [text.get_text() for text in axes.texts] == ["softmax", "rela_g_cross", "rela_g_gelu"]


def test_the_curves_are_those_of_all_seeds() -> None:
    figure = draw_figures.PICTURES["multi30k_curves"](RESULTS)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["softmax", "1.5-entmax", "1.5-ReLU"]
    assert [len(axes.lines) for axes in figure.axes] == [9, 9]


def test_a_point_is_the_bleu_and_the_hours_of_a_seed() -> None:
    (axes,) = draw_figures.PICTURES["multi30k_bleu"](RESULTS).axes
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert {name: len(found) for name, found in points.items()} == {
        "softmax": 3,
        "1.5-entmax": 3,
        "1.5-ReLU": 3,
    }
    path = RESULTS / "runs" / "multi30k_de_en" / "softmax-1" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    hours = summary["training"]["seconds"] / 3600
    assert points["softmax"][0] == pytest.approx([hours, summary["bleu"]["bleu"]])
