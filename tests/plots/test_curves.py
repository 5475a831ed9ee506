"""Curves of validation by updates and by hours, from lines of logs."""

from __future__ import annotations

import json

import pytest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.training_log import (
    read_records,
    training_seconds,
    validation_curve,
)
from fairseq_sparse.plots.curves import choose_metric, draw_training_curves


def line(tag: str, **numbers: object) -> str:
    prefix = "" if tag == "train_inner" else f"{tag}_"
    texts = {name if name == "epoch" else prefix + name: str(x) for name, x in numbers.items()}
    return f"2024-01-01 00:00:00 | INFO | {tag} | {json.dumps(texts)}"


def records_of(speed: float = 1.0, **metrics: float):
    """Return records of two epochs of 100 updates and 40 of a third, ``speed`` seconds each."""
    lines = []
    for updates in range(20, 251, 20):
        numbers = {"num_updates": updates, "train_wall": 20 * speed}
        lines.append(line("train_inner", epoch=1, **numbers))
        if updates % 50 == 0 or updates % 100 == 20:
            values = {name: value + updates for name, value in metrics.items()}
            lines.append(line("valid", epoch=1, num_updates=updates, loss=1, **values))
        if updates % 100 == 0:
            total = {"num_updates": updates, "train_wall": 100 * speed}
            lines.append(line("train", epoch=updates // 100, **total))
    return read_records("\n".join(lines))


def test_hours_are_those_of_the_epochs_and_then_of_the_lines_between() -> None:
    records = records_of(36.0, bleu=0.5)
    assert training_seconds(records) == [
        *((0, 0.0), (100, 3600.0), (200, 7200.0)),
        *((220, 7920.0), (240, 8640.0)),
    ]
    curve = validation_curve(records, "bleu")
    assert curve["updates"] == [20, 100, 120, 200, 220]
    assert curve["values"] == [20.5, 100.5, 120.5, 200.5, 220.5]
    assert curve["hours"] == pytest.approx([0.2, 1, 1.2, 2, 2.2])
    assert validation_curve(records, "accuracy") == {"updates": [], "hours": [], "values": []}


def test_an_epoch_that_was_trained_again_counts_once() -> None:
    first = line("train", epoch=1, num_updates=10, train_wall=50)
    again = line("train", epoch=1, num_updates=10, train_wall=70)
    assert training_seconds(read_records(f"{first}\n{again}")) == [(0, 0.0), (10, 70.0)]


def test_both_panels_have_a_line_for_each_seed_and_a_label_for_each_model() -> None:
    runs = {
        "softmax": [records_of(36, bleu=1, accuracy=2)],
        "entmax15": [records_of(72, bleu=3), records_of(72, bleu=4)],
        "entmax15_k100": [records_of(72, bleu=5)],
    }
    figure = draw_training_curves(runs)
    updates, hours = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(runs)
    assert updates.lines[0].get_xydata().tolist()[0] == [20, 21]
    assert hours.lines[1].get_xydata().tolist()[0] == [pytest.approx(0.4), 23]
    for axes in figure.axes:
        assert len(axes.lines) == 4
    early = draw_training_curves(runs, early=0.25)
    # A quarter has one validation, but at least three are shown.
    assert early.axes[0].get_xlim()[1] == pytest.approx(120 * 1.02)
    assert early.axes[0].lines[0].get_xydata().tolist() == [[20, 21], [100, 101], [120, 121]]
    early = draw_training_curves(runs, early=0.95)
    assert early.axes[0].get_xlim()[1] == pytest.approx(0.95 * 220 * 1.02)
    assert len(early.axes[0].lines[0].get_xydata()) == 4


def test_a_grid_of_many_models_is_told_apart() -> None:
    runs = {f"alpha_relu OUTPUT_TAU={tau}": [records_of(bleu=tau)] for tau in range(14)}
    lines = draw_training_curves(runs).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 14


def test_the_metric_is_one_that_all_models_have() -> None:
    both, one = records_of(bleu=1, accuracy=2), records_of(accuracy=2)
    assert choose_metric({"a": [both], "b": [both]}) == "bleu"
    assert choose_metric({"a": [both], "b": [one]}) == "accuracy"
    tokens = records_of(accuracy=2, sentence_accuracy=0)
    assert choose_metric({"a": [tokens]}) == "accuracy"  # sentence accuracy is 0 in translation
    chosen = records_of(accuracy=2, sentence_accuracy=0, best_sentence_accuracy=0)
    assert choose_metric({"a": [chosen]}) == "sentence_accuracy"  # it selected the checkpoint
    assert choose_metric({"a": [chosen], "b": [tokens]}) == "accuracy"
    for runs in ({"a": [both], "b": [records_of()]}, {}):
        with pytest.raises(AnalysisError, match="train with --eval-bleu"):
            choose_metric(runs)
