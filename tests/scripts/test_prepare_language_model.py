"""scripts/prepare_language_model.py: texts that cannot be prepared."""

import pytest

from corpus_files import CorpusError
from prepare_language_model import HELD_OUT, split_text, write


def test_a_single_text_is_split_in_its_order():
    texts = [str(number) for number in range(3 * HELD_OUT)]
    parts = split_text(texts)
    assert sum(parts.values(), []) == texts
    assert [len(part) for part in parts.values()] == [3 * HELD_OUT - 6, 3, 3]


def test_a_text_too_short_to_be_split_is_refused():
    with pytest.raises(CorpusError, match="a text of 3 lines is too short to be split"):
        split_text(["a", "b", "c"])


def test_a_split_without_text_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="no text for valid"):
        write(tmp_path / "valid", ["", ""])
    assert not any(tmp_path.iterdir())
