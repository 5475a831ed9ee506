"""Words, links and their text formats, against the definitions."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import references
from fairseq_sparse.measure.alignment.word_alignment import (
    Words,
    from_pharaoh,
    from_talp,
    merge_subwords,
    to_pharaoh,
    word_links,
    words_of,
)

SIZES = st.integers(0, 6)
# Many zeros and ties; ReLA's variants with GELU and leaky ReLU can be negative.
WEIGHTS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 3.0, -0.25])


def split(draw, pieces: int) -> tuple[list[int], Words]:
    """Draw a split of a sentence; return the word number of each piece, and the words."""
    begins = [True, *(draw(st.booleans()) for _ in range(pieces - 1))][:pieces]
    numbers = [sum(begins[: position + 1]) - 1 for position in range(pieces)]
    starts = [position for position in range(pieces) if begins[position]]
    return numbers, Words([f"word{start}" for start in starts], starts)


@st.composite
def pairs(draw):
    """Weights ``[layers, heads, target + 1, source + 1]`` and the words of both sides."""
    source, target = draw(SIZES), draw(SIZES)
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), target + 1, source + 1)
    size = int(np.prod(shape))
    values = draw(st.lists(WEIGHTS, min_size=size, max_size=size))
    return np.array(values, np.float32).reshape(shape), split(draw, source), split(draw, target)


@given(pairs(), st.booleans())
def test_merging_is_sum_and_mean(pair, shifted: bool) -> None:
    weights, (source, source_words), (target, target_words) = pair
    merged = merge_subwords(weights, source_words, target_words, shifted)
    assert merged.dtype == np.float32
    assert merged.shape[2:] == (len(target_words.text), len(source_words.text))
    for head in np.ndindex(weights.shape[:2]):
        rows = weights[head].tolist()
        # Shifted: the first row's input is no word. Normal: the last row predicts none.
        rows = rows[1:] if shifted else rows[:-1]
        expected = references.merge_subwords([row[:-1] for row in rows], source, target)
        assert merged[head].reshape(-1).tolist() == pytest.approx(sum(expected, []))


@given(pairs())
def test_links_and_lines(pair) -> None:
    weights, (_, source), (_, target) = pair
    found = iter(word_links(weights, source, target))
    for shifted in (False, True):
        for heads in merge_subwords(weights, source, target, shifted):
            for matrix in [*heads, heads.mean(0)]:
                links = next(found)
                expected = references.word_links(matrix.tolist())
                assert links == sorted(expected) and from_pharaoh(to_pharaoh(links)) == expected
    assert next(found, None) is None


def test_rows_without_weight_have_no_link() -> None:
    """A weight on EOS, or one that is not above 0, makes no link."""
    words = Words(["a", "b"], [0, 1])
    weights = np.array([[0, 0, 9], [-1, -2, 0], [0, 3, 0]], np.float32)[None, None]
    head, mean, shifted_head, shifted_mean = word_links(weights, words, words)
    assert head == mean == [] and shifted_head == shifted_mean == [(1, 1)]


def test_nan_is_refused() -> None:
    weights = np.full((2, 2), np.nan, np.float32)
    with pytest.raises(ValueError, match="attention weights are NaN"):
        merge_subwords(weights, Words(["a"], [0]), Words(["a"], [0]))


@pytest.mark.parametrize(
    "subwords, pieces, words, starts",
    [
        ("subword_nmt", "un@@ be@@ kannt ist es", "unbekannt ist es", [0, 3, 4]),
        ("subword_nmt", "am En@@", "am En", [0, 1]),
        ("subword_nmt", "a @@ b", "a b", [0, 1]),
        ("subword_nmt", "@-@ <unk> @", "@-@ <unk> @", [0, 1, 2]),
        ("sentencepiece", "▁un bekannt ▁ist s", "unbekannt ists", [0, 2]),
        ("sentencepiece", "ohne ▁Strich", "ohne Strich", [0, 1]),
        ("sentencepiece", "▁a ▁ ▁b ▁ <unk> ▁", "a b <unk>", [0, 1, 3]),
        ("sentencepiece", "▁ ▁", "", []),
        ("none", "a@@ ▁b c", "a@@ ▁b c", [0, 1, 2]),
        ("none", "", "", []),
        ("subword_nmt", "", "", []),
        ("sentencepiece", "", "", []),
    ],
)
def test_words(subwords: str, pieces: str, words: str, starts: list[int]) -> None:
    assert words_of(pieces.split(), subwords) == Words(words.split(), starts)


@given(st.lists(st.sampled_from(["a", "b@@", "@@", "▁c", "▁", "d"]), max_size=8))
@example(["▁", "@@"])
def test_words_are_those_of_fairseq(pieces: list[str]) -> None:
    from fairseq.data.data_utils import post_process

    for subwords in ("subword_nmt", "sentencepiece", "none"):
        text = " ".join(pieces)
        expected = text if subwords == "none" else post_process(text, subwords)
        words = words_of(pieces, subwords)
        assert words.text == expected.split()
        assert words.starts == sorted(set(words.starts)) and words.starts[:1] in ([], [0])


def test_unknown_subwords() -> None:
    with pytest.raises(ValueError, match="subwords bpe: choose from subword_nmt, sentencepiece"):
        words_of(["a"], "bpe")


def test_reading_lines() -> None:
    assert from_pharaoh(" 0-0\t12-3 0-0 ") == {(0, 0), (12, 3)}
    assert from_pharaoh("1-1", base=1) == {(0, 0)}
    assert from_talp("1-1 2p3 2?4") == ({(0, 0)}, {(0, 0), (1, 2), (1, 3)})
    assert from_talp("") == (set(), set()) and from_pharaoh("") == set()
    for line in ("0-0 1p1", "0-0 1-", "-1-0", "1-1 ²-1"):
        with pytest.raises(ValueError, match="link"):
            from_pharaoh(line)
    with pytest.raises(ValueError, match="'0-1': the first word should have number 1"):
        from_talp("0-1")
