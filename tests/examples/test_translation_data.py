"""The data sets that are made from archives, on miniatures in the layout of their homes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

import archives
from file_server import serve

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "examples" / "run.sh"
SHARED = ROOT / "examples" / "datasets" / "shared"

Sides = dict[str, list[str]]  # language -> sentences
Splits = dict[str, Sides]

WORDS = {
    "de": "Hund Straße größer läuft Übung über “nie” Tür–Tor".split(),
    "en": "dog street bigger runs exercise over “never” door".split(),
    "ro": "câine stradă și așa țară În şcoală ţară Ștefan Ţara".split(),
    "ja": "京都 は 、 寺 が 多い 。 源氏".split(),
}
PLAIN_ROMANIAN = str.maketrans("âăîșşțţÎȘŞȚŢ", "aaissttISSTT")


def corpus(languages: tuple[str, str], sizes: dict[str, int]) -> Splits:
    """Sentences for each split, the same number of words on both sides."""
    draw = random.Random(1)
    splits = {split: {language: [] for language in languages} for split in sizes}
    for split, size in sizes.items():
        for _ in range(size):
            chosen = [draw.randrange(8) for _ in range(6)]
            for language in languages:
                splits[split][language].append(" ".join(WORDS[language][word] for word in chosen))
    return splits


def escape(lines: list[str]) -> list[str]:
    return [line.replace("“", "&quot;").replace("”", "&quot;") for line in lines]


def iwslt17(raw: Path) -> Splits:
    """WIT3: one archive for each direction, and test archives that have the source only."""
    dev = ["dev2010", *(f"tst{year}" for year in range(2010, 2016))]
    sizes = {"train": 60, **dict.fromkeys(dev, 3), "tst2017": 5}
    text = corpus(("de", "en"), sizes)
    for source, target in (("de", "en"), ("en", "de")):
        pair = f"{source}-{target}"
        members = {f"{pair}/": b"", f"{pair}/README": b"TED talks\n"}
        for language in ("de", "en"):
            talk = ["<url>http://www.ted.com/1</url>", "<title>Not a sentence</title>"]
            lines = [*talk, *text["train"][language][:30], *talk, *text["train"][language][30:]]
            members[f"{pair}/train.tags.{pair}.{language}"] = archives.text(lines)
            for part in dev:
                name = f"{pair}/IWSLT17.TED.{part}.{pair}.{language}.xml"
                members[name] = archives.sgm(escape(text[part][language]))
        (raw / f"trnted.{pair}.tgz").write_bytes(archives.tar(members))
        name = f"{pair}/IWSLT17.TED.tst2017.{pair}.{source}.xml"
        test = {name: archives.sgm(escape(text["tst2017"][source]))}
        (raw / f"ted-test.{pair}.tgz").write_bytes(archives.tar(test))
    straight = str.maketrans("“”", '""')
    for part in [*dev, "tst2017"]:
        for language, lines in text[part].items():
            text[part][language] = [line.translate(straight) for line in lines]
    valid = {lang: [line for part in dev for line in text[part][lang]] for lang in ("de", "en")}
    return {"train": text["train"], "valid": valid, "test": text["tst2017"]}


def kftt(raw: Path) -> Splits:
    text = corpus(("ja", "en"), {"train": 60, "valid": 6, "test": 5})
    members = {}
    for split, name in (("train", "train.cln"), ("valid", "dev"), ("test", "test")):
        for language in ("ja", "en"):
            # Tokens that Moses would escape or split otherwise.
            text[split][language] = [f"{line} don 't & ''" for line in text[split][language]]
            path = f"kftt-data-1.0/data/tok/kyoto-{name}.{language}"
            members[path] = archives.text(text[split][language])
            members[path.replace("tok", "orig")] = b"another text\n"
    (raw / "kftt-data-1.0.tar.gz").write_bytes(archives.tar(members))
    return text


def wmt16(raw: Path) -> Splits:
    """With a byte order mark, CR LF, Latin-1, a blank side, and what looks like ends of lines."""
    text = corpus(("ro", "en"), {"europarl": 40, "setimes": 20, "valid": 6, "test": 5})
    text["europarl"]["en"][3] = ""
    text["setimes"]["en"][2] = "naïve café"
    europarl, setimes = {}, {}
    for language in ("ro", "en"):
        europarl[f"training-parallel-ep-v8/europarl-v8.ro-en.{language}"] = (
            b"\xef\xbb\xbf" + archives.text(text["europarl"][language], end="\r\n")
        )
        lines = archives.text(text["setimes"][language])
        lines = lines.replace("naïve café".encode(), "naïve\x85 café".encode("latin-1"))
        setimes[f"SETIMES.en-ro.{language}"] = lines
    europarl["training-parallel-ep-v8/europarl-v8.fi-en.fi"] = b"something else\n" * 1000
    text["setimes"]["en"][2] = "naïve… café"  # what Windows' Latin-1 has there
    (raw / "training-parallel-ep-v8.tgz").write_bytes(archives.tar(europarl))
    (raw / "SETIMES.en-ro.txt.zip").write_bytes(archives.zipped(setimes | {"LICENSE": b"none\n"}))
    for split, folder, name in (("valid", "dev", "newsdev"), ("test", "test", "newstest")):
        members = {}
        for source, target in (("ro", "en"), ("en", "ro")):
            for language, kind in ((source, "src"), (target, "ref")):
                path = f"{folder}/{name}2016-{source}{target}-{kind}.{language}.sgm"
                members[path] = archives.sgm(text[split][language])
        (raw / f"{folder}.tgz").write_bytes(archives.tar(members))
    train = {lang: text["europarl"][lang] + text["setimes"][lang] for lang in ("ro", "en")}
    return {"train": train, "valid": text["valid"], "test": text["test"]}


MINIATURES: dict[str, tuple[str, Callable[[Path], Splits]]] = {
    "iwslt17_de_en": ("iwslt17_de_en", iwslt17),
    "iwslt17_en_de": ("iwslt17_de_en", iwslt17),
    "kftt_ja_en": ("kftt_ja_en", kftt),
    "kftt_en_ja": ("kftt_ja_en", kftt),
    "wmt16_ro_en": ("wmt16_ro_en", wmt16),
    "wmt16_en_ro": ("wmt16_ro_en", wmt16),
}


def command(dataset: str, folder: Path) -> list[str]:
    options = ["--cpu", "--data-dir", folder / "Daten, hier", "--run-dir", folder / "run"]
    return ["bash", str(RUN), dataset, "softmax", *map(str, options), "--stages", "prepare"]


def environment(**variables: object) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    kept |= {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "WORKERS": "2", "BPE_MERGES": "30"}
    return kept | {name: str(value) for name, value in variables.items()}


def prepare(dataset: str, folder: Path, check: bool = True, **variables: object):
    result = subprocess.run(
        command(dataset, folder),
        env=environment(**variables),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    if check:
        assert result.returncode == 0, result.stdout
    return result


def without_checksums(shared: str, path: Path) -> Path:
    """The data set's list of archives, whose published sums no miniature can have."""
    lines = (SHARED / f"{shared}.archives").read_text().splitlines()
    path.write_text("".join(f"- {' '.join(line.split()[1:])}\n" for line in lines))
    return path


def lines_of(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


@pytest.fixture(scope="module", params=MINIATURES)
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Splits, Path]]:
    """A data set, its sentences, and what was made of them, the archives fetched from a mirror."""
    shared, build = MINIATURES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    mirror = folder / "mirror"
    mirror.mkdir()
    sentences = build(mirror)
    with serve(mirror) as address:
        sums = without_checksums(shared, folder / "sums")
        prepare(request.param, folder, BASE_URL=address, CHECKSUMS=sums)
        again = prepare(request.param, folder, BASE_URL=address, CHECKSUMS=sums)
    assert "done already" in again.stdout
    yield request.param, sentences, folder / "Daten, hier" / "prepared"


def test_sentences_are_those_of_the_archives(prepared: tuple[str, Splits, Path]) -> None:
    _, sentences, folder = prepared
    for split, sides in sentences.items():
        for language, lines in sides.items():
            assert lines_of(folder / "raw" / f"{split}.{language}") == lines


def test_both_sides_keep_step_to_the_end(prepared: tuple[str, Splits, Path]) -> None:
    _, sentences, folder = prepared
    for split, sides in sentences.items():
        pairs = list(zip(*sides.values(), strict=True))
        kept = [pair for pair in pairs if split != "train" or all(pair)]
        for language in sides:
            assert len(lines_of(folder / "bpe" / f"{split}.{language}")) == len(kept)
    assert {path.name for path in (folder / "bin").glob("test.*")} >= {
        f"test.{'-'.join(folder_languages(folder))}.{language}.{kind}"
        for language in sides
        for kind in ("bin", "idx")
    }


def folder_languages(folder: Path) -> list[str]:
    words = [line.split() for line in lines_of(folder / "settings")]
    return next(line[1:] for line in words if line[0] == "languages")


def test_tokens_and_reference(prepared: tuple[str, Splits, Path]) -> None:
    dataset, sentences, folder = prepared
    target = folder_languages(folder)[1]
    reference = sentences["test"][target]
    if target == "ro":
        reference = [line.translate(PLAIN_ROMANIAN) for line in reference]
    assert lines_of(folder / "reference" / f"test.{target}") == reference
    for language, lines in sentences["test"].items():
        units = lines_of(folder / "bpe" / f"test.{language}")
        tokens = [(line + " ").replace("@@ ", "").strip() for line in units]
        assert tokens == lines_of(folder / "tokenized" / f"test.{language}")
        if dataset.startswith("kftt"):
            assert tokens == lines
        elif dataset.startswith("iwslt"):
            assert any("&quot;" in line for line in tokens)  # as Moses writes it
        elif language == "ro":
            assert "".join(tokens).isascii()


def test_codes_and_dictionaries(prepared: tuple[str, Splits, Path]) -> None:
    dataset, _, folder = prepared
    source, target = folder_languages(folder)
    codes = {path.name for path in folder.glob("bpe.codes*")}
    separate = {f"bpe.codes.{language}" for language in (source, target)}
    assert codes == (separate if dataset.startswith("wmt16") else {"bpe.codes"})
    dictionaries = [(folder / "bin" / f"dict.{lang}.txt").read_bytes() for lang in (source, target)]
    assert dictionaries[0] != dictionaries[1]


@pytest.fixture(scope="module")
def wmt_archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("wmt")
    wmt16(raw)
    return raw


@pytest.fixture
def wmt(wmt_archives: Path, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """A folder of the archives of wmt16_ro_en, and the variables that have them used."""
    raw = tmp_path / "raw"
    shutil.copytree(wmt_archives, raw)
    sums = without_checksums("wmt16_ro_en", tmp_path / "sums")
    return raw, {"RAW_DIR": raw, "CHECKSUMS": sums}


@pytest.fixture(scope="module")
def prepared_at_once(wmt_archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("at once")
    prepare("wmt16_ro_en", folder, RAW_DIR=wmt_archives)
    return folder / "Daten, hier" / "prepared"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def sides_of_unequal_length(path: Path) -> None:
    text = {"ro": b"unu\ndoi\n", "en": b"one\n"}
    path.write_bytes(archives.zipped({f"SETIMES.en-ro.{lang}": text[lang] for lang in text}))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("training-parallel-ep-v8.tgz", cut, "is not a complete gzip archive"),
        ("SETIMES.en-ro.txt.zip", cut, "is not a complete zip archive"),
        ("dev.tgz", lambda path: path.write_text("<html>"), "is not a complete gzip archive"),
        ("test.tgz", Path.unlink, "no such file"),
        (
            "test.tgz",
            lambda path: path.write_bytes(archives.tar({"other": b""})),
            "has no file test/newstest2016-roen-src.ro.sgm",
        ),
        (
            "SETIMES.en-ro.txt.zip",
            sides_of_unequal_length,
            "2 sentences in SETIMES.en-ro.txt.zip!SETIMES.en-ro.ro but 1 in "
            "SETIMES.en-ro.txt.zip!SETIMES.en-ro.en",
        ),
    ],
)
def test_bad_archive_is_named_and_leaves_nothing_in_the_way(
    name: str, damage, message: str, wmt, tmp_path: Path
) -> None:
    raw, variables = wmt
    good = (raw / name).read_bytes()
    damage(raw / name)
    result = prepare("wmt16_ro_en", tmp_path, check=False, **variables)
    assert result.returncode != 0
    assert message in result.stdout and str(raw) in result.stdout and name in result.stdout
    data = tmp_path / "Daten, hier"
    assert not (data / "prepared").exists()
    if name == "SETIMES.en-ro.txt.zip":
        (raw / name).write_bytes(good)
        prepare("wmt16_ro_en", tmp_path, **variables)
        assert not (data / "prepared.partial").exists()


@pytest.mark.parametrize("moment", ["unpack test:", "learn BPE:", "apply BPE to train.ro:"])
def test_killed_preparation_resumes(
    moment: str, wmt, prepared_at_once: Path, tmp_path: Path
) -> None:
    _, variables = wmt
    process = subprocess.Popen(
        command("wmt16_ro_en", tmp_path),
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )
    with process:
        for line in process.stdout:
            if line.startswith(moment):
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
    assert result.returncode != 0
    assert "dev.tgz: the md5 is" in result.stdout
    assert not (tmp_path / "Daten, hier" / "raw" / "dev.tgz").exists()


def test_published_sums_are_those_of_sacrebleu() -> None:
    known = {
        address: md5
        for dataset in DATASETS.values()
        for address, md5 in zip(dataset.data, dataset.md5 or [], strict=False)
    }
    published = [
        line.split()
        for path in SHARED.glob("*.archives")
        for line in path.read_text().splitlines()
        if not line.startswith("-")
    ]
    assert len(published) == 6
    for md5, _, address in published:
        assert known[address] == md5


def test_settings_say_what_was_taken_from_which_archive(
    prepared: tuple[str, Splits, Path],
) -> None:
    _, _, folder = prepared
    settings = (folder / "settings").read_text().splitlines()
    takes = [line.split() for line in settings if line.startswith("take ")]
    assert {take[1] for take in takes} == {"train", "valid", "test"}
    raw = {line.split()[1] for line in settings if line.startswith("raw ")}
    assert {place.partition("!")[0] for take in takes for place in take[3:]} == raw
