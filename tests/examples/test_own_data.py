"""examples/datasets/shared/template.sh on a user's own text, without a list of checksums."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from recipes import EXAMPLES, environment

ROOT = EXAMPLES.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with the template as data set ``mine``, and a data set of archives."""
    root = tmp_path_factory.mktemp("my project")
    shutil.copytree(EXAMPLES, root / "examples")
    for name in ("scripts", "fairseq_sparse"):
        (root / name).symlink_to(ROOT / name)
    folder = root / "examples" / "datasets"
    shutil.copy(folder / "shared" / "template.sh", folder / "mine.sh")
    (folder / "archives.sh").write_text(
        'SOURCE_LANG=ja TARGET_LANG=en BPE_MERGES=50\nCORPUS=("train text a.tgz!x b.tgz!x#1")\n'
    )
    (folder / "verse.sh").write_text(
        "TEXT_FLAGS=(--single verse.txt --tokens space) PROMPTS=()\n"
        "TOKENS_PER_SAMPLE=64 SAMPLE_BREAK_MODE=eos CONTEXT_WINDOW=0\n"
        'source "$EXAMPLES/datasets/shared/language_model.sh"\n'
    )
    return root


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, count in (("train", 60), ("test", 5)):
        for language, words in (("ja", "彼 は 犬 が 好き だ"), ("en", "he likes the dog , n't")):
            lines = [" ".join(words.split()[i % 3 :]) + "\n" for i in range(count)]
            (folder / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")
    return folder


def prepare(project: Path, dataset: str, folder: Path, **variables: object):
    """Run the stage prepare; ``stdout`` is all that it printed."""
    return subprocess.run(
        ["bash", str(project / "examples" / "run.sh"), dataset, "softmax", "--cpu"]
        + f"--stages prepare --data-dir {folder}/data --run-dir {folder}/r".split(),
        env=environment(BPE_MERGES=30, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd="/",
    )


def test_four_files_are_enough(project: Path, raw: Path, tmp_path: Path) -> None:
    subprocess.run(["gzip", str(raw / "train.en")], check=True)  # one may be compressed
    result = prepare(project, "mine", tmp_path, RAW_DIR=raw)
    assert result.returncode == 0, result.stdout
    prepared = tmp_path / "data" / "prepared"
    tokens = {
        split: (prepared / "tokenized" / f"{split}.en").read_text("utf-8").splitlines()
        for split in ("train", "valid", "test")
    }
    assert [len(lines) for lines in tokens.values()] == [57, 3, 5]
    assert tokens["test"] == (raw / "test.en").read_text("utf-8").splitlines()  # as they were
    settings = (prepared / "settings").read_text("utf-8")
    for name in ("train.ja", "train.en.gz", "test.ja", "test.en"):
        assert f"raw {name} " in settings
    (raw / "train.ja").write_text("else\n" * 60)  # other data are noticed
    result = prepare(project, "mine", tmp_path, RAW_DIR=raw)
    assert result.returncode == 1 and "other settings" in result.stdout


def test_a_file_is_enough_for_a_language_model(project: Path, raw: Path, tmp_path: Path) -> None:
    result = prepare(project, "verse", tmp_path, RAW_DIR=raw)
    assert result.returncode == 1
    assert f"{raw}/verse.txt" in result.stdout
    (raw / "train.en").rename(raw / "verse.txt")
    result = prepare(project, "verse", tmp_path, RAW_DIR=raw)
    assert result.returncode == 0, result.stdout
    assert "raw verse.txt " in (tmp_path / "data" / "prepared" / "settings").read_text("utf-8")


def test_what_is_missing_is_named(project: Path, raw: Path, tmp_path: Path) -> None:
    (raw / "test.ja").unlink()
    result = prepare(project, "mine", tmp_path, RAW_DIR=raw)
    assert result.returncode == 1 and f"{raw}/test.ja" in result.stdout
    result = prepare(project, "mine", tmp_path)
    assert result.returncode == 1 and "RAW_DIR" in result.stdout
    result = prepare(project, "archives", tmp_path, RAW_DIR=raw)
    assert result.returncode == 1 and f"{raw}/a.tgz" in result.stdout
