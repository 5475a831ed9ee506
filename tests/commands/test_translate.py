"""fairseq-sparse translate says of typed text what fairseq-generate says of binarised text."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import toy
from bad_input import assert_refused
from commands import generate, hypotheses
from fairseq_sparse.commands import cli, translate
from fairseq_sparse.measure.translator import forced_steps, load_translator


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    flags += ["--output-transform", "entmax15", "--criterion", "entmax_loss"]
    return toy.train(tmp_path_factory.mktemp("model"), data, *flags)[0]


def sentences(data: Path) -> list[str]:
    return (data.parent / "test.de").read_text(encoding="utf-8").splitlines()


def call(data: Path, checkpoint: Path, *words: object) -> int:
    arguments = (data, "--path", checkpoint, "--cpu", *words)
    return cli.run("translate", [str(word) for word in arguments])


def test_translations_are_those_of_fairseq_generate(
    data: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = hypotheses(generate(data, checkpoint, "--beam", 3, "--nbest", 3).stdout)
    text = sentences(data)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(text)))
    assert call(data, checkpoint, "--beam", 3, "--tokenizer", "space") == 0
    printed = capsys.readouterr().out.splitlines()
    places = [number for number, line in enumerate(printed) if line in text]
    found = [(printed[place], printed[place + 1]) for place in places]
    assert found == [(line, expected[number][0][1]) for number, line in enumerate(text)]


def test_a_run_brings_its_own_data(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (sentences(data)[0], "--tokenizer", "space")
    assert call(data, checkpoint.with_name("checkpoint_best.pt"), *words) == 0
    expected = capsys.readouterr().out
    run, best = str(checkpoint.parent), str(checkpoint.with_name("checkpoint_best.pt"))
    for named in ([run], [run, "--path", best]):
        assert cli.run("translate", [*named, *words, "--cpu"]) == 0
        assert capsys.readouterr().out == expected
    assert_refused(capsys, "--path", cli.run, "translate", [str(data), *words])


def test_only_a_line_feed_ends_a_sentence(
    data: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "\u2028".join(sentences(data)[0].split())
    # some editors begin a file with a byte order mark
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\ufeff{text}\n\n"))
    assert call(data, checkpoint, "--tokenizer", "space") == 0
    assert capsys.readouterr().out.split("\n")[0] == text


def test_steps_show_their_support(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = sentences(data)[0]
    assert call(data, checkpoint, sentence, "--tokenizer", "space", "--top", 99) == 0
    rows = re.findall(
        r"^\| (\S+) +\| \S+ +\| ([\d,]+) +\| (.*?) *\|$", capsys.readouterr().out, re.M
    )
    rows = [row for row in rows if row[0] not in ("token", "-----")]
    translator = load_translator(str(checkpoint), str(data), True)
    source, target = translator.task.source_dictionary, translator.task.target_dictionary
    tokens = source.encode_line(sentence, add_if_not_exist=False).long()[None]
    given = torch.tensor([[target.index(row[0]) for row in rows]])
    net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}
    net_input["prev_output_tokens"] = given.roll(1)
    (steps,) = forced_steps(translator.models, net_input, given, target.pad())
    support = (steps.log_p > -torch.inf).sum(1).tolist()
    assert [int(row[1].replace(",", "")) for row in rows] == support
    assert [len(row[2].split(", ")) if row[2] else 0 for row in rows] == [n - 1 for n in support]


def test_exact_search_is_no_worse_than_the_beam(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def p(*flags: object) -> float:
        words = (sentences(data)[1], "--tokenizer", "space", *flags)
        assert call(data, checkpoint, *words) == 0
        return float(re.search(r"^p = (\S+);", capsys.readouterr().out, re.M)[1])

    assert p("--exact", "--plots", tmp_path / "a.svg") >= p("--beam", 1)
    assert (tmp_path / "a-tree.svg").stat().st_size > 0


def test_what_exact_search_has_proven_of_a_softmax_model_is_said() -> None:
    dense = SimpleNamespace(is_sparse=False)
    said = {
        proven: translate.proof([{"optimal": proven}], {"log_p": -1.0}, dense)
        for proven in (False, True)
    }
    assert "scores better: proven" in said[True] and "proven" not in said[False]


def test_a_model_must_be_named_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, "name that of a model first", cli.run, "translate", ["Ein Hund läuft."])


def test_no_sentence_is_refused(
    data: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert_refused(capsys, "no sentence", call, data, checkpoint)
    assert_refused(capsys, "empty", call, data, checkpoint, " ")
