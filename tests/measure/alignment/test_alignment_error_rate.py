"""Precision, recall and AER against their definition, and reading gold alignments."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import references
from fairseq_sparse.measure.alignment.alignment_error_rate import (
    AlignmentScore,
    GoldLinks,
    alignment_score,
    read_alignment,
    read_gold,
    read_lines,
    summarize_rates,
)

LINKS = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=5)


def test_worked_example() -> None:
    """2 of 4 proposed links are sure and 3 possible; 2 of 3 sure links are found."""
    gold = [
        GoldLinks({(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 1)}),
        GoldLinks({(0, 1)}, {(0, 1)}),
        GoldLinks(set(), {(0, 0)}),
    ]
    proposed = [{(0, 0), (1, 1), (2, 1)}, set(), {(1, 0)}]
    score = alignment_score(gold, proposed)
    assert score == AlignmentScore(4, precision=3 / 4, recall=2 / 3, aer=1 - (2 + 3) / (4 + 3))


@given(st.lists(st.tuples(LINKS, LINKS, LINKS), min_size=1, max_size=4))
def test_against_the_definition(sentences) -> None:
    sure, possible, proposed = zip(*sentences, strict=True)
    assume(any(sure))
    gold = [GoldLinks(s, s | p) for s, p in zip(sure, possible, strict=True)]
    score = alignment_score(gold, proposed)
    expected = references.alignment_error_rate(sure, possible, proposed)
    assert (score.precision, score.recall, score.aer) == pytest.approx(expected)
    assert 0 <= score.aer <= 1


@pytest.mark.parametrize(
    "content",
    [
        b"1-1 2p3\n\n3?1 2-2\n",
        b"1-1 2p3\r\n\r\n3?1 2-2\r\n",
        b"\xef\xbb\xbf1-1 2p3 \n \n\t3?1  2-2",
        b"1-1 2p3\xa0\n\n3?1 2-2\n",  # no-break space in Latin-1
    ],
)
def test_gold_files(content: bytes, tmp_path: Path) -> None:
    expected = [
        GoldLinks({(0, 0)}, {(0, 0), (1, 2)}),
        GoldLinks(set(), set()),
        GoldLinks({(1, 1)}, {(1, 1), (2, 0)}),
    ]
    (tmp_path / "a.talp").write_bytes(content)
    assert read_gold(tmp_path / "a.talp") == expected
    (tmp_path / "a.txt").write_bytes(content)
    assert read_gold(tmp_path / "a.txt", base=1) == expected
    assert read_gold(tmp_path / "a.txt")[0].sure == {(1, 1)}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases = [
        (read_gold, "1-1\n1:1\n", "a.talp, line 2: '1:1' is not a link"),
        (read_gold, "1-1\n\n0-1\n", "a.talp, line 3: '0-1': the first word should have number 1"),
        (read_gold, "1p1\n\n", "a.talp: there is no sure link"),
        (read_gold, "", "a.talp: there is no sure link"),
        (read_alignment, "1-1\n1p1\n", "a.talp, line 2: possible links"),
    ]
    path = tmp_path / "a.talp"
    for read, content, message in cases:
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read(path)
    path.write_bytes("größer".encode("latin-1"))
    assert read_lines(path) == ["größer"]


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    """A line may contain characters at which str.splitlines would split it."""
    path = tmp_path / "a.txt"
    path.write_bytes("a\x0cb\x85c\u2028d\r\n\ne".encode())
    assert read_lines(path) == ["a\x0cb\x85c\u2028d", "", "e"]


def test_best_heads_and_means_of_layers() -> None:
    normal, shifted = [0.6, 0.4, 0.5, 0.2, 0.2, 0.3], [0.9] * 6
    rates = summarize_rates(normal + shifted, 2)
    assert rates["normal"] == {
        "layers": [
            {"layer": 1, "average": 0.5, "heads": [0.6, 0.4], "best_head": 2, "best": 0.4},
            {"layer": 2, "average": 0.3, "heads": [0.2, 0.2], "best_head": 1, "best": 0.2},
        ],
        "aoh": pytest.approx(0.3),
        "aol": pytest.approx(0.4),
    }
    assert rates["shifted"]["aoh"] == rates["shifted"]["aol"] == 0.9
