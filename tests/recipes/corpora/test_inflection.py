"""corpora/inflection.py on lemmas and forms that are easy to get wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fairseq.data.data_utils import post_process
from fairseq.tokenizer import tokenize_line
from hypothesis import given
from hypothesis import strategies as st

import archives
from fairseq_sparse.commands import cli
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.inflection import from_units, prepare, to_units

TURKISH = "ev\tevler\tN;NOM;PL\nbaşlamak\tbaşlayacak mıyım\tV;INTR;FUT\n"
# A character with no precomposed form, a no-break space, and a feature that begins with a space.
OLD = "ǣ̂r\tse\u0300ū\tADJ;ABL; PL\na\u00a0b\t a▁b \tV\n"
PARTS = ("train-medium", "dev", "test")


def write(folder: Path, language: str, text: str | bytes, parts=PARTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"{language}-{part}").write_bytes(data)


def read(folder: Path, name: str) -> list[str]:
    return (folder / name).read_bytes().decode().split("\n")[:-1]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    data = tmp_path / "Daten für, uns"
    write(data / "task1" / "all", "turkish", TURKISH)
    write(data / "task1" / "surprise", "old-english", OLD)
    write(data / "task1" / "all", "turkish", "ev\t\tN;NOM;PL\n", ["covered-test"])
    return data


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_source_has_language_tags_and_characters(corpus: Path, out: Path) -> None:
    words = ["--raw", str(corpus), "--output-folder", str(out), "--setting", "medium"]
    assert cli.run("corpus inflection", [*words, "--language-count", "2"]) == 0
    for split in ("train", "valid", "test"):
        assert read(out, f"characters/{split}.lemma") == [
            "lang=old-english tag=ADJ tag=ABL tag=U+0020PL ǣ \u0302 r",
            "lang=old-english tag=V a U+00A0 b",
            "lang=turkish tag=N tag=NOM tag=PL e v",
            "lang=turkish tag=V tag=INTR tag=FUT b a ş l a m a k",
        ]
        assert read(out, f"characters/{split}.form") == [
            "s e \u0300 ū",
            "U+0020 a U+2581 b U+0020",
            "e v l e r",
            "b a ş l a y a c a k ▁ m ı y ı m",
        ]
    assert read(out, "text/test.tsv") == [
        "old-english\tǣ̂r\tADJ;ABL; PL\tse\u0300ū",
        "old-english\ta\u00a0b\tV\t a▁b ",
        "turkish\tev\tN;NOM;PL\tevler",
        "turkish\tbaşlamak\tV;INTR;FUT\tbaşlayacak mıyım",
    ]
    assert cli.run("corpus inflection", [*words, "--language-count", "3"]) == 1


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1))
def test_fairseq_gives_every_form_back(form: str) -> None:
    units = to_units(form)
    line = " ".join(units)
    assert tokenize_line(line) == units
    assert len(units) == len(form)
    # The one exception: a form that contains our notation, such as the six characters U+00A0.
    if not re.search(r"U\+[0-9A-F]{4}", form):
        assert from_units(post_process(line, "sentencepiece")) == form


@pytest.mark.parametrize("below", ["", "task1", "task1/all"])
def test_any_of_the_folders_will_do(below: str, corpus: Path, out: Path) -> None:
    prepare(corpus / below, out, "medium", ["turkish"])
    assert len(read(out, "text/test.tsv")) == 2


def test_byte_order_mark_and_cr_lf_are_no_part_of_an_item(corpus: Path, out: Path) -> None:
    data = TURKISH.replace("\n", "\r\n").encode("utf-8-sig")
    write(corpus / "task1" / "all", "turkish", data)
    prepare(corpus, out, "medium", ["turkish"])
    assert read(out, "characters/train.form") == ["e v l e r", "b a ş l a y a c a k ▁ m ı y ı m"]
    assert read(out, "text/test.tsv")[0] == "turkish\tev\tN;NOM;PL\tevler"


@pytest.mark.parametrize(
    "line",
    [b"a\tb", b"", b"a\tb\tN\textra", b"a\t\tN", b"\tb\tN", b"a\tb\t", b"f\xfcr\tf\xfcr\tN"],
)
def test_what_is_no_item_is_refused_with_its_place(line: bytes, corpus: Path, out: Path) -> None:
    write(corpus / "task1" / "all", "turkish", b"a\tb\tN\n" + line + b"\na\tb\tN\n", ["test"])
    place = re.escape(f"{corpus / 'task1' / 'all' / 'turkish-test'}, line 2: ")
    with pytest.raises(RecipeError, match=place):
        prepare(corpus, out, "medium")
    assert not out.exists()


def test_all_languages_are_those_with_training_data(corpus: Path, out: Path) -> None:
    write(corpus / "task1" / "all", "cornish", TURKISH, ["train-low", "dev", "test"])
    prepare(corpus, out, "medium")
    found = {line.split()[0] for line in read(out, "characters/train.lemma")}
    assert found == {"lang=turkish", "lang=old-english"}
    prepare(corpus, out, "low")
    assert len(read(out, "characters/test.lemma")) == 2
    with pytest.raises(RecipeError, match="train-high"):
        prepare(corpus, out, "high")


def test_what_is_missing_or_there_twice_is_named(corpus: Path, out: Path) -> None:
    with pytest.raises(RecipeError, match="klingon"):
        prepare(corpus, out, "medium", ["turkish", "klingon"])
    (corpus / "task1" / "all" / "turkish-dev").unlink()
    with pytest.raises(RecipeError, match="turkish-dev"):
        prepare(corpus, out, "medium")
    for folder in ("all", "surprise"):
        write(corpus / "task1" / folder, "turkish", TURKISH, ["dev"])
    with pytest.raises(RecipeError, match="all/turkish-dev.*surprise/turkish-dev"):
        prepare(corpus, out, "medium")
    with pytest.raises(RecipeError):
        prepare(corpus / "no such folder", out, "medium")


def test_the_archive_of_the_repository_is_the_same(corpus: Path, out: Path, tmp_path: Path) -> None:
    prepare(corpus, out, "medium")
    files = [path for path in (corpus / "task1").rglob("*-*") if path.is_file()]
    members = {f"conll2018-master/{path.relative_to(corpus)}": path.read_bytes() for path in files}
    members |= {"conll2018-master/task1/all/": b"", "conll2018-master/README.md": b"# Read me"}
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "conll2018.tar.gz").write_bytes(archives.tar(members))
    prepare(packed, tmp_path / "again", "medium")
    for name in ("characters/train.lemma", "characters/test.form", "text/test.tsv"):
        assert read(tmp_path / "again", name) == read(out, name)
    assert [path.name for path in packed.iterdir()] == ["conll2018.tar.gz"]  # it is only read


def test_an_archive_that_is_cut_off_is_named(tmp_path: Path, out: Path) -> None:
    content = archives.tar({"x/task1/all/turkish-dev": b"a\ta\tN\n" * 9})
    (tmp_path / "conll2018.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(RecipeError, match="conll2018.tar.gz"):
        prepare(tmp_path, out, "medium")
