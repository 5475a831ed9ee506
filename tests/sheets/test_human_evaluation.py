"""Figures computed from annotators' scores."""

from itertools import product
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.sheets.annotation_sheets import (
    ANNOTATORS,
    REFERENCE,
    SCALE,
    Judgement,
    Row,
)
from fairseq_sparse.sheets.human_evaluation import cohen_kappa, notes, scores_table, summarize

SCORES = sorted(SCALE)
SYSTEMS = ("one", "two", "three", REFERENCE)


def make_sheets(*sentences, systems=SYSTEMS):
    """Return the rows of each annotator: every sentence, with a translation by each system."""
    return {
        annotator: [
            Row(f"{annotator}-{number}-{system}", number, (system,), "source", f"by {system}")
            for number in numbers
            for system in systems
        ]
        for annotator, numbers in zip(ANNOTATORS, sentences, strict=True)
    }


def figures_of(grades, marked):
    """Return the figures of a system, for scores without and with their + and - marks."""
    figures = {"judgements": len(grades)}
    for name, values in (("", grades), ("marked_", marked)):
        mean, deviation = (fmean(values) if values else None), None
        if len(values) > 1:
            deviation = pytest.approx(stdev(values))
        figures |= {f"{name}mean": mean and pytest.approx(mean), f"{name}deviation": deviation}
    return figures


def naive_kappa(first, second, quadratic):
    """Compute Cohen's kappa by loops; chance pairs every score of one annotator with every score
    of the other."""

    def weight(i, j):
        return (i - j) ** 2 if quadratic else int(i != j)

    observed = sum(weight(i, j) for i, j in zip(first, second, strict=True)) / len(first)
    expected = sum(weight(i, j) for i, j in product(first, second)) / len(first) ** 2
    return 1 - observed / expected if expected else None


@given(st.lists(st.tuples(st.sampled_from(SCORES), st.sampled_from(SCORES)), min_size=1))
@pytest.mark.parametrize("quadratic", [False, True])
def test_kappa(quadratic, pairs):
    first, second = zip(*pairs, strict=True)
    assert cohen_kappa(first, second, SCORES, quadratic) == pytest.approx(
        naive_kappa(first, second, quadratic)
    )


def test_kappa_of_known_cases():
    # Cohen's own form: (observed - expected) / (1 - expected) = (0.7 - 0.5) / (1 - 0.5)
    first = [1] * 25 + [2] * 25
    second = [1] * 20 + [2] * 5 + [1] * 10 + [2] * 15
    assert cohen_kappa(first, second, SCORES) == pytest.approx(0.4)
    # Two scores have only one distance, so weights make no difference.
    assert cohen_kappa(first, second, SCORES, quadratic=True) == pytest.approx(0.4)
    assert cohen_kappa(SCORES, SCORES, SCORES) == 1
    assert cohen_kappa([1, 2], [2, 1], SCORES) == -1
    assert cohen_kappa([1, 1], [3, 3], SCORES) == 0
    assert cohen_kappa([4, 4], [4, 4], SCORES) is None
    assert cohen_kappa([], [], SCORES) is None


def test_figures_of_each_system():
    sheets = make_sheets((1, 2, 3), (4, 2, 5))
    given_scores = {"one": 1, "two": 2, "three": 4, REFERENCE: 3}
    scores = {}
    for annotator, more in zip(ANNOTATORS, (0, 1), strict=True):
        scores[annotator] = {
            row.id: Judgement(min(given_scores[row.systems[0]] + more, 4), -more)
            for row in sheets[annotator]
        }
    summary = summarize(sheets, scores)
    assert list(summary["systems"]) == ["three", "two", "one", REFERENCE]
    one = summary["systems"]["one"]
    assert one["annotator_1"] == figures_of([1, 1, 1], [1, 1, 1])
    assert one["annotator_2"] == figures_of([2, 2, 2], [5 / 3, 5 / 3, 5 / 3])
    assert one["both"] == figures_of([1, 1, 1, 2, 2, 2], [1, 1, 1, 5 / 3, 5 / 3, 5 / 3])
    assert summary["missing"] == {"annotator_1": 0, "annotator_2": 0}
    # One shared sentence: its four translations got 1 2 4 3, and 2- 3- 4- 4-.
    agreement = summary["agreement"]
    assert (agreement["translations"], agreement["same"]) == (4, 0.25)
    assert agreement["kappa"] == pytest.approx(naive_kappa([1, 2, 4, 3], [2, 3, 4, 4], False))
    quadratic = naive_kappa([1, 2, 4, 3], [2, 3, 4, 4], True)
    assert agreement["marked_kappa"] == 0  # the annotators have no marked score in common
    assert agreement["quadratic_kappa"] == pytest.approx(quadratic)
    _, rows = scores_table(summary)
    assert next(row for row in rows if row[0] == "one") == [
        *("one", "1.00 ± 0.00 (1.00)", "2.00 ± 0.00 (1.67)", "1.50 ± 0.55 (1.33)", 6),
    ]
    text = notes(summary)[1]
    assert f"Cohen's κ {agreement['kappa']:.3f}, with quadratic weights {quadratic:.3f}, of" in text


def test_systems_are_ranked_by_the_mean_grade_of_both_annotators():
    judged = {"c": [(3, 1), (3, 1)], "b": [(3, -1), (3, -1)], "a": [(4, 0), (1, 0)]}
    sheets = make_sheets([1], [2], systems=(REFERENCE, "unjudged", *judged))
    scores = {
        annotator: {
            row.id: Judgement(*judged[row.systems[0]][number])
            for row in sheets[annotator]
            if row.systems[0] in judged
        }
        for number, annotator in enumerate(ANNOTATORS)
    }
    systems = summarize(sheets, scores)["systems"]
    assert list(systems) == ["b", "c", "a", "unjudged", REFERENCE]


def test_scores_that_are_missing():
    sheets = make_sheets((1, 2), (2, 3), systems=("one",))
    summary = summarize(
        sheets, {"annotator_1": {"annotator_1-2-one": Judgement(4), "annotator_1-1-one": None}}
    )
    assert summary["missing"] == {"annotator_1": 1, "annotator_2": 2}
    only, nothing = figures_of([4], [4]), figures_of([], [])
    figures = {"annotator_1": only, "annotator_2": nothing, "both": only}
    assert summary["systems"] == {"one": figures}
    assert summary["agreement"]["translations"] == 0
    text = notes(summary)
    assert "Nothing was judged by both." in text
    assert "Rows without a score: 1 of annotator_1, 2 of annotator_2." in text
    assert scores_table(summary)[1] == [["one", "4.00 (4.00)", "-", "4.00 (4.00)", 1]]


def test_translation_of_several_systems_counts_for_each_and_once_for_agreement():
    systems = ("a", "b", REFERENCE)
    sheets = {
        annotator: [
            Row(f"{annotator}-{number}-{len(whose)}", number, whose, "source", f"by {whose}")
            for number in range(6)
            for whose in (systems, ("c",))
        ]
        for annotator in ANNOTATORS
    }
    scores = {
        annotator: {row.id: Judgement(4 if "a" in row.systems else 2) for row in rows}
        for annotator, rows in sheets.items()
    }
    summary = summarize(sheets, scores)
    for system, mean in (("a", 4), ("b", 4), ("c", 2), (REFERENCE, 4)):
        both = summary["systems"][system]["both"]
        assert both == figures_of([mean] * 12, [mean] * 12)
    kappas = dict.fromkeys(("same", "kappa", "quadratic_kappa", "marked_kappa"), 1)
    assert summary["agreement"] == {"translations": 12, **kappas}


def test_marks_can_have_a_kappa_where_the_grades_have_none():
    sheets = make_sheets(range(4), range(4))
    for marked in (False, True):
        scores = {
            annotator: {
                row.id: Judgement(4, marked * ((number + shift) % 2))
                for number, row in enumerate(rows)
            }
            for shift, (annotator, rows) in enumerate(sheets.items())
        }
        summary = summarize(sheets, scores)
        agreement = summary["agreement"]
        assert agreement["same"] == 1 and agreement["kappa"] is None
        assert (agreement["marked_kappa"] is not None) == marked
        assert "100.0%. Cohen's κ is not defined" in notes(summary)[1]
