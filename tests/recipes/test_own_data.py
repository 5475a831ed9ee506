"""Recipes of a user's own text."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.data import own_data
from fairseq_sparse.recipes.recipe import Options, Recipe, Take
from fairseq_sparse.recipes.resolve import resolve


def files(folder: Path, *names: str, lines: int = 1) -> Path:
    for name in names:
        text = b"a\n" * lines
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return folder


def recipe(entry: dict, **options) -> Recipe:
    return resolve("mine", "entmax15", Options(**options), entry)


@pytest.mark.parametrize("config", ["cpu", "gpu"])
def test_four_files_are_enough(config: str, tmp_path: Path) -> None:
    files(tmp_path, "train.de", "train.en.gz", "test.de", "test.en")
    found = recipe(own_data(tmp_path, "de", "en"), config=config, raw_dir=Path("elsewhere"))
    corpus = found.corpus
    assert corpus.take == (
        Take("train", "text", "train.de", "train.en.gz"),
        Take("test", "text", "test.de", "test.en"),
    )
    assert corpus.tokens == {"de": "moses", "en": "moses"} and corpus.hold_out == 20
    assert (found.raw_dir, found.dataset, corpus.files) == (tmp_path, "mine", ())
    assert found.data_dir == Path.cwd() / "data" / "mine" and not found.decoding.score_flags


# Lines have one word and an end: 2 of 7 million in all.
@pytest.mark.parametrize(
    ("lines", "epochs"), [(1, 200), (100_000, 35), (175_000, 20), (200_000, 20)]
)
def test_a_small_corpus_gets_enough_updates(lines: int, epochs: int, tmp_path: Path) -> None:
    files(tmp_path, "train.de", "train.en.gz", "test.de", "test.en", lines=lines)
    entry = own_data(tmp_path, "de", "en")
    assert recipe(entry).training.flags["max-epoch"] == epochs
    assert recipe(entry, epochs=3).training.flags["max-epoch"] == 3
    assert recipe(entry, settings="finetuning").training.flags["max-epoch"] == 5


@pytest.mark.parametrize("stem", ["valid", "dev"])
def test_own_validation_is_used(stem: str, tmp_path: Path) -> None:
    names = [f"{split}.{side}" for split in ("train", stem, "test") for side in ("de", "en")]
    corpus = recipe(own_data(files(tmp_path, *names), "de", "en")).corpus
    assert Take("valid", "text", f"{stem}.de", f"{stem}.en") in corpus.take
    assert corpus.hold_out == 0
    with pytest.raises(RecipeError, match="--hold-out 5"):
        own_data(tmp_path, "de", "en", hold_out=5)


def test_tokens_and_subwords_of_one_s_own(tmp_path: Path) -> None:
    files(tmp_path, "train.ja", "train.en", "test.ja", "test.en")
    source = recipe(own_data(tmp_path, "ja", "en", tokenized=["ja"]))
    assert source.corpus.tokens == {"ja": "space", "en": "moses"}
    assert not source.decoding.score_flags
    entry = own_data(tmp_path, "ja", "en", ["ja", "en"], separate=True, hold_out=7)
    both = recipe(entry, settings="sue", bpe_merges=30)
    assert both.decoding.score_flags == {"tokenize": "none"}
    assert both.training.flags["eval-bleu-detok"] == "space"
    corpus, flags = both.corpus, both.training.flags
    assert corpus.separate_bpe and not corpus.joined_dictionary and corpus.hold_out == 7
    assert corpus.bpe_merges == 30
    assert "share-all-embeddings" not in flags and flags["share-decoder-input-output-embed"]


def test_a_file_is_enough_for_a_language_model(tmp_path: Path) -> None:
    corpus = recipe(own_data(files(tmp_path, "train.en"), "en")).corpus
    assert corpus.take == (Take("train", "text", "train.en", "train.en"),)
    assert (corpus.kind, corpus.source, corpus.target, corpus.hold_out) == ("text", "en", "en", 20)
    files(tmp_path, "valid.en", "test.en")
    corpus = recipe(own_data(tmp_path, "en")).corpus
    assert {take.split for take in corpus.take} == {"train", "valid", "test"}
    assert corpus.hold_out == 0


@pytest.mark.parametrize(
    ("names", "languages", "missing"),
    [
        ("train.de train.en", ("de", "en"), "test.de and test.en"),
        ("train.de test.de test.en", ("de", "en"), "train.en"),
        ("train.de train.en test.de test.en dev.de", ("de", "en"), "dev.en"),
        ("train.en test.en", ("en",), "valid.en"),
        ("", ("en",), "train.en"),
    ],
)
def test_what_is_missing_is_named(names: str, languages, missing: str, tmp_path: Path) -> None:
    files(tmp_path, *names.split())
    with pytest.raises(RecipeError, match=missing):
        own_data(tmp_path, *languages)


def test_a_language_that_is_not_there_is_no_tokenised_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'jp'.* ja"):
        own_data(files(tmp_path, "train.ja", "test.ja"), "ja", "en", ["jp"])


def test_an_ending_of_two_parts_is_refused(tmp_path: Path) -> None:
    files(tmp_path, "train.tok.de", "train.tok.en", "test.tok.de", "test.tok.en")
    with pytest.raises(RecipeError, match="'tok.de'.* train.de"):
        own_data(tmp_path, "tok.de", "tok.en")


@pytest.mark.parametrize("language", ["ja", "zh_CN", "th"])
def test_text_without_spaces_must_be_split_into_words(language: str, tmp_path: Path) -> None:
    files(
        tmp_path, *(f"{split}.{side}" for split in ("train", "test") for side in (language, "en"))
    )
    with pytest.raises(RecipeError, match=f"--tokenized {language}"):
        own_data(tmp_path, language, "en")
    assert own_data(tmp_path, language, "en", [language])["corpus"]["tokens"] == {language: "space"}
