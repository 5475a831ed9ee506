"""The figures of a run that its files give; test_summarize_run.py runs the command."""

import json
from pathlib import Path

import pytest

from fairseq_sparse.analysis.runs.run_summary import (
    best_validation,
    summarize_alignment,
    summarize_generation,
    summarize_search,
)


@pytest.mark.parametrize(("flag", "epoch"), [("", 2), ("--best-checkpoint-metric accuracy\n", 3)])
def test_the_best_validation_is_the_last_of_the_best_by_the_metric_of_the_run(
    tmp_path: Path, flag: str, epoch: int
) -> None:
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "train").write_text(f"--max-epoch 4\n{flag}")
    accuracies, losses = [50.0, 60.0, 60.0, 55.0], [3.0, 1.0, 2.0, 4.0]
    valid = []
    for number, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), start=1):
        best = {"best_accuracy": max(accuracies[:number]), "best_loss": min(losses[:number])}
        valid.append({"epoch": number, "accuracy": accuracy, "loss": loss})
        valid[-1] |= best if number > 1 else {}  # as fairseq does
    assert best_validation(tmp_path, valid)["epoch"] == epoch


def test_shares_of_what_the_search_proved_are_of_all_sentences(tmp_path: Path) -> None:
    report = [(True, True, 1), (True, True, 3), (False, True, 1), (None, None, 1), (True, False, 2)]
    names = ("exact", "optimal", "hypotheses")
    lines = [json.dumps(dict(zip(names, line, strict=True))) for line in report]
    (tmp_path / "search.jsonl").write_text("\n".join(lines) + "\n")
    found = summarize_search(tmp_path / "search.jsonl")
    assert found == {"sentences": 5, "exact": 3 / 5, "optimal": 3 / 5, "single": 1 / 5}


def test_decoding_has_a_speed_and_a_share_of_the_judged_that_is_optimal(tmp_path: Path) -> None:
    (tmp_path / "generate-test.txt").write_text(
        "certified: 2 of 8 sentences (25.0 %) exact (x), 3 of 8 sentences (37.5 %) optimal (y)\n"
        "Translated 9 sentences (90) in 3s (3.00 sentences/s)"
    )
    assert summarize_generation(tmp_path) == {"sentences_per_second": 3, "optimal": 3 / 8}


def test_alignment_is_the_best_layer_of_any_kind_and_the_mean_of_the_normal_ones(tmp_path) -> None:
    folder = {
        kind: {"layers": [{"average": rate} for rate in rates], "aol": sum(rates) / 2}
        for kind, rates in (("normal", (0.5, 0.375)), ("shifted", (0.75, 0.25)))
    }
    (tmp_path / "alignment.json").write_text(json.dumps({"folders": [folder]}))
    assert summarize_alignment(tmp_path) == {"alignment": {"aer": 0.25, "aol": 0.4375}}
