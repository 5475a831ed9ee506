"""fairseq-sparse evaluate measures a checkpoint of plain fairseq-train in one go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import toy
from bad_input import assert_refused
from commands import generate, hypotheses
from fairseq_sparse.commands import cli, evaluate
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.recipes import records
from fairseq_sparse.recipes.plan import Stage


@pytest.fixture
def checkpoint(data: Path, tmp_path: Path) -> Path:
    flags = ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    flags += ["--output-transform", "entmax15", "--criterion", "entmax_loss"]
    return toy.train(tmp_path / "run", data, *flags)[0]


def test_all_is_measured_once(
    data: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = checkpoint.parent
    reference = data.parent / "test.en"
    words = [str(run), str(data), "--cpu", "--tokenizer", "space", "--reference", str(reference)]
    assert cli.run("evaluate", words) == 0
    printed = capfd.readouterr().out
    best = run / "checkpoint_best.pt"
    expected = hypotheses(generate(data, best, "--beam", 5).stdout)
    own = (run / "hyp.detok.txt").read_text(encoding="utf-8").splitlines()
    assert own == [expected[number][0][1] for number in range(len(own))]
    bleu = json.loads((run / "bleu.json").read_text(encoding="utf-8"))["bleu"]
    assert f"{bleu:.2f}" in printed and "zeros in attention" in printed
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.txt")}
    assert cli.run("evaluate", words) == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.txt")} == before
    own = (run / "generate-test.txt").read_bytes()
    (run / "generate-test.txt").write_bytes(b"of an afternoon\n")
    assert cli.run("evaluate", words) == 1
    assert (run / "generate-test.txt").read_bytes() == b"of an afternoon\n"
    (run / "generate-test.txt").write_bytes(own)
    measured = run / "measurements-checkpoint_best" / "attention-test.json"
    content = json.loads(measured.read_text())
    measured.unlink()
    assert cli.run("evaluate", words) == 0
    assert json.loads(measured.read_text()) == content


def test_files_of_the_users_own_are_kept(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = checkpoint.parent
    own = run / "generate-test.txt"
    own.write_text("of an afternoon\n", encoding="utf-8")
    words = [str(run), str(data), "--cpu"]
    assert_refused(capsys, str(own), cli.run, "evaluate", words)
    assert own.read_text(encoding="utf-8") == "of an afternoon\n"
    folder = checkpoint.with_suffix("")  # of the results of a checkpoint alone
    folder.mkdir()
    own = folder / "attention.json"
    own.write_text("{}", encoding="utf-8")
    words[0] = str(checkpoint)
    assert_refused(capsys, str(own), cli.run, "evaluate", words)
    assert own.read_text(encoding="utf-8") == "{}"


def test_a_single_checkpoint_has_its_results_in_a_folder_of_its_name(
    data: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [checkpoint, data, "--cpu", "--tokenizer", "space"]
    words += ["--reference", data.parent / "test.en"]
    assert cli.run("evaluate", [str(word) for word in words]) == 0
    bleu = json.loads((checkpoint.with_suffix("") / "bleu.json").read_text(encoding="utf-8"))
    printed = capfd.readouterr()
    header, _, row = printed.out.splitlines()[:3]
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert f"{bleu['bleu']:.2f}" in cells.values()
    assert cells["zeros in attention (%)"].count("/") == 2
    assert "analyze attention" not in printed.err
    # a table of the checkpoint alone has what was measured beside it
    assert cli.run("table results", [str(checkpoint)]) == 0
    printed = capfd.readouterr()
    assert "nonzeros" in printed.out and cells["zeros in attention (%)"] in printed.out
    assert cli.run("evaluate", [str(word) for word in words]) == 0  # replaces its own results


@pytest.fixture
def stages(tmp_path: Path) -> Callable[..., tuple[Stage, ...]]:
    """Return a function that returns the stages of an evaluation of ``tmp_path / run``."""
    run, data = tmp_path / "run", tmp_path / "data"
    for folder in (run, data):
        folder.mkdir()
    (data / "dict.en.txt").write_text("a 1\n", encoding="utf-8")
    for part in ("valid", "test"):
        (data / f"{part}.de-en.de.bin").touch()
    checkpoint = run / "average.pt"

    def plan(*flags: object) -> tuple[Stage, ...]:
        options = evaluate.parse_arguments([str(word) for word in (run, data, *flags)])
        return evaluate.plan(options, checkpoint, evaluate.results_folder(run, checkpoint)).stages

    return plan


@pytest.mark.parametrize(("name", "folder"), [("a.pt", "a"), ("a", "a-results")])
def test_results_of_a_checkpoint_are_beside_it(tmp_path: Path, name: str, folder: str) -> None:
    checkpoint = tmp_path / name
    checkpoint.touch()
    assert evaluate.results_folder(checkpoint, checkpoint) == tmp_path / folder


def test_results_of_a_recipe_and_of_another_part_are_not_replaced(
    stages: Callable[..., tuple[Stage, ...]], tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def made(subset: str) -> set[Path]:
        found = stages("--reference", "some", "--subset", subset)
        return {path for stage in found for path in stage.outputs}

    assert run / "bleu.json" in made("test")  # where table results looks for it
    assert not made("test") & made("valid")
    before = made("test") | made("valid")
    (run / "run.json").touch()
    assert not before & (made("test") | made("valid"))


def test_new_translations_have_no_score_of_earlier_ones(
    stages: Callable[..., tuple[Stage, ...]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    decode, score, _ = stages("--reference", tmp_path)
    own = run / "bleu.json"
    own.touch()
    decode.before()
    assert own.exists()  # not from an earlier call
    (run / "stages").mkdir()
    records.write(score, records.FINISHED, {})
    first = stages()[0]
    assert (first.settings, first.inputs) == (decode.settings, decode.inputs)
    first.before()
    assert not own.exists()


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (["a@@", "b"], "subword_nmt"),
        (["a@@", "b@@", "c", "▁"], "subword_nmt"),
        (["▁a", "b"], "sentencepiece"),
        (["▁a", "▁b", "c", "@@"], "sentencepiece"),
        (["▁", "a", "b"], "sentencepiece"),
        (["a", "@"], "none"),
    ],
)
def test_subwords_are_known_by_the_marks_of_most(entries: list[str], found: str) -> None:
    assert evaluate.find_post_process(entries) == found


def test_bleu_of_text_without_spaces_needs_a_tokenizer(
    stages: Callable[..., tuple[Stage, ...]], tmp_path: Path
) -> None:
    """13a would take a whole sentence as one word."""
    data = tmp_path / "data"
    for part in ("valid", "test"):
        (data / f"{part}.de-en.de.bin").rename(data / f"{part}.de-zh.de.bin")
    (data / "dict.en.txt").rename(data / "dict.zh.txt")
    assert len(stages()) == 2  # without BLEU
    with pytest.raises(AnalysisError, match="zh"):
        stages("--reference", "some")
    scores = [stages("--reference", "some", "--tokenize", name)[1] for name in ("zh", "char")]
    for score, name in zip(scores, ("zh", "char"), strict=True):
        (command,) = score.commands
        assert command.argv[command.argv.index("--tokenize") + 1] == name
    assert scores[0].settings != scores[1].settings  # another tokenizer, another score


def test_data_without_dictionaries_are_refused(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoint_best.pt"
    checkpoint.touch()
    assert_refused(capsys, "test.", cli.run, "evaluate", [str(tmp_path), str(tmp_path)])
    for name in ("test.de-en.de.bin", "test.de-en.en.bin"):
        (tmp_path / name).touch()
    assert evaluate.find_languages(tmp_path, "test") == ("de", "en")
    assert_refused(capsys, "dict.", cli.run, "evaluate", [str(tmp_path), str(tmp_path)])
    words = [str(tmp_path), str(tmp_path), "--reference", str(tmp_path / "nope")]
    assert_refused(capsys, "--reference", cli.run, "evaluate", words)
