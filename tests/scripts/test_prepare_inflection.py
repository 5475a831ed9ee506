"""scripts/prepare_inflection.py on lemmas and forms that are easy to get wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from fairseq.data.data_utils import post_process
from fairseq.tokenizer import tokenize_line
from hypothesis import given
from hypothesis import strategies as st

import archives
from fork_python import PYTHON
from prepare_inflection import from_units, to_units

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "prepare_inflection.py"

TURKISH = "ev\tevler\tN;NOM;PL\nbaşlamak\tbaşlayacak mıyım\tV;INTR;FUT\n"
# A character with no precomposed form, a no-break space, and a feature that begins with a space.
OLD = "ǣ̂r\tse\u0300ū\tADJ;ABL; PL\na\u00a0b\t a▁b \tV\n"
PARTS = ("train-medium", "dev", "test")


def write(folder: Path, language: str, text: str | bytes, parts=PARTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"{language}-{part}").write_bytes(data)


def prepare(data: Path, *options: str, setting: str = "medium"):
    output = [] if "--list" in options else ["--output", data / "out"]
    return subprocess.run(
        [PYTHON, SCRIPT, "--data", data, "--setting", setting, *output, *options],
        capture_output=True,
        encoding="utf-8",
    )


def read(data: Path, name: str) -> list[str]:
    return (data / "out" / name).read_bytes().decode().split("\n")[:-1]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    data = tmp_path / "Daten für, uns"
    write(data / "task1" / "all", "turkish", TURKISH)
    write(data / "task1" / "surprise", "old-english", OLD)
    write(data / "task1" / "all", "turkish", "ev\t\tN;NOM;PL\n", ["covered-test"])
    return data


def test_source_has_language_tags_and_characters(corpus: Path) -> None:
    result = prepare(corpus)
    assert result.returncode == 0, result.stderr
    for split in ("train", "valid", "test"):
        assert read(corpus, f"characters/{split}.lemma") == [
            "lang=old-english tag=ADJ tag=ABL tag=U+0020PL ǣ \u0302 r",
            "lang=old-english tag=V a U+00A0 b",
            "lang=turkish tag=N tag=NOM tag=PL e v",
            "lang=turkish tag=V tag=INTR tag=FUT b a ş l a m a k",
        ]
        assert read(corpus, f"characters/{split}.form") == [
            "s e \u0300 ū",
            "U+0020 a U+2581 b U+0020",
            "e v l e r",
            "b a ş l a y a c a k ▁ m ı y ı m",
        ]
    assert read(corpus, "reference/test.tsv") == [
        "old-english\tǣ̂r\tADJ;ABL; PL\tse\u0300ū",
        "old-english\ta\u00a0b\tV\t a▁b ",
        "turkish\tev\tN;NOM;PL\tevler",
        "turkish\tbaşlamak\tV;INTR;FUT\tbaşlayacak mıyım",
    ]


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
def test_any_of_the_folders_will_do(below: str, corpus: Path) -> None:
    assert prepare(corpus, "--languages", "turkish").returncode == 0
    inner = corpus / below
    assert prepare(inner, "--languages", "turkish").returncode == 0
    for name in ("characters/test.lemma", "reference/test.tsv"):
        assert read(inner, name) == read(corpus, name)


def test_byte_order_mark_and_cr_lf_are_no_part_of_an_item(corpus: Path) -> None:
    assert prepare(corpus, "--languages", "turkish").returncode == 0
    expected = read(corpus, "characters/train.form"), read(corpus, "reference/test.tsv")
    data = TURKISH.replace("\n", "\r\n").encode("utf-8-sig")
    write(corpus / "task1" / "all", "turkish", data)
    assert prepare(corpus, "--languages", "turkish").returncode == 0
    assert (read(corpus, "characters/train.form"), read(corpus, "reference/test.tsv")) == expected


@pytest.mark.parametrize(
    "line",
    [b"a\tb", b"", b"a\tb\tN\textra", b"a\t\tN", b"\tb\tN", b"a\tb\t", b"f\xfcr\tf\xfcr\tN"],
)
def test_what_is_no_item_is_refused_with_its_place(line: bytes, corpus: Path) -> None:
    write(corpus / "task1" / "all", "turkish", b"a\tb\tN\n" + line + b"\na\tb\tN\n", ["test"])
    result = prepare(corpus)
    assert result.returncode == 1
    assert f"{corpus / 'task1' / 'all' / 'turkish-test'}, line 2: " in result.stderr
    assert not (corpus / "out" / "reference").exists()


def test_all_languages_are_those_with_training_data(corpus: Path) -> None:
    write(corpus / "task1" / "all", "cornish", TURKISH, ["train-low", "dev", "test"])
    result = prepare(corpus)
    assert "cornish" in result.stderr
    assert {line.split()[0] for line in read(corpus, "characters/train.lemma")} == {
        "lang=turkish",
        "lang=old-english",
    }
    assert prepare(corpus, setting="low").returncode == 0
    assert len(read(corpus, "characters/test.lemma")) == 2
    none = prepare(corpus, setting="high")
    assert none.returncode == 1 and "train-high" in none.stderr


def test_listed_are_the_files_that_are_read(corpus: Path) -> None:
    result = prepare(corpus, "--list", "--languages", "turkish")
    folder = corpus / "task1" / "all"
    assert result.stdout.splitlines() == [str(folder / f"turkish-{part}") for part in PARTS]
    assert not (corpus / "out").exists()


def test_missing_files_and_languages_are_named(corpus: Path) -> None:
    unknown = prepare(corpus, "--languages", "turkish klingon")
    assert unknown.returncode == 1
    assert "klingon" in unknown.stderr
    (corpus / "task1" / "all" / "turkish-dev").unlink()
    for languages in ("all", "old-english,turkish"):
        missing = prepare(corpus, "--languages", languages)
        assert missing.returncode == 1
        assert str(corpus / "task1" / "all" / "turkish-dev") in missing.stderr
    assert prepare(corpus / "no such folder", "--list").returncode == 1


def test_a_language_in_both_folders_is_refused(corpus: Path) -> None:
    write(corpus / "task1" / "surprise", "turkish", TURKISH, ["dev"])
    result = prepare(corpus)
    assert result.returncode == 1 and "turkish-dev" in result.stderr


def test_a_second_run_replaces_the_first(corpus: Path) -> None:
    assert prepare(corpus).returncode == 0
    first = read(corpus, "characters/train.form")
    write(corpus / "task1" / "all", "turkish", "el\teller\tN;PL\n")
    assert prepare(corpus).returncode == 0
    assert read(corpus, "characters/train.form") == [*first[:2], "e l l e r"]
    assert not list(corpus.glob("out/**/*.partial"))


def test_the_archive_of_the_repository_is_the_same(corpus: Path, tmp_path: Path) -> None:
    assert prepare(corpus).returncode == 0
    files = [path for path in (corpus / "task1").rglob("*-*") if path.is_file()]
    members = {f"conll2018-master/{path.relative_to(corpus)}": path.read_bytes() for path in files}
    members |= {"conll2018-master/task1/all/": b"", "conll2018-master/README.md": b"# Read me"}
    # Nothing is written outside the output folder.
    members["../task1/all/../../escaped-dev"] = members["x/../task1/all/escaped-dev"] = b"a\ta\tN\n"
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "conll2018.tar.gz").write_bytes(archives.tar(members))
    assert prepare(packed).returncode == 0
    for name in ("characters/train.lemma", "characters/test.form", "reference/test.tsv"):
        assert read(packed, name) == read(corpus, name)
    assert not list(tmp_path.rglob("escaped*"))


def test_an_archive_that_is_cut_off_is_named(tmp_path: Path) -> None:
    content = archives.tar({"x/task1/all/turkish-dev": b"a\ta\tN\n" * 9})
    (tmp_path / "conll2018.tar.gz").write_bytes(content[: len(content) // 2])
    result = prepare(tmp_path)
    assert result.returncode == 1 and "conll2018.tar.gz" in result.stderr
