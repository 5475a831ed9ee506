"""corpora/clean.py, and the tokens that it cleans."""

from __future__ import annotations

import subprocess
import tracemalloc
from pathlib import Path

import pytest
from fairseq import file_utils
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig

from fairseq_sparse.commands import cli
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes.corpora.clean import clean_pairs, split_text
from fairseq_sparse.recipes.corpora.extract import extract
from fork_python import PYTHON

LANGUAGES = ("de", "en")
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
SPLITS = ("train", "valid", "test")
FILES = {f"{split}_{language}": ["a", "b b b"] for split in SPLITS for language in LANGUAGES}


def write(folder: Path, **texts: list[str]) -> None:
    """Write files; ``train_de`` is ``train.de``."""
    folder.mkdir(exist_ok=True)
    for name, lines in texts.items():
        text = "".join(f"{line}\n" for line in lines)
        (folder / name.replace("_", ".")).write_bytes(text.encode())


def read(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*")}


@pytest.mark.parametrize("long_test", [False, True])
@pytest.mark.parametrize("hold_out", [0, 3])
def test_cleaning_and_holding_out(hold_out: int, long_test: bool, tmp_path: Path) -> None:
    """Compared with brute force, on pairs of all lengths from 0 to 7 words."""
    lengths = [(source, target) for source in range(8) for target in range(8)]
    words = ("aa", "bb")
    for language, word, side in zip(LANGUAGES, words, (0, 1), strict=True):
        lines = [" ".join([word] * length[side]) for length in lengths]
        for split in ("train", "test") if hold_out else ("train", "valid", "test"):
            write(tmp_path / "tokens", **{f"{split}_{language}": lines})
        write(tmp_path / "text", **{f"train_{language}": [f"<{line}>" for line in lines]})
    text = tmp_path / "text" if long_test else None
    clean_pairs(tmp_path / "tokens", tmp_path / "out", LANGUAGES, 6, 1.5, hold_out, text)
    full = [length for length in lengths if min(length) > 0]
    kept = [length for length in full if max(length) <= min(6, 1.5 * min(length))]
    train = [length for number, length in enumerate(kept, 1) if not hold_out or number % hold_out]
    valid = kept[hold_out - 1 :: hold_out] if hold_out else lengths
    splits = {"train": train, "valid": valid, "test": lengths}
    if long_test:
        splits["long"] = [length for length in full if max(length) > 6]
    assert names(tmp_path / "out") == {f"{split}.{lang}" for split in splits for lang in LANGUAGES}
    for split, expected in splits.items():
        sides = [read(tmp_path / "out" / f"{split}.{language}") for language in LANGUAGES]
        pairs = zip(*sides, strict=True)
        assert [tuple(len(side.split()) for side in pair) for pair in pairs] == expected
        if split == "long":
            for language, side in zip(LANGUAGES, sides, strict=True):
                assert read(text / f"long.{language}") == [f"<{line}>" for line in side]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"train_de": ["a"] * 3}, "3 lines in .*train.de but 2 lines in .*train.en"),
        ({"valid_en": ["a"] * 3}, "valid"),
        ({"test_de": []}, "test"),
        ({"train_de": ["", ""]}, "train.de"),
    ],
)
def test_what_cannot_be_cleaned_is_refused(change: dict, named: str, tmp_path: Path) -> None:
    write(tmp_path / "in", **{**FILES, **change})
    with pytest.raises(RecipeError, match=named):
        clean_pairs(tmp_path / "in", tmp_path / "out", LANGUAGES)
    assert not [name for name in names(tmp_path / "out") if name.startswith(named[:4])]


def test_no_long_pair_and_no_pair_to_hold_out_are_refused(tmp_path: Path) -> None:
    write(tmp_path, **FILES)
    with pytest.raises(RecipeError, match="9"):
        clean_pairs(tmp_path, tmp_path / "out", LANGUAGES, 9, long_text=tmp_path)
    with pytest.raises(RecipeError):
        clean_pairs(tmp_path, tmp_path / "out", LANGUAGES, hold_out=3)
    assert not names(tmp_path / "out") & {"train.de", "long.de"}


def test_the_input_is_never_replaced(tmp_path: Path) -> None:
    write(tmp_path / "in", **FILES)
    write(tmp_path / "long", **FILES)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    for arguments in (("in", "in"), ("in", "long")):
        folders = [tmp_path / name for name in arguments]
        with pytest.raises(RecipeError, match="another folder"):
            clean_pairs(*folders, LANGUAGES, 9, hold_out=2, long_text=tmp_path / "long")
    with pytest.raises(RecipeError, match="another folder"):
        split_text(tmp_path / "in", tmp_path / "in", "en", 2)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*")} == before


def test_bad_utf8_is_named(tmp_path: Path) -> None:
    write(tmp_path, train_en=["a", "b"], valid_en=["a"])
    (tmp_path / "test.en").write_bytes(b"a\nf\xfcr\n")
    with pytest.raises(RecipeError, match=r"test.en, line 2"):
        split_text(tmp_path, tmp_path / "out", "en")


@pytest.mark.parametrize("paragraphs", [False, True])
def test_a_text_is_split_in_its_order(paragraphs: bool, tmp_path: Path) -> None:
    lines = [f"{number} ." for number in range(60)]
    texts = [f"{line} <nl> {line}" for line in lines] if paragraphs else lines
    blocks = ["\n".join([line, line, "", " "]) for line in lines] if paragraphs else lines
    write(tmp_path, train_en=["", *blocks] if paragraphs else blocks)
    split_text(tmp_path, tmp_path / "out", "en", 20, paragraphs)
    parts = [read(tmp_path / "out" / f"{split}.en") for split in ("train", "valid", "test")]
    assert parts == [texts[:54], texts[54:57], texts[57:]]


def test_lines_of_a_text_are_kept_and_a_split_without_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path, train_en=["", " a  b ", "", "c"], valid_en=["d", ""], test_en=["", ""])
    with pytest.raises(RecipeError, match="test.en"):
        split_text(tmp_path, tmp_path / "out", "en")
    assert names(tmp_path / "out") == {"train.en", "valid.en"}
    assert read(tmp_path / "out" / "train.en") == ["", "a b", "", "c"]
    with pytest.raises(RecipeError, match="4 texts"):
        split_text(tmp_path, tmp_path / "out", "en", 20)


def run(module: str, *arguments: str, source: Path, target: Path) -> None:
    """Run a command of a library, such as sacremoses, from one file to another."""
    main = {"sacremoses.cli": "cli", "subword_nmt.subword_nmt": "main"}[module]
    target.parent.mkdir(exist_ok=True)
    with open(source) as stdin, open(target, "w") as stdout:
        command = [PYTHON, "-c", f"import {module} as it; it.{main}()", *arguments]
        subprocess.run(command, stdin=stdin, stdout=stdout, check=True)


def test_tokens_are_those_of_fairseq_interactive(tmp_path: Path) -> None:
    """Compared with the raw line under --tokenizer moses --bpe subword_nmt."""
    write(tmp_path, raw=LINES)
    extract(tmp_path, tmp_path, ("de",), [["train", "text", "raw"]])
    tokens, clean = tmp_path / "tokens", tmp_path / "out" / "train.de"
    moses = ("sacremoses.cli", "-l", "de", "-j", "1", "-q", "tokenize", "-a")
    run(*moses, source=tmp_path / "train.de", target=tokens / "train.de")
    write(tokens, valid_de=["a"], test_de=["a"])
    split_text(tokens, tmp_path / "out", "de")
    codes, units = tmp_path / "codes", tmp_path / "units"
    run("subword_nmt.subword_nmt", "learn-bpe", "-s", "30", source=clean, target=codes)
    run("subword_nmt.subword_nmt", "apply-bpe", "-c", str(codes), source=clean, target=units)
    tokenizer = MosesTokenizer(MosesTokenizerConfig(source_lang="de", target_lang="en"))
    codes = file_utils.cached_path(str(codes))
    bpe = SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=codes))
    assert read(units) == [bpe.encode(tokenizer.encode(line)) for line in LINES]


@pytest.mark.slow
def test_words_of_chinese_are_those_of_jieba(tmp_path: Path) -> None:
    jieba = pytest.importorskip("jieba")
    chinese = ["我来到北京清华大学。", " 小明 在 BBC 工作 ， 3.5% ", "他说：“你好！”"]
    write(tmp_path, raw=chinese)
    extract(tmp_path, tmp_path, ("zh",), [["train", "text", "raw"]])
    command = [PYTHON, "-m", "jieba", "-q", "-d", " ", str(tmp_path / "train.zh")]
    words = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.zh").write_bytes(words)
    split_text(tmp_path, tmp_path / "out", "zh")
    expected = [" ".join(" ".join(jieba.cut(line)).split()) for line in chinese]
    assert read(tmp_path / "out" / "test.zh") == expected


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        lines = [f"Satz {number} mit ein paar Worten" for number in range(count)]
        files = {f"{split}_{lang}": lines for split in ("train", "test") for lang in LANGUAGES}
        write(tmp_path, **files)
        tracemalloc.start()
        try:
            clean_pairs(tmp_path, tmp_path / "out", LANGUAGES, hold_out=3)
            split_text(tmp_path, tmp_path / "out", "en", 3)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    fewer = peak(10_000)  # enough to fill all buffers
    assert peak(30_000) - fewer < 20_000  # less than one byte per line


@pytest.mark.parametrize(
    "flags",
    ["de --max-tokens 9", "de en --paragraphs", "de en fr", "de en --long-test x"],
)
def test_flags_that_do_not_go_together_are_refused(flags: str, capsys) -> None:
    words = f"--input x --output x --languages {flags}".split()
    with pytest.raises(SystemExit):
        cli.run("corpus clean", words)
    assert "--" in capsys.readouterr().err.splitlines()[-1]


def test_command_line(tmp_path: Path) -> None:
    write(tmp_path, **FILES)
    words = ["--input", str(tmp_path), "--output-folder", str(tmp_path / "out"), "--languages"]
    long = ["--max-tokens", "2", "--long-test", str(tmp_path)]
    assert cli.run("corpus clean", [*words, *LANGUAGES, *long]) == 0
    assert read(tmp_path / "out" / "train.en") == ["a"]
    assert read(tmp_path / "long.en") == ["b b b"]
    assert cli.run("corpus clean", [*words, "en"]) == 0
    assert read(tmp_path / "out" / "train.en") == ["a", "b b b"]
