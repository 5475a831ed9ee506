"""Sentences in two translations, with chrF by sacreBLEU itself."""

import pytest
import sacrebleu

from fairseq_sparse.sheets.side_by_side import as_text, compare

SOURCE = ["der Hund", "die Katze", "das Tor", "ein Haus"]
REFERENCE = ["the dog", "the cat", "the gate", "a house"]
FIRST = ["the dog", "a cow", "the gate", "a house of stone"]
SECOND = ["a frog", "the cat", "the gate", "a house !"]


def test_those_that_differ_are_sorted_by_how_much_better_the_second_is() -> None:
    pairs = compare(SOURCE, [REFERENCE], FIRST, SECOND)
    assert [pair.number for pair in pairs][0] == 2 and pairs[-1].number == 1
    assert {pair.number for pair in pairs} == {1, 2, 4}
    for pair in pairs:
        place = pair.number - 1
        expected = [
            sacrebleu.sentence_chrf(text[place], [REFERENCE[place]]).score
            for text in (FIRST, SECOND)
        ]
        assert pair.scores == pytest.approx(expected)
        assert pair.difference == pytest.approx(expected[1] - expected[0])
    differences = [pair.difference for pair in pairs]
    assert differences == sorted(differences, reverse=True)
    text = as_text(pairs[:1], ["softmax", "relu"])
    assert text.splitlines()[1:] == [
        "  source     die Katze",
        "  reference  the cat",
        "  softmax    a cow",
        "  relu       the cat",
    ]
    (pair,) = compare(None, [REFERENCE[:1], ["a frog"]], FIRST[:1], SECOND[:1])
    assert pair.scores == pytest.approx((100, 100))
    assert as_text([pair], ["a", "b"]).splitlines()[1] == "  reference  the dog"
