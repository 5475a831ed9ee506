"""The parts of a run's summary are what the files in its folder say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.tables.results import (
    read_alignment,
    read_attention,
    read_generation,
    read_score,
    read_validation_set,
)


def test_decoding_has_a_score_a_speed_and_a_share_of_the_judged_that_is_optimal(
    tmp_path: Path,
) -> None:
    with pytest.raises(AnalysisError, match="bleu.json"):
        read_score(tmp_path)
    (tmp_path / "accuracy.json").write_text('{"accuracy": 87.5}')
    (tmp_path / "generate-test.txt").write_text(
        "certified: 2 of 8 sentences (25.0 %) exact (the list has every translation that the model "
        "and the options allow), 4 of 8 sentences (50.0 %) optimal (nothing has a better score "
        "than the first)\n"
        "Translated 9 sentences (90) in 3s (3.00 sentences/s)"
    )
    assert read_score(tmp_path) == {"inflection": {"accuracy": 87.5}}
    expected = {"sentences_per_second": 3, "optimal": 0.5}
    assert read_generation(tmp_path) == {"generation": expected}


def test_shares_of_what_the_search_proved_are_of_all_sentences(tmp_path: Path) -> None:
    report = [(True, True, 1), (True, True, 3), (False, True, 1), (None, None, 1), (True, False, 2)]
    names = ("exact", "optimal", "hypotheses")
    lines = [json.dumps(dict(zip(names, each, strict=True))) for each in report]
    (tmp_path / "search-valid.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "validate-valid.txt").write_text('x | INFO | valid | {"valid_loss": "2.5"}\n')
    (tmp_path / "attention-valid.json").write_text('{"attention": {"cross": {"null": 0.5}}}')
    expected = {"sentences": 5, "exact": 3 / 5, "optimal": 3 / 5, "single": 1 / 5}
    found = {"loss": 2.5, "attention": {"cross": {"null": 0.5}}, "search": expected}
    assert read_validation_set(tmp_path) == {"valid": found}
    (tmp_path / "search-valid.jsonl").write_text(lines[0] + "\n" + lines[1][:9])
    with pytest.raises(AnalysisError, match="search-valid.jsonl is cut off"):
        read_validation_set(tmp_path)


def test_a_model_without_attention_lacks_no_measurement_of_it(tmp_path: Path) -> None:
    (tmp_path / "attention.json").write_text('{"attention": {}}')
    assert read_attention(tmp_path) == {"attention": {}}
    (tmp_path / "attention.json").write_text("{}")
    with pytest.raises(AnalysisError, match="attention.json"):
        read_attention(tmp_path)


@pytest.mark.parametrize("count", [0, 2])
def test_alignments_of_one_model_are_needed(tmp_path: Path, count: int) -> None:
    (tmp_path / "alignment.json").write_text(json.dumps({"folders": [{}] * count}))
    with pytest.raises(ValueError, match=f"alignment.json has {count} folders"):
        read_alignment(tmp_path)
