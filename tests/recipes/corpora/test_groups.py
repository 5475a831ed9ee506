"""Splits by groups of translations: nothing of the test set is in the training text."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.groups import find_groups, split_groups

PAIRS = st.lists(
    st.tuples(st.sampled_from("aAbcdefgh"), st.sampled_from("uvwxyzU!?")), min_size=1, max_size=30
)


def same(first: str, second: str) -> bool:
    return first.casefold() == second.casefold()


@given(PAIRS)
def test_groups_are_the_components_of_shared_sentences(pairs: list[tuple[str, str]]) -> None:
    """Against the closure of "shares a sentence", by repetition."""
    component = list(range(len(pairs)))
    changed = True
    while changed:
        changed = False
        for i, one in enumerate(pairs):
            for j, other in enumerate(pairs):
                if same(one[0], other[0]) or same(one[1], other[1]):
                    least = min(component[i], component[j])
                    changed |= component[i] != least or component[j] != least
                    component[i] = component[j] = least
    expected: dict[int, list[tuple[str, str]]] = {}
    for number, pair in zip(component, pairs, strict=True):
        expected.setdefault(number, []).append(pair)
    assert find_groups(pairs) == list(expected.values())


def write(folder: Path, pairs: list[tuple[str, str]]) -> None:
    folder.mkdir()
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(text, encoding="utf-8")


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_no_sentence_is_in_two_splits_and_no_pair_is_lost(tmp_path: Path) -> None:
    pairs = [(f"de {n // 2}", f"en {n // 3}") for n in range(60)] + [("Hallo!", "Hi.")]
    write(tmp_path / "in", pairs)
    split_groups(tmp_path / "in", tmp_path / "out", ["de", "en"], valid=2, test=3, references=3)
    for language in ("de", "en"):
        texts = [
            set(read(tmp_path / "out" / f"{split}.{language}")) for split in ("train", "valid")
        ]
        tests = {
            line for path in (tmp_path / "out").glob(f"test.{language}*") for line in read(path)
        }
        assert not texts[0] & texts[1] and not tests & (texts[0] | texts[1])
        assert texts[0] | texts[1] | tests == {pair[language == "en"] for pair in pairs}
    sources = read(tmp_path / "out" / "test.de")
    assert len(set(sources)) == len(sources)
    references = [read(tmp_path / "out" / f"test.en{end}") for end in ("", ".2", ".3")]
    translations = {source: {en for de, en in pairs if de == source} for source in sources}
    for source, *own in zip(sources, *references, strict=True):
        assert own[0] in translations[source] and translations[source] <= set(own)


def test_a_draw_is_the_same_every_time(tmp_path: Path) -> None:
    write(tmp_path / "in", [(f"de {n}", f"en {n}") for n in range(50)])
    for name in ("one", "two"):
        split_groups(tmp_path / "in", tmp_path / name, ["de", "en"], valid=5, test=5)
    assert read(tmp_path / "one" / "test.de") == read(tmp_path / "two" / "test.de")


def test_empty_sentences_join_no_pairs() -> None:
    pairs = [("a", ""), ("b", " "), ("", "c"), (" ", "d"), ("a", "e")]
    assert [len(group) for group in find_groups(pairs)] == [2, 1, 1, 1]


def test_marks_distinguish_words_however_they_are_encoded() -> None:
    he, she = "वह जाता है", "वह जाती है"
    assert len(find_groups([(he, "He goes."), (she, "She goes.")])) == 2
    composed, decomposed = "Bär", "Ba\u0308r"
    assert len(find_groups([(composed, "bear"), (decomposed, "bruin"), ("Bar", "bar")])) == 2


def test_the_input_is_never_replaced(tmp_path: Path) -> None:
    write(tmp_path / "in", [(f"de {n}", f"en {n}") for n in range(50)])
    before = read(tmp_path / "in" / "train.de")
    for output in (tmp_path / "in", tmp_path / "in" / ".." / "in"):
        with pytest.raises(RecipeError, match="another folder"):
            split_groups(tmp_path / "in", output, ["de", "en"], valid=5, test=5)
    assert read(tmp_path / "in" / "train.de") == before


def test_one_language_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", [(f"{n}", f"{n}") for n in range(50)])
    with pytest.raises(RecipeError, match="two texts of one name"):
        split_groups(tmp_path / "in", tmp_path / "out", ["en", "en"], valid=5, test=5)


def test_too_few_groups_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", [("a", str(n)) for n in range(9)])
    with pytest.raises(RecipeError):
        split_groups(tmp_path / "in", tmp_path / "out", ["de", "en"], valid=1, test=1)
