"""fairseq-sparse analyze alignment on files and folders of alignments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import toy
from bad_input import assert_refused
from fairseq_sparse.commands import cli
from fairseq_sparse.measure.alignment.alignment_folder import WORDS, AlignmentFolder, link_files

# Sentence 1: two sure links and a possible one; sentence 2: none; sentence 3: a sure one.
GOLD = "1-1 2-2 2p3\n\n1-2\n"
SOURCE, TARGET = ["a b", "c", "d"], ["A B C", "D", "E F"]
NO_LINKS = ["", "", ""]
PERFECT = ["0-0 1-1 1-2", "", "0-1"]
# 1 of its 2 links is sure, and it finds 1 of the 3 sure links: AER = 1 - 2/5.
HALF = ["0-0", "0-0", ""]
# Of normal attention; shifted attention has no links.
LINES = {
    "normal-layer1-head1.pharaoh": NO_LINKS,
    "normal-layer1-head2.pharaoh": HALF,
    "normal-layer1-mean.pharaoh": NO_LINKS,
    "normal-layer2-head1.pharaoh": PERFECT,
    "normal-layer2-head2.pharaoh": NO_LINKS,
    "normal-layer2-mean.pharaoh": HALF,
}


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    path = tmp_path / "gold.talp"
    path.write_text(GOLD)
    return path


def make_folder(path: Path, lines=LINES, source=SOURCE, target=TARGET, **settings) -> Path:
    """Make a folder as align does."""
    settings = {
        "layers": [1, 2],
        "heads": [1, 2, "mean"],
        "hypothesis": False,
        "sentences": len(source),
        **settings,
    }
    folder = AlignmentFolder(path, settings)
    files = {name: lines.get(name, [""] * len(source)) for name in link_files(settings)}
    files.update(zip(WORDS, (source, target), strict=True))
    folder.write_part(range(len(source)), files, [])
    folder.finish([range(len(source))])
    return path


def call_here(*arguments: object) -> int:
    return cli.run("analyze alignment", list(map(str, arguments)))


def rows(text: str) -> list[list[str]]:
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line] for line in lines]


def test_command_line_with_a_folder_and_a_file(gold: Path, tmp_path: Path) -> None:
    folder, file = make_folder(tmp_path / "folder"), tmp_path / "links.txt"
    file.write_text("\n".join(HALF) + "\n")
    result = toy.command("analyze alignment", gold, file, folder, "--json", tmp_path / "out.json")
    table = rows(result.stdout)
    assert table[2] == [str(folder), "normal", "1", "2", "60.00", "100.00"]
    assert table[7][-2:] == ["100.00", "100.00"] and table[4][-2:] == ["30.00", "80.00"]
    assert table[10] == [str(file), "2", "50.00", "33.33", "60.00"]
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["gold"] == {"path": str(gold), "sure": 3, "possible": 1}
    (found,) = written["folders"]
    assert found["head_numbers"] == [1, 2]
    assert found["normal"] == {
        "layers": [
            {
                **{"layer": 1, "average": 1, "heads": [1, pytest.approx(0.6)]},
                **{"best_head": 2, "best": pytest.approx(0.6)},
            },
            {
                **{"layer": 2, "average": pytest.approx(0.6), "heads": [0, 1]},
                **{"best_head": 1, "best": 0},
            },
        ],
        "aoh": pytest.approx(0.3),
        "aol": pytest.approx(0.8),
    }
    assert found["shifted"]["aoh"] == found["shifted"]["aol"] == 1
    (score,) = written["files"]
    assert score == {
        "hypothesis": str(file),
        "links": 2,
        "precision": 0.5,
        "recall": pytest.approx(1 / 3),
        "aer": pytest.approx(0.6),
    }


def test_the_first_word_is_0_or_1(gold: Path, tmp_path: Path, capsys) -> None:
    file, from_0, from_1 = (tmp_path / name for name in ("links.talp", "from_0.talp", "from_1"))
    file.write_bytes(b"1-1 2-2 2-3\r\n\r\n1-2\r\n")
    from_0.write_text("0-0 1-1 1p2\n\n0-1\n")
    from_1.write_text(GOLD)
    for path, *flags in ([gold], [from_0, "--gold-base", 0], [from_1, "--gold-base", 1]):
        assert call_here(path, file, *flags) == 0
        captured = capsys.readouterr()
        assert rows(captured.out)[-1][1:] == ["4", "100.00", "100.00", "0.00"] and not captured.err
    assert call_here(from_1, file) == 0
    captured = capsys.readouterr()
    assert rows(captured.out)[-1][1:] != ["4", "100.00", "100.00", "0.00"]
    assert "--gold-base 1" in captured.err


def test_gold_of_the_other_direction(gold: Path, tmp_path: Path) -> None:
    reversed_gold = tmp_path / "reversed.talp"
    reversed_gold.write_text("1-1 2-2 3p2\n\n2-1\n")
    results = []
    for arguments in ([gold], [reversed_gold, "--reverse-gold"]):
        path, folder = tmp_path / "out.json", make_folder(tmp_path / f"{len(results)}")
        assert call_here(*arguments, folder, "--json", path) == 0
        results.append(json.loads(path.read_text(encoding="utf-8"))["folders"][0])
    assert results[0]["normal"] == results[1]["normal"]
    assert results[0]["normal"]["layers"][1]["heads"][0] == 0


def test_file_without_links(gold: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a").write_text("\n\n\n")
    assert call_here(gold, tmp_path / "a", "--json", tmp_path / "out.json") == 0
    assert rows(capsys.readouterr().out)[-1][1:] == ["0", "-", "0.00", "100.00"]
    assert json.loads((tmp_path / "out.json").read_text())["files"][0]["precision"] is None


def test_words_must_agree(gold: Path, tmp_path: Path, capsys) -> None:
    folder = make_folder(tmp_path / "folder")
    texts = [tmp_path / "text.de", tmp_path / "text.en"]

    def error_of(source: str, target: str) -> str:
        for path, text in zip(texts, (source, target), strict=True):
            path.write_text(text)
        code = call_here(gold, folder, "--words", *texts)
        error = capsys.readouterr().err
        assert code == (1 if error else 0)
        return error

    assert not error_of("x y\nz\nü\n", "X Y Z\nX\nX Y\n")
    error = error_of("x y\nz\nü\n", "X Y Z\nX Y\nX Y\n")
    assert f"{folder / 'target.txt'}, line 2" in error
    assert "source.txt" in error_of("x y\nz\n", "X Y Z\nX\nX Y\n")


def test_bad_input_is_one_line(gold: Path, tmp_path: Path, capsys) -> None:
    folder, output = make_folder(tmp_path / "folder"), tmp_path / "out.json"
    shorter = make_folder(tmp_path / "shorter", source=["a b", "c", "d"], target=["A B", "D", "E"])
    cut = make_folder(tmp_path / "cut")
    manifest = json.loads((cut / "manifest.json").read_text())
    (cut / "manifest.json").write_text(json.dumps({**manifest, "too_long": [1]}))
    two = make_folder(tmp_path / "two", source=SOURCE[:2], target=TARGET[:2], lines={})
    own = make_folder(tmp_path / "own", hypothesis=True)
    unfinished = tmp_path / "unfinished"
    AlignmentFolder(unfinished, {})
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = tmp_path / "wrong"
    wrong.write_text("0-0\n\n0-x\n")
    for arguments, named in [
        ([gold, two], two),
        ([gold, wrong], f"{wrong}, line 3"),
        ([gold, cut], cut),
        ([gold, own], "--steps translations"),
        ([gold, unfinished], unfinished),
        ([gold, empty], empty),
        ([gold, shorter], f"{gold}, line 1"),
        ([gold, folder, "--gold-base", 0], f"{gold}, line 1"),
        ([gold, wrong, "--words", wrong, wrong], "--words"),
    ]:
        assert_refused(capsys, named, call_here, *arguments, "--json", output)
        assert not output.exists()
