"""scripts/prepare_text.py on text that is easy to get wrong."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
from fairseq import file_utils
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from subword_nmt.learn_bpe import learn_bpe

import corpus_workers
import prepare_text
from corpus_files import ParallelFiles
from corpus_tokens import remove_diacritics
from fork_python import PYTHON

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


def inputs(folder: Path, hold_out: int | None = None) -> list[str]:
    """Return the options that name languages and text."""
    words = ["--source-lang", "de", "--target-lang", "en", "--bpe-merges", "30", "--workers", "2"]
    words += ["--train", str(folder / "train"), "--test", str(folder / "test")]
    return words + (
        ["--hold-out", str(hold_out)] if hold_out else ["--valid", str(folder / "valid")]
    )


def prepare(
    folder: Path, output: Path, *options: str, check: bool = True, hold_out: int | None = None
):
    result = subprocess.run(
        [PYTHON, SCRIPT, *inputs(folder, hold_out), "--output", output, *options],
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
    """Compare it with the raw line under --tokenizer moses --bpe subword_nmt."""
    tokenizer = MosesTokenizer(MosesTokenizerConfig(source_lang="de", target_lang="en"))
    codes = file_utils.cached_path(str(prepared / "out" / "bpe.codes"))
    bpe = SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=codes))
    expected = [bpe.encode(tokenizer.encode(line)) for line in LINES]
    assert read(prepared / "out" / "bpe" / "test.de") == expected


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "test.de"
    path.write_text("\ufeffein Hund\n\ufeffeine Katze\n", encoding="utf-8")
    assert list(prepare_text.text_lines(path)) == ["ein Hund", "\ufeffeine Katze"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "train.de"),  # a plain and a packed file side by side
        (("--tokenized", "ja"), "ja"),  # not a language of the corpus
        (("--jieba", "de"), "jieba"),  # not installed
        (("--long-test",), "--max-tokens"),
        (("--long-test", "--max-tokens", "99"), "99"),  # no pair is longer
    ],
)
def test_what_cannot_be_prepared_is_refused(
    options: tuple, named: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    write_corpus(tmp_path, LINES, LINES[::-1])
    if not options:
        (tmp_path / "train.de").write_text("another text\n")
    monkeypatch.setattr(prepare_text, "jieba_is_there", lambda: False)
    try:
        status = prepare_text.main([*inputs(tmp_path), "--output", str(tmp_path / "out"), *options])
    except SystemExit as end:
        status = end.code
    assert status == (1 if not options or "99" in options else 2)
    assert named in capsys.readouterr().err.splitlines()[-1]


def tokens(folder: Path, name: str) -> list[str]:
    """Return the tokens of a file, joined from its BPE units."""
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
    """The letters have a comma below or a cedilla, precomposed or combining."""
    text = "ȘșȚț ŞşŢţ ĂăÂâÎî"
    assert remove_diacritics(unicodedata.normalize(form, text)) == ("SsTt SsTt AaAaIi")
    others = unicodedata.normalize(form, "üéàćäïç ê ŏ")
    assert remove_diacritics(others) == others


def test_diacritics_are_removed_everywhere_on_one_side(tmp_path: Path) -> None:
    lines = ["Și fraţii săi în câmp"]
    write_corpus(tmp_path, lines, lines)
    prepare(tmp_path, tmp_path / "out", "--remove-diacritics", "en")
    for kind in ("reference", "tokenized"):
        assert read(tmp_path / "out" / kind / "test.en") == ["Si fratii sai in camp"]
        assert read(tmp_path / "out" / kind / "test.de") == lines
    assert tokens(tmp_path / "out", "train.en") == ["Si fratii sai in camp"]


def test_few_lines_are_held_at_a_time() -> None:
    """A corpus is read only as fast as results are taken."""
    read_so_far = 0

    def corpus():
        nonlocal read_so_far
        while read_so_far < 1_000_000:
            read_so_far += 1
            yield ("a", "b")

    start = prepare_text.start_tokenizers, (("de", "en"), ("space", "space"), set())
    results = corpus_workers.map_items(corpus(), *start, workers=1)
    taken = [next(results) for _ in range(5000)]
    results.close()
    assert taken == [("a", "b")] * 5000
    assert read_so_far <= 5000 + 2 * corpus_workers.ITEMS_PER_TASK * corpus_workers.TASKS_PER_WORKER


def whole_output(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow_except("13")
@pytest.mark.parametrize("lines_written", [2, 13, 40])
def test_interrupted_preparation_goes_on_and_gives_the_same(
    lines_written: int, tmp_path: Path, monkeypatch
) -> None:
    """It is interrupted after every ``lines_written`` lines until it is done."""
    write_corpus(tmp_path, LINES, LINES[::-1])
    monkeypatch.setattr(prepare_text, "LINES_PER_SAVE", 2)
    arguments = inputs(tmp_path)
    assert prepare_text.main([*arguments, "--output", str(tmp_path / "at once")]) == 0

    write = ParallelFiles.write
    left = lines_written

    def write_some(files: ParallelFiles, lines: list[str], first: int = 0) -> None:
        nonlocal left
        if left == 0:
            left = lines_written
            raise KeyboardInterrupt
        left -= 1
        write(files, lines, first)

    monkeypatch.setattr(ParallelFiles, "write", write_some)
    interruptions = 0
    while True:
        try:
            assert prepare_text.main([*arguments, "--output", str(tmp_path / "out")]) == 0
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions > 0
    assert whole_output(tmp_path / "out") == whole_output(tmp_path / "at once")


def test_merges_are_those_of_subword_nmt_on_the_text(prepared: Path) -> None:
    text = [
        line
        for language in ("de", "en")
        for line in read(prepared / "out" / "tokenized" / f"train.{language}")
    ]
    expected = io.StringIO()
    learn_bpe(text, expected, 30)
    assert (prepared / "out" / "bpe.codes").read_text() == expected.getvalue()


def test_merges_are_learned_on_the_most_frequent_words(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prepare_text, "WORDS_LEARNED_FROM", 2)
    for language, words in (("de", "aa aa aa bb bb cc"), ("en", "aa dd bb")):
        (tmp_path / f"train.{language}").write_text(f"{words}\n")
        for split in ("valid", "test"):
            (tmp_path / f"{split}.{language}").write_text("x\n")
    assert prepare_text.main([*inputs(tmp_path), "--output", str(tmp_path / "out")]) == 0
    assert read(tmp_path / "out" / "bpe.codes")[1:] == ["a a</w>", "b b</w>"]


@pytest.mark.parametrize("long_test", [False, True])
@pytest.mark.parametrize("hold_out", [None, 3])
def test_cleaning_and_holding_out(hold_out: int | None, long_test: bool, tmp_path: Path) -> None:
    """Compared with brute force, on pairs of all lengths from 0 to 7 words."""
    pairs = [("aa " * source, "bb " * target) for source in range(8) for target in range(8)]
    for language, side in (("de", 0), ("en", 1)):
        lines = "".join(f"{pair[side]}{'.' * bool(pair[side])}\n" for pair in pairs)
        (tmp_path / f"train.{language}").write_text(lines)
        for split in ("valid", "test"):
            (tmp_path / f"{split}.{language}").write_text(lines)
    options = ["--max-tokens", "6", "--max-ratio", "1.5"] + ["--long-test"] * long_test
    prepare(tmp_path, tmp_path / "out", *options, hold_out=hold_out)
    # A full stop is a token of its own.
    lengths = [tuple(len(side.split()) + bool(side) for side in pair) for pair in pairs]
    full = [length for length in lengths if min(length) > 0]
    short = [length for length in full if max(length) <= 6]
    kept = [length for length in short if max(length) <= 1.5 * min(length)]
    held_out = kept[hold_out - 1 :: hold_out] if hold_out else lengths
    train = [
        length for number, length in enumerate(kept, start=1) if not hold_out or number % hold_out
    ]
    splits = {"train": train, "valid": held_out, "test": lengths}
    if long_test:
        splits["long"] = [length for length in full if max(length) > 6]
    for split, expected in splits.items():
        sides = [read(tmp_path / "out" / "tokenized" / f"{split}.{lang}") for lang in ("de", "en")]
        found = [tuple(len(side.split()) for side in pair) for pair in zip(*sides, strict=True)]
        assert found == expected
        for language, side in zip(("de", "en"), sides, strict=True):
            assert tokens(tmp_path / "out", f"{split}.{language}") == side
    reference = tmp_path / "out" / "reference"
    assert {path.name.split(".")[0] for path in reference.iterdir()} <= set(splits)
    if long_test:  # as in the raw file, where the full stop is not yet a token
        raw = [
            pair for pair, length in zip(pairs, lengths, strict=True) if length in splits["long"]
        ]
        for language, side in (("de", 0), ("en", 1)):
            assert read(reference / f"long.{language}") == [f"{pair[side]}." for pair in raw]


def test_sides_that_are_out_of_step_are_noticed(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "copy")
    with open(tmp_path / "copy" / "out" / "bpe" / "train.de", "a") as handle:
        handle.write("one more\n")
    result = prepare(tmp_path / "copy", tmp_path / "copy" / "out", check=False)
    assert result.returncode == 1
    assert "train.de" in result.stderr


def test_killed_worker_ends_the_preparation_with_a_message(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    def killed(*_):
        raise corpus_workers.WorkerLost("a process of the preparation was killed")

    write_corpus(tmp_path, LINES, LINES[::-1])
    monkeypatch.setattr(prepare_text, "map_items", killed)
    arguments = inputs(tmp_path)
    assert prepare_text.main([*arguments, "--output", str(tmp_path / "out")]) == 1
    assert "was killed" in capsys.readouterr().err


@pytest.mark.slow
def test_words_of_chinese_are_those_of_jieba(tmp_path: Path) -> None:
    jieba = pytest.importorskip("jieba")
    chinese = ["我来到北京清华大学。", " 小明 在 BBC 工作 ， 3.5% ", "他说：“你好！”"]
    write_corpus(tmp_path, chinese * 2, ["ab"] * 6)
    prepare(tmp_path, tmp_path / "out", "--jieba", "de")
    expected = [" ".join(" ".join(jieba.cut(line)).split()) for line in chinese * 2]
    assert read(tmp_path / "out" / "tokenized" / "test.de") == expected
