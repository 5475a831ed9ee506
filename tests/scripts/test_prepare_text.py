"""scripts/prepare_text.py on text that is easy to get wrong."""

from __future__ import annotations

import gzip
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from fairseq import file_utils
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig

import prepare_text

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "prepare_text.py"

# Characters at which Python's splitlines, but no tool for parallel text, ends a line.
SEPARATORS = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1e \r"
LINES = [
    "Ein Hund -- der größte -- läuft.",
    "A \u00a0no-break space & <tags> | [brackets] \"quotes\" 'n' 100%.",
    f"before {SEPARATORS} after",
    "E-mail: well-known, state-of-the-art.",
    "日本語 und ελληνικά, naïve café 🙂",
    "",
    "   ",
    "\x01",
    "the end",
]


def prepare(folder: Path, output: Path, *options: str, check: bool = True):
    prefixes = [
        flag for split in ("train", "valid", "test") for flag in (f"--{split}", str(folder / split))
    ]
    result = subprocess.run(
        [sys.executable, SCRIPT, "--source-lang", "de", "--target-lang", "en", *prefixes]
        + ["--output", output, "--bpe-merges", "30", "--workers", "2", *options],
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    if check:
        assert result.returncode == 0, result.stderr
    return result


def write_corpus(folder: Path, source: list[str], target: list[str]) -> None:
    for split in ("train", "valid", "test"):
        for language, lines in (("de", source), ("en", target)):
            data = "".join(line + "\n" for line in lines).encode()
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(data))


def read(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ein Körper")
    write_corpus(folder, LINES, LINES[::-1])
    prepare(folder, folder / "out")
    return folder


def test_no_line_of_the_test_set_is_lost(prepared: Path) -> None:
    for split in ("valid", "test"):
        for kind in ("tokenized", "bpe"):
            for language in ("de", "en"):
                assert len(read(prepared / "out" / kind / f"{split}.{language}")) == len(LINES)


def test_reference_is_the_raw_text(prepared: Path) -> None:
    raw = gzip.decompress((prepared / "test.en.gz").read_bytes())
    assert (prepared / "out" / "reference" / "test.en").read_bytes() == raw


def test_training_pairs_with_an_empty_side_are_dropped(prepared: Path) -> None:
    empty = {number for number, line in enumerate(LINES) if not line.strip(" \x01")}
    empty |= {len(LINES) - 1 - number for number in empty}
    source, target = (read(prepared / "out" / "bpe" / f"train.{lang}") for lang in ("de", "en"))
    assert len(source) == len(target) == len(LINES) - len(empty)
    assert all(source) and all(target)


def test_text_is_what_fairseq_interactive_would_make(prepared: Path) -> None:
    """--tokenizer moses --bpe subword_nmt, applied to the raw line."""
    tokenizer = MosesTokenizer(MosesTokenizerConfig(source_lang="de", target_lang="en"))
    codes = file_utils.cached_path(str(prepared / "out" / "bpe.codes"))
    bpe = SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=codes))
    expected = [bpe.encode(tokenizer.encode(line)) for line in LINES]
    assert read(prepared / "out" / "bpe" / "test.de") == expected


def test_bpe_can_be_undone(prepared: Path) -> None:
    for language in ("de", "en"):
        joined = [
            (line + " ").replace("@@ ", "").strip()
            for line in read(prepared / "out" / "bpe" / f"test.{language}")
        ]
        assert joined == read(prepared / "out" / "tokenized" / f"test.{language}")


def test_different_line_counts_are_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, LINES, LINES[:-1])
    result = prepare(tmp_path, tmp_path / "out", check=False)
    assert result.returncode == 1
    assert "9 lines of de but 8 of en" in result.stderr


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write_corpus(tmp_path, LINES, LINES)
    (tmp_path / "valid.en.gz").unlink()
    (tmp_path / "valid.en").write_bytes("eins\nfür\n".encode("latin-1"))
    result = prepare(tmp_path, tmp_path / "out", check=False)
    assert result.returncode == 1
    assert f"{tmp_path / 'valid.en'}, line 2: not UTF-8" in result.stderr


def test_plain_and_packed_file_side_by_side_are_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, LINES, LINES)
    (tmp_path / "train.de").write_text("another text\n")
    result = prepare(tmp_path, tmp_path / "out", check=False)
    assert result.returncode == 1
    assert "remove one of them" in result.stderr


def tokens(folder: Path, name: str) -> list[str]:
    """What the BPE units of a file stand for."""
    return [(line + " ").replace("@@ ", "").strip() for line in read(folder / "bpe" / name)]


def test_separate_merges_are_learned_on_their_own_side(tmp_path: Path) -> None:
    german, english = ["abab abab"] * 9, ["cdcd cdcd"] * 9
    write_corpus(tmp_path, german, english)
    prepare(tmp_path, tmp_path / "out", "--separate-bpe", "--bpe-merges", "2")
    for language, letters in (("de", "ab"), ("en", "cd")):
        header, *merges = read(tmp_path / "out" / f"bpe.codes.{language}")
        assert header.startswith("#version") and len(merges) == 2
        assert set("".join(merges)) - set(" </w>") == set(letters)
    assert not (tmp_path / "out" / "bpe.codes").exists()
    assert tokens(tmp_path / "out", "test.en") == english


def test_tokens_are_kept_where_the_text_has_them(tmp_path: Path) -> None:
    german = ["don 't & ' -- 。 「 x-y |", " a　 b c "]
    write_corpus(tmp_path, german, ['Don\'t & "x-y"', "a b c"])
    prepare(tmp_path, tmp_path / "out", "--tokenized", "de")
    expected = ["don 't & ' -- 。 「 x-y |", "a b c"]
    assert read(tmp_path / "out" / "tokenized" / "test.de") == expected
    assert tokens(tmp_path / "out", "test.de") == expected
    assert "&apos;t &amp; &quot;" in read(tmp_path / "out" / "tokenized" / "test.en")[0]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_romanian_loses_its_diacritics_and_no_other(form: str) -> None:
    """With a comma below or a cedilla, precomposed or combining."""
    text = "ȘșȚț ŞşŢţ ĂăÂâÎî"
    assert prepare_text.remove_diacritics(unicodedata.normalize(form, text)) == ("SsTt SsTt AaAaIi")
    others = unicodedata.normalize(form, "üéàćäïç ê ŏ")
    assert prepare_text.remove_diacritics(others) == others


def test_diacritics_are_removed_everywhere_on_one_side(tmp_path: Path) -> None:
    lines = ["Și fraţii săi în câmp"]
    write_corpus(tmp_path, lines, lines)
    prepare(tmp_path, tmp_path / "out", "--remove-diacritics", "en")
    for kind in ("reference", "tokenized"):
        assert read(tmp_path / "out" / kind / "test.en") == ["Si fratii sai in camp"]
        assert read(tmp_path / "out" / kind / "test.de") == lines
    assert tokens(tmp_path / "out", "train.en") == ["Si fratii sai in camp"]


def test_option_for_a_language_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, LINES, LINES)
    result = prepare(tmp_path, tmp_path / "out", "--tokenized", "ja", check=False)
    assert result.returncode == 2
    assert "ja is neither --source-lang nor --target-lang" in result.stderr


def test_few_lines_are_held_at_a_time() -> None:
    """What comes from a corpus is read only as fast as results are taken."""
    read_so_far = 0

    def corpus():
        nonlocal read_so_far
        while read_so_far < 1_000_000:
            read_so_far += 1
            yield ("a", "b")

    results = prepare_text.map_items(
        corpus(), prepare_text._start_tokenizers, (("de", "en"), {"de", "en"}, set()), 1, "test"
    )
    taken = [next(results) for _ in range(5000)]
    results.close()
    assert taken == [("a", "b")] * 5000
    assert read_so_far <= 5000 + 2 * prepare_text.ITEMS_PER_TASK * prepare_text.TASKS_PER_WORKER
