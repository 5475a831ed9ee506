"""The translation data sets, prepared from miniatures in their original layout."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from sacrebleu.dataset import DATASETS

import archives
import recipes
from file_server import serve
from miniatures import LAYOUTS, TOKENIZED, UNPACKED, Splits, build, languages_of

SHARED = recipes.EXAMPLES / "datasets" / "shared"

# Prefix of data sets -> their list of raw files, if it does not have the data set's name.
LISTS = {
    "multi30k": "multi30k",
    "iwslt17": "iwslt17_de_en",
    "kftt": "kftt_ja_en",
    "wmt": "wmt",
}
# Prefix of data sets -> limits of training pairs: tokens per side, and ratio of the two lengths.
# The first prefix that matches applies.
LIMITS = {
    "iwslt14": (175, 1.5),
    "wmt13": (250, 1.5),
    "wmt14_en_fr": (250, 1.5),
    "wmt14": (250, None),
    "wmt18": (250, None),
    "": (None, None),
}
WITHOUT_DIACRITICS = ("wmt16_ro_en", "wmt16_en_ro")
SEPARATE_MERGES = (*WITHOUT_DIACRITICS, "wmt18_zh_en")
RELA = ("wmt14_en_de_32k", "wmt14_en_fr", "wmt16_ro_en_32k", "wmt18")
SEPARATE_DICTIONARIES = (*SEPARATE_MERGES, *RELA, "iwslt17", "kftt")
# Prepared by two processes, whose results must stay in order; others by one, which is as fast.
BY_TWO = ("multi30k_de_en", "wmt16_ro_en", "wmt18_zh_en")
PLAIN_ROMANIAN = str.maketrans("âăîșşțţÎȘŞȚŢ", "aaissttISSTT")


def arguments(dataset: str, folder: Path) -> list[object]:
    options = ["--cpu", "--data-dir", folder / "Daten, hier", "--run-dir", folder / "run"]
    return ["run.sh", dataset, "softmax", *options, "--stages", "prepare"]


def prepare(dataset: str, folder: Path, **variables: object) -> subprocess.CompletedProcess:
    return recipes.run(*arguments(dataset, folder), BPE_MERGES=30, **variables)


def list_of(dataset: str) -> Path:
    names = [name for start, name in LISTS.items() if dataset.startswith(start)]
    return SHARED / f"{names[0] if names else dataset}.archives"


def without_checksums(dataset: str, path: Path) -> Path:
    """Write the data set's list of raw files without checksums, which no miniature can match."""
    rows = [row.split() for row in list_of(dataset).read_text().splitlines() if row[0] != "#"]
    path.write_text("".join(f"- {' '.join(row[1:])}\n" for row in rows))
    return path


def lines_of(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


class Prepared(NamedTuple):
    """A data set, the sentences in its archives, and the folder of the prepared data."""

    dataset: str
    sentences: Splits
    folder: Path

    @property
    def languages(self) -> tuple[str, str]:
        return languages_of(self.dataset)


# Data sets whose archives are like those of others, and Chinese, whose segmentation loads for long.
SLOW = (
    *("multi30k_en_fr", "iwslt17_en_de", "kftt_en_ja", "wmt14_en_de", "wmt14_en_de_32k"),
    *("wmt16_en_ro", "wmt16_ro_en_32k", "wmt18_en_fi", "wmt18_zh_en"),
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in LAYOUTS],
)
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Prepare each data set from archives that are fetched from a mirror."""
    dataset = request.param
    if dataset == "wmt18_zh_en":
        pytest.importorskip("jieba")
    folder = tmp_path_factory.mktemp(dataset)
    mirror = folder / "mirror"
    mirror.mkdir()
    sentences = build(dataset, mirror)
    with serve(mirror) as address:
        sums = without_checksums(dataset, folder / "sums")
        workers = 2 if dataset in BY_TWO else 1
        prepare(dataset, folder, BASE_URL=address, CHECKSUMS=sums, WORKERS=workers)
    return Prepared(dataset, sentences, folder / "Daten, hier" / "prepared")


@pytest.mark.slow_except("multi30k_de_en", "iwslt14_de_en", "kftt_ja_en")
def test_sentences_are_those_of_the_archives(prepared: Prepared) -> None:
    if prepared.dataset.startswith(UNPACKED):
        pytest.skip("its files are not in archives, and read as they are")
    for split, sides in prepared.sentences.items():
        for language, lines in sides.items():
            assert lines_of(prepared.folder / "raw" / f"{split}.{language}") == lines


def kept(prepared: Prepared) -> dict[str, list[tuple[str, ...]]]:
    """Return the pairs of each split that a model must see; a word is one token or a few."""
    pairs = {
        split: list(zip(*sides.values(), strict=True))
        for split, sides in prepared.sentences.items()
    }
    longest, ratio = next(LIMITS[name] for name in LIMITS if prepared.dataset.startswith(name))

    def fits(pair: tuple[str, ...]) -> bool:
        shorter, longer = sorted(len(side.split()) for side in pair)
        return shorter > 0 and not (
            (longest and longer > longest) or (ratio and longer > ratio * shorter)
        )

    train = [pair for pair in pairs["train"] if fits(pair)]
    if prepared.dataset.startswith("iwslt14"):
        pairs["valid"] = train[22::23]
        train = [pair for number, pair in enumerate(train, start=1) if number % 23]
    return pairs | {"train": train}


def test_both_sides_keep_step_to_the_end(prepared: Prepared) -> None:
    for split, pairs in kept(prepared).items():
        for language in prepared.languages:
            assert len(lines_of(prepared.folder / "bpe" / f"{split}.{language}")) == len(pairs)
    assert len(kept(prepared)["train"]) < len(prepared.sentences["train"]["en"]) or (
        prepared.dataset.startswith((*TOKENIZED, *UNPACKED))
    )
    names = {path.name for path in (prepared.folder / "bin").glob("*.*-*.*")}
    assert names == {
        f"{split}.{'-'.join(prepared.languages)}.{language}.{kind}"
        for split in ("train", "valid", "test")
        for language in prepared.languages
        for kind in ("bin", "idx")
    }


def test_tokens_are_those_of_the_pairs_that_are_kept(prepared: Prepared) -> None:
    """Only letters are compared, because Moses changes quotation marks and dashes."""

    def letters(text: str) -> str:
        text = text.replace("&quot;", "").replace("&apos;", "'").replace("&amp;", "&")
        return "".join(char for char in text if char.isalpha())

    for split, pairs in kept(prepared).items():
        for side, language in enumerate(prepared.languages):
            units = lines_of(prepared.folder / "bpe" / f"{split}.{language}")
            tokens = [(line + " ").replace("@@ ", "").strip() for line in units]
            assert tokens == lines_of(prepared.folder / "tokenized" / f"{split}.{language}")
            text = [pair[side] for pair in pairs]
            if language == "ro" and prepared.dataset in WITHOUT_DIACRITICS:
                text = [line.translate(PLAIN_ROMANIAN) for line in text]
            assert list(map(letters, tokens)) == list(map(letters, text))
            if prepared.dataset.startswith(TOKENIZED):
                assert tokens == text
            elif split == "test" and any('"' in line for line in text) and language != "zh":
                assert any("&quot;" in line for line in tokens)  # as Moses writes it
            if language == "zh":
                assert any(" " in line for line in tokens)


def test_reference_is_the_text_of_the_test_set(prepared: Prepared) -> None:
    target = prepared.languages[1]
    reference = prepared.sentences["test"][target]
    if target == "ro":
        reference = [line.translate(PLAIN_ROMANIAN) for line in reference]
    assert lines_of(prepared.folder / "reference" / f"test.{target}") == reference


def test_codes_and_dictionaries(prepared: Prepared) -> None:
    codes = {path.name for path in prepared.folder.glob("bpe.codes*")}
    separate = {f"bpe.codes.{language}" for language in prepared.languages}
    assert codes == (separate if prepared.dataset in SEPARATE_MERGES else {"bpe.codes"})
    dictionaries = [
        (prepared.folder / "bin" / f"dict.{lang}.txt").read_bytes() for lang in prepared.languages
    ]
    is_separate = prepared.dataset.startswith(SEPARATE_DICTIONARIES)
    assert (dictionaries[0] != dictionaries[1]) == is_separate


@pytest.fixture(scope="module")
def wmt_archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("wmt")
    build("wmt16_ro_en", raw)
    return raw


@pytest.fixture
def wmt(wmt_archives: Path, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """Return a folder of the archives of wmt16_ro_en, and the variables that select it."""
    raw = tmp_path / "raw"
    shutil.copytree(wmt_archives, raw)
    sums = without_checksums("wmt16_ro_en", tmp_path / "sums")
    return raw, {"RAW_DIR": raw, "CHECKSUMS": sums}


@pytest.fixture(scope="module")
def prepared_at_once(wmt_archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("at once")
    prepare("wmt16_ro_en", folder, RAW_DIR=wmt_archives)
    return folder / "Daten, hier" / "prepared"


def test_bad_archive_is_named_and_leaves_nothing_in_the_way(wmt, tmp_path: Path) -> None:
    raw, variables = wmt
    archive = raw / "SETIMES.en-ro.txt.zip"
    good, members = archive.read_bytes(), [f"SETIMES.en-ro.{language}" for language in ("ro", "en")]
    archive.write_bytes(archives.zipped(dict(zip(members, (b"unu\ndoi\n", b"one\n"), strict=True))))
    result = prepare("wmt16_ro_en", tmp_path, check=False, **variables)
    assert result.returncode != 0 and str(raw) in result.stdout
    assert archive.name in result.stdout
    data = tmp_path / "Daten, hier"
    assert not (data / "prepared").exists()
    archive.write_bytes(good)
    prepare("wmt16_ro_en", tmp_path, **variables)
    assert not (data / "prepared.partial").exists()


def test_killed_preparation_resumes(wmt, prepared_at_once: Path, tmp_path: Path) -> None:
    _, variables = wmt
    process = subprocess.Popen(
        recipes.command(*arguments("wmt16_ro_en", tmp_path)),
        env=recipes.environment(BPE_MERGES=30, **variables, PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )
    with process:
        for line in process.stdout:
            if line.startswith("learn BPE:"):
                os.killpg(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    resumed = prepare("wmt16_ro_en", tmp_path, **variables)
    assert "unpack test: done already" in resumed.stdout
    for path in prepared_at_once.rglob("*"):
        if path.is_file() and path.name != "preprocess.log":
            other = tmp_path / "Daten, hier" / "prepared" / path.relative_to(prepared_at_once)
            assert other.read_bytes() == path.read_bytes()


def test_published_sum_is_checked(wmt, tmp_path: Path) -> None:
    raw, _ = wmt
    with serve(raw) as address:
        result = prepare("wmt16_ro_en", tmp_path, check=False, BASE_URL=address)
    assert result.returncode != 0 and "wmt16-training-parallel-ep-v8.tgz" in result.stdout
    assert not list((tmp_path / "Daten, hier" / "raw").glob("wmt16-*"))


@pytest.mark.slow
def test_damaged_file_without_a_published_sum_is_fetched_again(wmt, tmp_path: Path) -> None:
    raw, variables = wmt
    del variables["RAW_DIR"]
    archive = raw / "SETIMES.en-ro.txt.zip"
    good = archive.read_bytes()
    archive.write_bytes(good[:-200])
    with serve(raw) as address:
        result = prepare("wmt16_ro_en", tmp_path, check=False, BASE_URL=address, **variables)
        assert result.returncode != 0
        assert "SETIMES.en-ro.txt.zip.damaged" in result.stdout
        archive.write_bytes(good)
        prepare("wmt16_ro_en", tmp_path, BASE_URL=address, **variables)


def test_done_preparation_is_not_done_again(wmt, prepared_at_once: Path) -> None:
    folder = prepared_at_once.parents[1]
    raw, _ = wmt
    assert "done already" in prepare("wmt16_ro_en", folder, RAW_DIR=raw).stdout


def test_published_sums_are_those_of_sacrebleu() -> None:
    known = {
        address: md5
        for dataset in DATASETS.values()
        for address, md5 in zip(dataset.data, dataset.md5 or [], strict=False)
    }
    published = [
        row.split()
        for path in SHARED.glob("*.archives")
        for row in path.read_text().splitlines()
        if row[0] not in "#-"
    ]
    checked = [
        (known[address[0]], md5)
        for md5, _, *address in published
        if len(md5) == 32 and known.keys() & {*address}
    ]
    assert len(checked) == 11
    for expected, md5 in checked:
        assert md5 == expected


def test_no_file_has_two_rows_and_no_name_two_files() -> None:
    rows = [
        row.split()
        for path in SHARED.glob("*.archives")
        for row in path.read_text().splitlines()
        if row[0] != "#"
    ]
    names, addresses = [row[1] for row in rows], [row[2] for row in rows if len(row) > 2]
    assert len(set(names)) == len(names)
    assert len(set(addresses)) == len(addresses)


def test_settings_say_what_was_taken_from_which_archive(prepared: Prepared) -> None:
    settings = [line.split() for line in lines_of(prepared.folder / "settings")]
    takes = [words for words in settings if words[0] == "take"]
    raw = {words[1] for words in settings if words[0] == "raw"}
    if prepared.dataset.startswith(UNPACKED):
        assert len(raw) == 6 and not takes
        return
    assert {take[1] for take in takes} == {*prepared.sentences}
    assert {place.partition("!")[0] for take in takes for place in take[3:]} == raw
