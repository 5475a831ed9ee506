"""Folders of alignments: starting, resuming and finishing them."""

from pathlib import Path

import pytest

from fairseq_sparse.files import write_json
from fairseq_sparse.measure.alignment.alignment_folder import (
    WORDS,
    AlignmentFolder,
    link_files,
    read_manifest,
)

SETTINGS = {
    "hypothesis": False,
    "layers": [1, 2],
    "heads": [1, "mean"],
    "checkpoint": {"path": "a.pt", "sha256": "00ff"},
    "sentences": 3,
}
NAMES = [
    f"{kind}-layer{layer}-{head}.pharaoh"
    for kind in ("normal", "shifted")
    for layer in (1, 2)
    for head in ("head1", "mean")
]
PARTS = [range(0, 2), range(2, 3)]


def lines(numbers: range) -> dict[str, list[str]]:
    return {name: [f"{name} {number}" for number in numbers] for name in (*WORDS, *NAMES)}


def test_parts_are_put_together_in_order(tmp_path: Path) -> None:
    folder = AlignmentFolder(tmp_path / "a" / "b", SETTINGS)
    assert link_files(SETTINGS) == NAMES and not folder.finished
    folder.write_part(PARTS[1], lines(PARTS[1]), [2])
    again = AlignmentFolder(folder.path, SETTINGS)
    assert [again.has_part(part) for part in PARTS] == [False, True] and not again.finished
    with pytest.raises(ValueError, match="b is not finished: run fairseq-sparse align again"):
        read_manifest(folder.path)
    again.write_part(PARTS[0], lines(PARTS[0]), [0])
    assert again.finish(PARTS) == [0, 2] and AlignmentFolder(folder.path, SETTINGS).finished
    for name in (*WORDS, *NAMES):
        text = (folder.path / name).read_text(encoding="utf-8")
        assert text == "".join(f"{name} {number}\n" for number in range(3))
    assert {path.name for path in folder.path.iterdir()} == {*WORDS, *NAMES, "manifest.json"}
    assert read_manifest(folder.path) == {**SETTINGS, "too_long": [0, 2]}


@pytest.mark.parametrize("name", ["source.txt", "parts/notes.md", ".hidden"])
def test_a_folder_of_other_files_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "manifest.json.partial").touch()
    AlignmentFolder(tmp_path, SETTINGS)  # killed at the very start
    (tmp_path / "parts" / "manifest.json").unlink()
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="has files that fairseq-sparse align did not make"):
        AlignmentFolder(tmp_path, SETTINGS)
    assert (tmp_path / name).read_text() == "mine"
    (tmp_path / "manifest.json").write_text('{"checkpoint": {"x": 1}}')
    with pytest.raises(ValueError, match="was made with other settings"):
        AlignmentFolder(tmp_path, SETTINGS)


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused(tmp_path: Path, finished: bool) -> None:
    folder = AlignmentFolder(tmp_path, SETTINGS)
    folder.write_part(PARTS[0], lines(PARTS[0]), [])
    if finished:
        folder.write_part(PARTS[1], lines(PARTS[1]), [])
        folder.finish(PARTS)
    manifest = (tmp_path if finished else tmp_path / "parts") / "manifest.json"
    before = manifest.read_bytes()
    others = {**SETTINGS, "layers": [1], "checkpoint": {"path": "b.pt", "sha256": "0123456789"}}
    with pytest.raises(ValueError, match="layers was 1,2, now 1; checkpoint was a.pt .*00ff"):
        AlignmentFolder(tmp_path, others)
    assert manifest.read_bytes() == before
    moved = {**SETTINGS, "checkpoint": {"path": "moved.pt", "sha256": "00ff"}}
    assert AlignmentFolder(tmp_path, moved).has_part(PARTS[0]) != finished


@pytest.mark.parametrize("name", ["hypothesis", "layers", "heads", "sentences", "too_long"])
def test_a_damaged_manifest_is_named(tmp_path: Path, name: str) -> None:
    settings = {**SETTINGS, "too_long": []}
    write_json(tmp_path / "manifest.json", settings)
    assert read_manifest(tmp_path) == settings
    del settings[name]
    write_json(tmp_path / "manifest.json", settings)
    with pytest.raises(ValueError, match="manifest.json"):
        read_manifest(tmp_path)


def test_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no manifest.json: fairseq-sparse align did not"):
        read_manifest(tmp_path)
