"""Typed text becomes the tokens that the recipes' preparation gives it, and text again."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.typed import TextEncoder, check_split, find_codes, typed_pairs

SENTENCES = [
    'Ein Mann, der "Hallo" sagt & lacht.',
    "Zwei weiß-rote Züge fahren - langsam - vorbei!",
    "Das sind 3,5 Kilometer [ungefähr]...",
]


def test_text_is_split_as_by_the_recipes(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sacremoses", "-l", "de", "-q", "tokenize", "-a"]
    text = "\n".join(SENTENCES) + "\n"
    tokens = subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout
    codes = tmp_path / "bpe.codes"
    with open(codes, "w", encoding="utf-8") as file:
        learn_bpe(io.StringIO(3 * tokens), file, 20)
    with open(codes, encoding="utf-8") as file:
        bpe = BPE(file)
    expected = [bpe.process_line(line) for line in tokens.splitlines()]
    dictionary = Dictionary()
    for line in expected:
        dictionary.encode_line(line)
    assert find_codes(tmp_path, "de") == codes
    encoder = TextEncoder("de", codes=codes)
    for sentence, pieces in zip(SENTENCES, expected, strict=True):
        assert encoder.encode(sentence) == pieces
        assert encoder.decode(pieces) == sentence


def test_without_codes_words_stay_whole(tmp_path: Path) -> None:
    encoder = TextEncoder("de", "space", find_codes(tmp_path, "de"))
    assert encoder.encode("  a   bc ") == "a bc"


def test_each_language_can_have_merges_of_its_own(tmp_path: Path) -> None:
    binary = tmp_path / "bin"
    binary.mkdir()
    (tmp_path / "bpe.codes.de").touch()
    assert find_codes(binary, "de") and not find_codes(binary, "en")
    (tmp_path / "bpe.codes").touch()
    assert find_codes(binary, "de") != find_codes(binary, "en")


def dictionary_of(*symbols: str) -> Dictionary:
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    dictionary.pad_to_multiple_(8)
    return dictionary


@pytest.mark.parametrize(
    ("symbols", "split", "whole"),
    [
        (("cup@@", "board", "a"), ["cup@@ board", "board a", ""], ["cupboard", "a cupboard"]),
        # sentencepiece marks every word, also one that is known without the mark
        (("\u2581cup", "board", "\u2581a", "a"), ["\u2581cup board cat", ""], ["board", "a cat"]),
        (("\u2581cup", "cup@@", "a"), ["a"], ["a cat"]),
        (tuple("abc"), ["a b d c", "\u00e9"], ["cab", "a cab"]),
        (("cup", "a"), ["a cupboard"], []),
    ],
)
def test_words_are_not_given_whole_to_a_model_of_their_parts(symbols, split, whole) -> None:
    for text in split:
        check_split("split", [text], dictionary_of(*symbols))
    for text in whole:
        with pytest.raises(AnalysisError):
            check_split("whole", [text], dictionary_of(*symbols))


@pytest.mark.parametrize("subword", ["Hun@@", "\u2581Hund"])
def test_typed_words_are_not_given_whole_to_a_model_of_subwords(
    tmp_path: Path, subword: str
) -> None:
    task = toy.task(data=str(tmp_path), source_lang="de", target_lang="en")
    task.source_dictionary.add_symbol(subword)
    with pytest.raises(AnalysisError, match=subword):
        typed_pairs(task, ["w0 Hund"])


def test_words_that_the_models_do_not_know_are_named(tmp_path: Path, caplog) -> None:
    task = toy.task(data=str(tmp_path), source_lang="de", target_lang="en")
    typed_pairs(task, ["w0 w1"])
    assert not caplog.messages
    assert len(typed_pairs(task, ["w0 Hund Hund"])) == 1
    (message,) = caplog.messages
    assert "Hund" in message and "w0" not in message
