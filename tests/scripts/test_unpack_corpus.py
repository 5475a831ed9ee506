"""scripts/unpack_corpus.py: every kind of file, their faults, and the files left behind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import stat
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

import archives
import unpack_corpus

PAIRS = [("Ein Hund.", "A dog."), ("Zwei Hunde!", "Two dogs!"), ("", "Nothing."), ("Drei?", "")]
SOURCE, TARGET = ([pair[side] for pair in PAIRS] for side in (0, 1))


def unpack(raw: Path, *takes: tuple[str, str, str, str]) -> int:
    """Unpack the takes, and for the splits that they leave out, small plain files."""
    for language in ("de", "en"):
        (raw / f"small.{language}").write_text("eins\n")
    given = {take[0] for take in takes}
    rest = {"train", "valid", "test"} - given
    words = ["--source-lang", "de", "--target-lang", "en", "--raw", str(raw)]
    for take in [*takes, *((split, "text", "small.de", "small.en") for split in rest)]:
        words += ["--take", *take]
    return unpack_corpus.main([*words, "--output", str(raw / "out")])


def unpacked(raw: Path, split: str = "train") -> tuple[list[str], list[str]]:
    sides = [(raw / "out" / f"{split}.{lang}").read_bytes().decode() for lang in ("de", "en")]
    assert all(side.endswith("\n") for side in sides)
    return tuple(side.split("\n")[:-1] for side in sides)


def place(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


MEMBERS = {"a/": b"", "./a/de": archives.text(SOURCE), "a/en": archives.text(TARGET)}


@pytest.mark.parametrize(
    ("name", "content", "prefix"),
    [
        ("c.tar", archives.tar(MEMBERS, ""), "c.tar!a/"),
        ("c.tgz", archives.tar(MEMBERS), "c.tgz!a/"),
        ("c.tar.gz", archives.tar(MEMBERS), "c.tar.gz!./a/"),
        ("c.tar.bz2", archives.tar(MEMBERS, "bz2"), "c.tar.bz2!a/"),
        ("c.tar.xz", archives.tar(MEMBERS, "xz"), "c.tar.xz!a/"),
        ("c.zip", archives.zipped(MEMBERS), "c.zip!a/"),
    ],
)
def test_members_of_archives(name: str, content: bytes, prefix: str, tmp_path: Path) -> None:
    place(tmp_path, name, content)
    assert unpack(tmp_path, ("train", "text", f"{prefix}de", f"{prefix}en")) == 0
    assert unpacked(tmp_path) == (SOURCE, TARGET)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_files_alone_and_in_archives_may_be_compressed(suffix, compress, tmp_path: Path) -> None:
    place(tmp_path, f"de{suffix}", compress(archives.text(SOURCE)))
    place(tmp_path, "t.tgz", archives.tar({f"en{suffix}": compress(archives.text(TARGET))}))
    assert unpack(tmp_path, ("train", "text", f"de{suffix}", f"t.tgz!en{suffix}")) == 0
    assert unpacked(tmp_path) == (SOURCE, TARGET)


def test_takes_of_a_split_are_joined_in_their_order(tmp_path: Path) -> None:
    for name, content in MEMBERS.items():
        if content:
            place(tmp_path, name.removeprefix("./").replace("/", "."), content)
    big, small = ("test", "text", "a.de", "a.en"), ("test", "text", "small.de", "small.en")
    assert unpack(tmp_path, big, small, big) == 0
    assert unpacked(tmp_path, "test") == (
        [*SOURCE, "eins", *SOURCE],
        [*TARGET, "eins", *TARGET],
    )


def test_line_is_one_line_for_every_program(tmp_path: Path) -> None:
    ends = "\u2028\u2029\x85\x0b\x0c\x1c\x1e\r\t\xa0\u3000"
    place(tmp_path, "de", archives.text([f"vor{end} nach" for end in ends], end="\r\n"))
    place(tmp_path, "en", b"\xef\xbb\xbf" + archives.text([" x  y "] * len(ends))[:-1])
    assert unpack(tmp_path, ("train", "text", "de", "en")) == 0
    assert unpacked(tmp_path) == (["vor nach"] * len(ends), ["x y"] * len(ends))


def test_lines_that_are_not_utf8_are_read_as_latin1(tmp_path: Path, capsys) -> None:
    place(tmp_path, "de", "größer\n".encode() + "für “uns”\n".encode("cp1252") + b"\x81\n")
    place(tmp_path, "en", b"1\n2\n3\n")
    assert unpack(tmp_path, ("train", "text", "de", "en")) == 0
    assert unpacked(tmp_path)[0] == ["größer", "für “uns”", "\ufffd"]
    assert "de: 2 lines" in capsys.readouterr().err


def test_lines_that_begin_with_a_tag_are_no_sentences(tmp_path: Path) -> None:
    talk = ["<url>http://x</url>", "<keywords>a, b</keywords>", "<title>Titel</title>"]
    lines = [*talk, " Ein <i>Hund</i> &amp; 3 < 4.", "", '<reviewer href="x">N</reviewer>', "<3"]
    place(tmp_path, "de", archives.text(lines))
    place(tmp_path, "en", archives.text([*talk, "A dog.", "Blank.", "</doc>", "Love"]))
    assert unpack(tmp_path, ("train", "tags", "de", "en")) == 0
    assert unpacked(tmp_path) == (
        ["Ein <i>Hund</i> & 3 < 4.", "", "<3"],
        ["A dog.", "Blank.", "Love"],
    )


def test_segments(tmp_path: Path) -> None:
    sentences = [
        "&quot;R&amp;D&quot; &lt;b&gt; &amp;lt;",
        "AT&T &#228;&#x1F642;&copy;&#0;",
        "",
        "x",
    ]
    expected = ['"R&D" <b> &lt;', "AT&T ä🙂&copy;&#0;", "", "x"]
    place(tmp_path, "de", archives.sgm(sentences, end="\r\n"))
    several = "<DOC><SEG id='1'>one</SEG><hl>\n<seg id=2>\ntwo\nlines\n</seg> <seg id=3></seg></hl>"
    place(tmp_path, "en", (several + '<seg id="4">four</seg></DOC>').encode())
    assert unpack(tmp_path, ("test", "seg", "de", "en")) == 0
    assert unpacked(tmp_path, "test") == (expected, ["one", "two lines", "", "four"])


@pytest.mark.parametrize(
    "lines",
    [
        ["<seg id=1>a"] + ["b"] * 300_000,
        ["<seg id=1>" * 300_000],
        ["<seg " * 300_000],
        ["<seg"] * 99,
    ],
    ids=["a segment without an end", "segments in segments", "tags in tags", "a tag over lines"],
)
def test_segments_are_read_in_one_pass(lines: list[str], tmp_path: Path, capsys) -> None:
    """A search in quadratic time would take hours here."""
    place(tmp_path, "evil", archives.text(lines))
    assert unpack(tmp_path, ("test", "seg", "evil", "small.en")) == 1
    assert "evil" in capsys.readouterr().err


def test_columns_of_a_table(tmp_path: Path) -> None:
    rows = ["Ein Hund.\tA dog.\t0.9", "\tNothing.\t0.1"]
    place(tmp_path, "t.tsv.gz", gzip.compress(archives.text(rows)))
    assert unpack(tmp_path, ("train", "tsv", "t.tsv.gz#1", "t.tsv.gz#2")) == 0
    assert unpacked(tmp_path) == (["Ein Hund.", ""], ["A dog.", "Nothing."])


def test_columns_between_bars(tmp_path: Path) -> None:
    place(tmp_path, "wiki.de-en", archives.text(["Ein Hund ||| A dog", " ||| Nothing | a | b"]))
    assert unpack(tmp_path, ("train", "bars", "wiki.de-en#2", "wiki.de-en#1")) == 0
    assert unpacked(tmp_path) == (["A dog", "Nothing | a | b"], ["Ein Hund", ""])


def broken(content: bytes) -> bytes:
    """Return the content with other bytes in the middle, of the same length."""
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(255 - byte for byte in content[middle : middle + 8])
        + (content[middle + 8 :])
    )


NOISE = {"a/de": random.Random(1).randbytes(40_000).hex().encode() + b"\n", "a/en": b"one\n"}


@pytest.mark.parametrize(
    "damage",
    [lambda good: good[:-1000], broken, lambda _: b"<html>Please log in</html>" * 100],
    ids=["truncated", "corrupt", "web page"],
)
# The noise, or a member before or after it; in a zip, only the member that is read is checked.
@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("c.tgz", "a/de"),
        ("c.tgz", "a/0"),
        ("c.tgz", "a/en"),
        ("c.tar.xz", "a/0"),
        ("c.zip", "a/de"),
    ],
)
def test_damage_is_named(name, member, damage, tmp_path: Path, capsys) -> None:
    members = {"a/0": b"zero\n", **NOISE}
    if name == "c.zip":
        content = archives.zipped(members)
    else:
        content = archives.tar(members, "gz" if name == "c.tgz" else "xz")
    place(tmp_path, name, damage(content))
    take = ("train", "text", f"{name}!{member}", "small.en")
    assert unpack(tmp_path, take) == 1
    assert str(tmp_path / name) in capsys.readouterr().err
    assert not (tmp_path / "out" / "train.de").exists()
    # With a whole file in its place, the same command works.
    place(tmp_path, name, content)
    assert unpack(tmp_path, take) == 0


@pytest.mark.parametrize(
    "take",
    [
        ("text", "c.tgz!a/fr", "small.en"),
        ("text", "c.tgz!a", "small.en"),
        ("text", "c.zip!a/fr", "small.en"),
        ("text", "c.tgz!a/de", "small.en"),
        ("text", "empty", "empty"),
        ("seg", "open", "open"),
        ("seg", "twice", "twice"),
        ("seg", "small.de", "small.en"),
        ("tsv", "table#3", "table#1"),
    ],
)
def test_what_does_not_fit_is_refused(take, tmp_path: Path, capsys) -> None:
    place(tmp_path, "c.tgz", archives.tar(MEMBERS))
    place(tmp_path, "c.zip", archives.zipped(MEMBERS))
    place(tmp_path, "empty", b"")
    place(tmp_path, "open", b"<seg id=1>a</seg>\n<seg id=2>b")
    place(tmp_path, "twice", b"<seg id=1>a\n<seg id=2>b</seg>\n")
    place(tmp_path, "table", b"a\tb\tc\na\tb\n")
    assert unpack(tmp_path, ("valid", *take)) == 1
    assert take[1].split("!")[0] in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("valid.??"))


def test_nothing_is_written_where_an_archive_says(tmp_path: Path) -> None:
    absolute = str(tmp_path / "evil.en")
    members = {"../../evil.de": b"eins\n", absolute: b"one\n"}
    place(tmp_path, "c.tgz", archives.tar(members))
    take = ("train", "text", "c.tgz!../../evil.de", f"c.tgz!{absolute}")
    assert unpack(tmp_path, take) == 0
    assert unpacked(tmp_path) == (["eins"], ["one"])
    assert not (tmp_path / "../../evil.de").exists() and not Path(absolute).exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_only_files_of_an_archive_are_read(kind: bytes, tmp_path: Path, capsys) -> None:
    (tmp_path / "secret").write_text("eins\n")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo("de")
        member.type, member.linkname = kind, str(tmp_path / "secret")
        archive.addfile(member)
    place(tmp_path, "c.tgz", content.getvalue())
    assert unpack(tmp_path, ("train", "text", "c.tgz!de", "small.en")) == 1
    assert "c.tgz: has no file de" in capsys.readouterr().err


def test_a_link_in_a_zip_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    link = zipfile.ZipInfo("de")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr(link, str(tmp_path / "secret"))
    assert unpack(tmp_path, ("train", "text", "c.zip!de", "small.en")) == 0
    assert unpacked(tmp_path)[0] == [str(tmp_path / "secret")]


def test_split_that_is_there_is_kept(tmp_path: Path, capsys) -> None:
    assert unpack(tmp_path) == 0
    place(tmp_path / "out", "test.de", b"mine\n")
    (tmp_path / "out" / "train.en").unlink()
    assert unpack(tmp_path) == 0
    assert unpacked(tmp_path, "test") == (["mine"], ["eins"])
    assert unpacked(tmp_path, "train") == (["eins"], ["eins"])
    assert capsys.readouterr().err.count("done already") == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [("dev text a b", "dev"), ("train csv a b", "csv"), ("train tsv a#1 b", "b")],
)
def test_wrong_take_is_explained(words: str, named: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        unpack(tmp_path, tuple(words.split()))
    assert f" {named}:" in capsys.readouterr().err


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        lines = archives.text([f"Satz {number} mit ein paar Worten" for number in range(count)])
        place(folder, "c.tgz", archives.tar({"a/de": lines, "a/en": lines}))
        place(folder, "w.sgm", archives.sgm(["ein Satz"] * count))
        text = ("train", "text", "c.tgz!a/de", "c.tgz!a/en")
        tracemalloc.start()
        try:
            assert unpack(folder, text, ("train", "seg", "w.sgm", "w.sgm")) == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(80_000) < 1.2 * peak(10_000)
