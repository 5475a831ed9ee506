"""Sheets for annotators: the sample, what a sheet reveals, and reading completed sheets."""

import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.sheets.annotation_sheets import (
    ANNOTATORS,
    COLUMNS,
    REFERENCE,
    SEPARATORS,
    Judgement,
    SheetError,
    draw_sheets,
    from_key,
    read_sheet,
    sheet,
    to_key,
)

ODD = ["=1+1", "+49", "-3", "@x", 'a "b", c', "[x]", "", " ", "a\nb", "a\rb", "a\r\nb", "1/2"]
ODD += ["é—漢"]
SENTENCES = 40
THREE = {"min_size": 3, "max_size": 3}


def texts(name, count=SENTENCES):
    return [f"{name} {number} {ODD[number % len(ODD)]}" for number in range(count)]


def draw(systems=("one", "two", "three"), sentences=20, shared=8, seed=1, count=SENTENCES):
    """Draw sheets without equal translations: each begins with the name of its system."""
    candidates = {
        name: [f"{name}{text}" for text in texts("", count)] for name in (*systems, REFERENCE)
    }
    return draw_sheets(texts("source", count), candidates, sentences, shared, seed)


def filled(rows, scores, separator=","):
    """Return a sheet as an annotator sends it back."""
    table = list(csv.reader(io.StringIO(sheet(rows, separator), newline=""), delimiter=separator))
    for cells in table[1:]:
        cells[COLUMNS.index("score")] = str(scores.get(cells[0], ""))
    return write(table, separator)


def write(table, separator=","):
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(table)
    return text.getvalue()


def changed(rows, change):
    """Return a sheet in which every score is 3, after a function has changed its table."""
    text = filled(rows, {row.id: 3 for row in rows})
    table = list(csv.reader(io.StringIO(text, newline="")))
    return write(change(table) or table)


def test_sentences_are_those_that_were_asked_for():
    sheets = draw()
    drawn = [{row.sentence for row in sheets[annotator]} for annotator in ANNOTATORS]
    assert [len(sentences) for sentences in drawn] == [20, 20]
    assert len(drawn[0] & drawn[1]) == 8
    for rows in sheets.values():
        for row in rows:
            (system,) = row.systems
            assert row.source == texts("source")[row.sentence - 1]
            assert row.translation == system + texts("")[row.sentence - 1]
        assert Counter(row.sentence for row in rows) == dict.fromkeys(
            {row.sentence for row in rows}, 4
        )


def test_annotators_have_the_shared_sentences_at_other_places():
    orders = [list(dict.fromkeys(row.sentence for row in rows)) for rows in draw().values()]
    shared = set(orders[0]) & set(orders[1])
    places = [[order.index(sentence) for sentence in sorted(shared)] for order in orders]
    assert places[0] != places[1]
    assert all(set(order[: len(shared)]) != shared for order in orders)


def test_sheet_does_not_tell_whose_a_translation_is():
    sheets = draw(sentences=200, shared=0, count=400)
    ids = [row.id for rows in sheets.values() for row in rows]
    assert len(set(ids)) == len(ids)
    for rows in sheets.values():
        groups = [rows[start : start + 4] for start in range(0, len(rows), 4)]
        assert all(len({row.sentence for row in group}) == 1 for group in groups)
        assert [group[0].sentence for group in groups] != sorted(g[0].sentence for g in groups)
        # Each system is at each place about as often: 50 of 200, with a deviation of 6.
        places = Counter(
            (place, row.systems) for group in groups for place, row in enumerate(group)
        )
        assert len(places) == 16 and all(20 < count < 80 for count in places.values())
        orders = {tuple(row.systems for row in group) for group in groups}
        assert len(orders) == 24
        # Nor do the ids reveal the system.
        by_id = [row.systems for row in sorted(rows, key=lambda row: row.id)]
        assert by_id != sorted(by_id) and by_id != [row.systems for row in rows]


def test_names_of_systems_have_no_influence_on_the_sheet():
    first, second = (
        draw_sheets(
            texts("source"),
            {names[0]: texts("a"), names[1]: texts("b"), REFERENCE: texts("")},
            10,
            5,
            3,
        )
        for names in (("softmax", "entmax"), ("b", "a"))
    )
    for annotator in ANNOTATORS:
        assert sheet(first[annotator]) == sheet(second[annotator])


def test_same_translation_is_judged_once_and_counts_for_each():
    words = texts("")
    other = [text + "!" for text in words]
    candidates = {"a": words, "b": words, "c": other, REFERENCE: words}
    sheets = draw_sheets(texts("source"), candidates, 6, 6, 1)
    for rows in sheets.values():
        assert len(rows) == 12
        assert {row.systems for row in rows} == {("a", "b", REFERENCE), ("c",)}


def test_seed_decides():
    assert draw(seed=5) == draw(seed=5)
    assert draw(seed=5) != draw(seed=6)


def test_too_few_sentences_or_translations() -> None:
    for sentences, shared in ((20, 21), (30, 10)):
        with pytest.raises(SheetError):
            draw(sentences=sentences, shared=shared)
    with pytest.raises(SheetError, match="a has 2 lines"):
        draw_sheets(["x"] * 3, {"a": ["y"] * 2}, 1, 1, 1)


def test_key_restores_everything():
    sheets = draw()
    assert from_key({"seed": 1, **to_key(sheets)}, Path("key")) == sheets
    for wrong in ({}, {"annotator_1": []}, {name: [{"id": "x"}] for name in ANNOTATORS}):
        with pytest.raises(SheetError, match="key is not"):
            from_key(wrong, Path("key"))


# everything that UTF-8 can encode, except the null character
@given(st.lists(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"])), **THREE))
@pytest.mark.parametrize("separator", SEPARATORS.values())
def test_any_text_goes_through_a_sheet(separator, words):
    source, translation, other = words
    sheets = draw_sheets([source], {"a": [translation], REFERENCE: [other]}, 1, 1, 1)
    for annotator, rows in sheets.items():
        text = sheet(rows, separator)
        cells = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))[1:]
        for row, (row_id, *texts, score, comment) in zip(rows, cells, strict=True):
            assert [text[1:-1] for text in texts] == [row.source, row.translation]
            # no formula, date or number for a spreadsheet program
            assert all(text.startswith("[") and text.endswith("]") for text in texts)
            assert row_id.isalpha() and score == comment == ""
        given = {row.id: Judgement(1 + number) for number, row in enumerate(rows)}
        scores = {name: score.grade for name, score in given.items()}
        assert read_sheet(filled(rows, scores, separator), sheets) == (annotator, given)


def test_sheet_may_come_back_in_another_form():
    sheets = draw()
    rows = sheets["annotator_2"]
    texts = {row.id: ("4", "3-", " 2 + ", "1−")[number % 4] for number, row in enumerate(rows)}
    table = list(csv.reader(io.StringIO(filled(rows, texts), newline="")))
    # sorted, with other line ends, and with an additional empty row and column
    table = [["\n".join(cell.splitlines()) for cell in cells] + [""] for cells in table]
    table = [table[0], *sorted(table[1:]), [""] * 3]
    given = [Judgement(4), Judgement(3, -1), Judgement(2, 1), Judgement(1, -1)]
    scores = {row.id: given[number % 4] for number, row in enumerate(rows)}
    assert read_sheet(write(table, ";"), sheets) == ("annotator_2", scores)


def test_scores_may_be_empty_but_not_all_of_them():
    sheets = draw()
    rows = sheets["annotator_1"]
    annotator, scores = read_sheet(filled(rows, {rows[0].id: 4}), sheets)
    assert scores == {rows[0].id: Judgement(4), **{row.id: None for row in rows[1:]}}
    with pytest.raises(SheetError, match="no row has a score"):
        read_sheet(filled(rows, {}), sheets)


def other_cell(row, column, value):
    def change(table):
        table[row][COLUMNS.index(column)] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table[:4] + table[5:], "1 rows are missing"),
        (lambda table: table[:4] + table[3:], "row 5 .*twice"),
        (lambda table: table[:1], "no rows"),
        (lambda table: table[1:], "row 1 .*columns id, source"),
        (other_cell(3, "id", "xxxxxx"), "row 4 .*'xxxxxx'"),
        (other_cell(3, "translation", "[other]"), "row 4 .*translation was changed.*other"),
        (other_cell(3, "source", "?"), "row 4 .*source was changed"),
        *((other_cell(3, "score", x), "row 4 ") for x in ("5", "+4", "4--", "-", "4.5", "good")),
    ],
)
def test_sheet_that_is_refused(change, message):
    sheets = draw()
    with pytest.raises(SheetError, match=message):
        read_sheet(changed(sheets["annotator_1"], change), sheets)


def test_rows_of_the_other_annotator_are_foreign():
    sheets = draw()
    rows = [*sheets["annotator_1"], sheets["annotator_2"][0]]
    with pytest.raises(SheetError, match=f"row {len(rows) + 1} .*belongs to annotator_2"):
        read_sheet(sheet(rows), sheets)
