"""Tables of the output's statistics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.tables.output import (
    calibration_table,
    certified_table,
    class_table,
    empty_table,
    training_table,
)

MODEL = {"name": "a", "output": "entmax15", "subset": "test"}


def test_the_empty_translation():
    row = {**MODEL, "scores": "p", "sentences": 3, "empty_is_best": 1 / 3}
    row |= {"empty_is_impossible": 2 / 3, "log_p_empty": -1.25, "log_p_found": -4 / 3}
    header, (cells,) = empty_table([row])
    assert len(cells) == len(header)
    assert cells == ["a", "entmax15", "test", "3", "p", "33.33", "66.67", "-1.25", "-1.33"]
    row.update(log_p_empty=None)
    assert empty_table([row])[1][0][-2] == "-"


def test_the_share_of_single_hypotheses_is_that_of_the_widest_beam():
    shares = {beam: {"exact": n / 8, "single": n / 16} for n, beam in enumerate(("10", "2"), 1)}
    header, (cells,) = certified_table([{**MODEL, "beams": shares}])
    assert header[3:] == ["exact, beam 10 (%)", "exact, beam 2 (%)", "one hypothesis only (%)"]
    assert cells[3:] == ["12.50", "25.00", "6.25"]


def test_a_temperature_is_not_rounded_down():
    row = {**MODEL, "wanted": 0.9, "sets": "temperature", "covered": 0.9, "size": 2.5}
    for temperature in (1.0436, 5.0036, 11.0001):
        part = {"least": 1, "most": 9, "tokens": 3, "parameter": temperature, "covered": 0.9}
        row |= {"parameter": temperature, "by_class": [part]}
        for table in (calibration_table, class_table):
            assert f"{temperature}" in table([row])[1][0]


@given(st.floats(1e-9, 1, exclude_max=True), st.sampled_from(["top-p", "min-p", "epsilon"]))
def test_a_limit_that_is_printed_covers_no_less(parameter, sets):
    row = {**MODEL, "wanted": 0.9, "sets": sets, "covered": 0.9, "size": 2.5}
    printed = float(calibration_table([{**row, "parameter": parameter}])[1][0][5])
    assert printed == pytest.approx(parameter, rel=1e-4)
    assert printed >= parameter if sets == "top-p" else printed <= parameter


def test_a_curve_is_shown_by_its_ends():
    curve = {"name": "a", "updates": [1, 2, 9], "tau": [None, 0.5, 0.25], "logit_norm": [None] * 3}
    assert training_table([curve])[1] == [["a", "1 to 9", "0.500 to 0.250", "-"]]
