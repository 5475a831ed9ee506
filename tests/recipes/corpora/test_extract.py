"""corpora/extract.py: every kind of file, their faults, and the files left behind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import stat
import tarfile
import tracemalloc
import unicodedata
import zipfile
from pathlib import Path

import pytest

import archives
from fairseq_sparse.commands import cli
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.extract import extract, without_diacritics
from fairseq_sparse.recipes.corpora.reading import LONGEST_LINE, raw_file, read_lines

PAIRS = [("Ein Hund.", "A dog."), ("Zwei Hunde!", "Two dogs!"), ("", "Nothing."), ("Drei?", "")]
SOURCE, TARGET = ([pair[side] for pair in PAIRS] for side in (0, 1))
MEMBERS = {"a/": b"", "./a/de": archives.text(SOURCE), "a/en": archives.text(TARGET)}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a folder with a small text."""
    for language in ("de", "en"):
        (tmp_path / f"small.{language}").write_text("eins\n")
    return tmp_path


def run(raw: Path, *takes: str) -> None:
    extract(raw, raw / "out", ("de", "en"), [take.split() for take in takes])


def extracted(raw: Path, split: str = "train") -> tuple[list[str], list[str]]:
    sides = [(raw / "out" / f"{split}.{lang}").read_bytes().decode() for lang in ("de", "en")]
    assert all(side.endswith("\n") for side in sides)
    return tuple(side.split("\n")[:-1] for side in sides)


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
def test_members_of_archives(name: str, content: bytes, prefix: str, raw: Path) -> None:
    (raw / name).write_bytes(content)
    run(raw, f"train text {prefix}de {prefix}en")
    assert extracted(raw) == (SOURCE, TARGET)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_files_alone_and_in_archives_may_be_compressed(suffix, compress, raw: Path) -> None:
    (raw / f"de{suffix}").write_bytes(compress(archives.text(SOURCE)))
    (raw / "t.tgz").write_bytes(archives.tar({f"en{suffix}": compress(archives.text(TARGET))}))
    run(raw, f"train text de{suffix} t.tgz!en{suffix}")
    assert extracted(raw) == (SOURCE, TARGET)


def test_a_file_may_be_compressed_or_not_whatever_its_name_says(raw: Path) -> None:
    (raw / "packed.gz").write_bytes(gzip.compress(b"zwei\n"))
    run(raw, "train text packed small.en.gz")
    assert extracted(raw) == (["zwei"], ["eins"])
    assert raw_file(raw, "packed!x") == raw / "packed.gz"


def test_takes_of_a_split_are_joined_in_their_order(raw: Path) -> None:
    for name, content in MEMBERS.items():
        (raw / name.removeprefix("./").replace("/", ".")).write_bytes(content)
    big, small = "test text a.de a.en", "test text small.de small.en"
    run(raw, big, small.replace("test", "train"), small, big)
    assert extracted(raw, "test") == ([*SOURCE, "eins", *SOURCE], [*TARGET, "eins", *TARGET])
    assert extracted(raw) == (["eins"], ["eins"])


def test_line_is_one_line_for_every_program(raw: Path) -> None:
    ends = "\u2028\u2029\x85\x0b\x0c\x1c\x1e\r\t\xa0\u3000"
    (raw / "de").write_bytes(archives.text([f"vor{end} nach" for end in ends], end="\r\n"))
    content = b"\xef\xbb\xbf" + archives.text([" x  y "] * len(ends))[:-1]
    (raw / "en").write_bytes(content)
    run(raw, "train text de en")
    assert extracted(raw) == (["vor nach"] * len(ends), ["x y"] * len(ends))


def test_lines_that_are_not_utf8_are_read_as_latin1(raw: Path, capsys) -> None:
    (raw / "de").write_bytes("größer\n".encode() + "für “uns”\n".encode("cp1252") + b"\x81\n")
    (raw / "en").write_bytes(b"1\n2\n3\n")
    run(raw, "train text de en")
    assert extracted(raw)[0] == ["größer", "für “uns”", "\ufffd"]
    assert "de: 2 lines" in capsys.readouterr().err


def test_lines_that_begin_with_a_tag_are_no_sentences(raw: Path) -> None:
    talk = ["<url>http://x</url>", "<keywords>a, b</keywords>", "<title>Titel</title>"]
    lines = [*talk, " Ein <i>Hund</i> &amp; 3 < 4.", "", '<reviewer href="x">N</reviewer>', "<3"]
    (raw / "de").write_bytes(archives.text(lines))
    (raw / "en").write_bytes(archives.text([*talk, "A dog.", "Blank.", "</doc>", "Love"]))
    run(raw, "train tags de en", "test talks de en")
    assert extracted(raw) == (
        ["Ein <i>Hund</i> & 3 < 4.", "", "<3"],
        ["A dog.", "Blank.", "Love"],
    )
    assert extracted(raw, "test")[1] == ["Titel", "A dog.", "Blank.", "</doc>", "Love"]


def test_segments(raw: Path) -> None:
    sentences = [
        "&quot;R&amp;D&quot; &lt;b&gt; &amp;lt;",
        "AT&T &#228;&#x1F642;&copy;&#0;",
        "",
        "x",
    ]
    expected = ['"R&D" <b> &lt;', "AT&T ä🙂&copy;\N{REPLACEMENT CHARACTER}", "", "x"]
    (raw / "de").write_bytes(archives.sgm(sentences, end="\r\n"))
    several = "<DOC><SEG id='1'>one</SEG><hl>\n<seg id=2>\ntwo\nlines\n</seg> <seg id=3></seg></hl>"
    (raw / "en").write_bytes((several + '<seg id="4">four</seg></DOC>').encode())
    run(raw, "test seg de en")
    assert extracted(raw, "test") == (expected, ["one", "two lines", "", "four"])


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
def test_segments_are_read_in_one_pass(lines: list[str], raw: Path) -> None:
    """A search in quadratic time would take hours here."""
    (raw / "evil").write_bytes(archives.text(lines))
    with pytest.raises(RecipeError, match="evil"):
        run(raw, "test seg evil small.en")


def test_columns_of_tables(raw: Path) -> None:
    rows = ["Ein Hund.\tA dog.\t0.9", "\tNothing.\t0.1"]
    (raw / "t.tsv.gz").write_bytes(gzip.compress(archives.text(rows)))
    (raw / "wiki").write_bytes(archives.text(["Ein Hund ||| A dog", " ||| Nothing | a | b"]))
    run(raw, "train tsv t.tsv.gz#1 t.tsv.gz#2", "train bars wiki#2 wiki#1")
    assert extracted(raw) == (
        ["Ein Hund.", "", "A dog", "Nothing | a | b"],
        ["A dog.", "Nothing.", "Ein Hund", ""],
    )


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_romanian_loses_its_diacritics_and_no_other(form: str, raw: Path) -> None:
    """The letters have a comma below or a cedilla, precomposed or combining."""
    text, others = (
        unicodedata.normalize(form, text) for text in ("ȘșȚț ŞşŢţ ĂăÂâÎî", "üéàćäïç ê ŏ")
    )
    assert without_diacritics(text) == "SsTt SsTt AaAaIi"
    assert without_diacritics(others) == others
    (raw / "ro").write_text(text, encoding="utf-8")
    extract(raw, raw / "out", ("en", "ro"), [["test", "text", "ro", "ro"]], ["ro"])
    assert (raw / "out" / "test.en").read_text("utf-8") == f"{text}\n"
    assert (raw / "out" / "test.ro").read_text("utf-8") == "SsTt SsTt AaAaIi\n"


def broken(content: bytes) -> bytes:
    """Return the content with other bytes in the middle, of the same length."""
    middle = len(content) // 2
    other = bytes(255 - byte for byte in content[middle : middle + 8])
    return content[:middle] + other + content[middle + 8 :]


NOISE = random.Random(1).randbytes(40_000).hex().encode() + b"\n"


@pytest.mark.parametrize(
    "damage",
    [lambda good: good[:-1000], broken, lambda _: b"<html>Please log in</html>" * 100],
    ids=["truncated", "corrupt", "web page"],
)
# The noise, or a member before or after it; in a zip, only the member that is read is checked.
@pytest.mark.parametrize(
    "place", ["c.tgz!noise", "c.tgz!0", "c.tgz!1", "c.tar.xz!0", "c.zip!noise"]
)
def test_damage_is_named(place: str, damage, raw: Path) -> None:
    name, member = place.split("!")
    members = {"0": b"zero\n", "noise": NOISE, "1": b"one\n"}
    pack = {"c.tgz": archives.tar, "c.zip": archives.zipped}
    content = pack.get(name, lambda members: archives.tar(members, "xz"))(members)
    (raw / name).write_bytes(damage(content))
    with pytest.raises(RecipeError, match=str(raw / name)):
        run(raw, f"train text {place} small.en")
    assert not list((raw / "out").iterdir())
    (raw / name).write_bytes(content)
    run(raw, f"train text {place} small.en")


def test_a_zip_whose_member_would_begin_before_the_file_is_damaged(raw: Path) -> None:
    content = bytearray(archives.zipped({"0": b"zero\n"}))
    content[content.rindex(b"PK\x05\x06") + 17] ^= 1  # where the directory is: 256 bytes later
    (raw / "c.zip").write_bytes(content)
    with pytest.raises(RecipeError, match=str(raw / "c.zip")):
        run(raw, "train text c.zip!0 small.en")


@pytest.mark.parametrize(
    ("take", "named"),
    [
        ("text c.tgz!a/fr small.en", "c.tgz"),
        ("text c.tgz!a small.en", "c.tgz"),
        ("text c.zip!a/fr small.en", "c.zip"),
        ("text c.tgz!a/de small.en", "4 lines in .*c.tgz!a/de but 1 lines in .*small.en"),
        ("text none small.en", "none"),
        ("text wide small.en", "wide, line 1"),
        ("text empty empty", "empty"),
        ("seg open open", "open"),
        ("seg twice twice", "twice"),
        ("seg small.de small.en", "small.de"),
        ("tsv table#3 table#1", "table"),
        ("tsv table table#1", "table"),
        ("csv table table", "csv"),
        ("text small.de", "small.de"),
    ],
)
def test_what_does_not_fit_is_refused(take: str, named: str, raw: Path) -> None:
    (raw / "c.tgz").write_bytes(archives.tar(MEMBERS))
    (raw / "c.zip").write_bytes(archives.zipped(MEMBERS))
    (raw / "empty").write_bytes(b"")
    (raw / "wide").write_bytes("a\n".encode("utf-16"))
    (raw / "open").write_bytes(b"<seg id=1>a</seg>\n<seg id=2>b")
    (raw / "twice").write_bytes(b"<seg id=1>a\n<seg id=2>b</seg>\n")
    (raw / "table").write_bytes(b"a\tb\tc\na\tb\n")
    with pytest.raises(RecipeError, match=named):
        run(raw, f"valid {take}")
    assert not list(raw.glob("out/*"))


def test_nothing_is_written_where_an_archive_says(raw: Path) -> None:
    absolute = str(raw / "evil.en")
    members = {"../../evil.de": b"eins\n", absolute: b"one\n"}
    (raw / "c.tgz").write_bytes(archives.tar(members))
    run(raw, f"train text c.tgz!../../evil.de c.tgz!{absolute}")
    assert extracted(raw) == (["eins"], ["one"])
    assert not (raw / "../../evil.de").exists() and not Path(absolute).exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_only_files_of_an_archive_are_read(kind: bytes, raw: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo("de")
        member.type, member.linkname = kind, str(raw / "small.de")
        archive.addfile(member)
    (raw / "c.tgz").write_bytes(content.getvalue())
    with pytest.raises(RecipeError, match="c.tgz: has no file de"):
        run(raw, "train text c.tgz!de small.en")


def test_a_link_in_a_zip_is_not_followed(raw: Path) -> None:
    link = zipfile.ZipInfo("de")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(raw / "c.zip", "w") as archive:
        archive.writestr(link, str(raw / "small.de"))
    run(raw, "train text c.zip!de small.en")
    assert extracted(raw)[0] == [str(raw / "small.de")]


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_line_without_an_end_is_named_before_it_fills_the_memory(name: str, raw: Path) -> None:
    def write_lines(*sizes: int) -> None:
        content = b"\n".join(b"a" * size for size in sizes)
        (raw / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)

    write_lines(3, LONGEST_LINE - 1, LONGEST_LINE)
    assert list(map(len, read_lines(raw, name))) == [3, LONGEST_LINE - 1, LONGEST_LINE]
    write_lines(3, LONGEST_LINE + 1, 1)
    lines = read_lines(raw, name)
    assert next(lines) == b"aaa"
    with pytest.raises(RecipeError, match=f"{name}, line 2: has more than 16 MiB"):
        next(lines)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(raw: Path) -> None:
    def peak(count: int) -> int:
        lines = archives.text([f"Satz {number} mit ein paar Worten" for number in range(count)])
        (raw / "c.tgz").write_bytes(archives.tar({"a/de": lines, "a/en": lines}))
        tracemalloc.start()
        try:
            run(raw, "train text c.tgz!a/de c.tgz!a/en")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    fewer = peak(10_000)  # enough to fill all buffers
    assert peak(30_000) - fewer < 20_000  # less than one byte per line


def test_command_line(raw: Path, capsys) -> None:
    words = ["--raw", str(raw), "--output-folder", str(raw / "out"), "--languages", "de"]
    take = ["--take", "train", "text", "small.de"]
    assert cli.run("corpus extract", [*words, *take, *take]) == 0
    assert (raw / "out" / "train.de").read_text() == "eins\neins\n"
    assert cli.run("corpus extract", [*words, "--take", "dev", "text", "small.de"]) == 1
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert line.startswith("fairseq-sparse corpus extract: error: ") and "dev" in line
    with pytest.raises(SystemExit):
        cli.run("corpus extract", [*words, *take, "--remove-diacritics", "ro"])


def test_a_file_that_is_read_is_never_replaced(raw: Path) -> None:
    text = "ein\u00a0Haus\n".encode()
    for name in ("train.de", "train.en"):
        (raw / name).write_bytes(text)
    for take in ("train text train.de train.en", "train tsv train.de#1 train.en#1"):
        with pytest.raises(RecipeError, match="train.de"):
            extract(raw, raw / "." / "", ["de", "en"], [take.split()])
        assert (raw / "train.de").read_bytes() == (raw / "train.en").read_bytes() == text
    extract(raw, raw, ["de", "en"], ["valid text train.de train.en".split()])
    assert (raw / "valid.de").read_text("utf-8") == "ein Haus\n"
