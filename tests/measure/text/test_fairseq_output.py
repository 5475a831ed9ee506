"""Reading of what fairseq-generate printed."""

from pathlib import Path

import pytest

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.text.fairseq_output import best_translations

TEXTS = [f"text {number}" for number in range(12)]
MESSAGES = (
    "INFO:fairseq.logging.progress_bar::     21 / 250 wps=96",
    "2026-01-01 00:00:00 | WARNING | fairseq_sparse.generation.search_report | 2 of 12 sentences",
)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_line_that_the_log_has_cut_is_never_a_translation(message: str) -> None:
    printed = [f"D-{number}\t-0.5\t{text}" for number, text in enumerate(TEXTS)]
    line = printed.pop(5)
    for place in range(len(line) + 1):
        cut = [line[:place] + message, line[place:]]
        if place == 0:
            assert best_translations(Path("out"), [*printed, *cut]) == TEXTS
        else:
            with pytest.raises(AnalysisError, match="out"):
                best_translations(Path("out"), [*printed, *cut])


def test_output_without_text_is_not_taken_for_text() -> None:
    with pytest.raises(AnalysisError, match="out"):
        best_translations(Path("out"), ["H-0\t-0.5\ta do@@ g"])
