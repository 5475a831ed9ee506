"""fairseq-sparse align on checkpoints and data as fairseq's commands make them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

import attention_by_hand
import references
import toy
from bad_input import assert_refused
from fairseq_sparse.commands import align, cli
from fairseq_sparse.measure.alignment.alignment_folder import AlignmentFolder
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.translator import load_translator, search, with_best_translations
from fairseq_sparse.measure.typed import typed_batch

FLAGS = {
    "rela_g": ["--task", "translation_sparse", "--arch", "transformer_sparse_tiny"]
    + ["--attention", "rela_g"],
    "stock": ["--task", "translation", "--arch", "transformer_tiny"],
    "lstm_sparse": ["--task", "translation_sparse", "--arch", "lstm_sparse", "--attention"]
    + ["sparsemax", "--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--seed", 3],
}
# The test sentence that is too long for the models, and its length in pieces.
TOO_LONG, LENGTH = 4, 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarise text whose pieces have the marks of both kinds of subwords."""
    folder = tmp_path_factory.mktemp("text")
    generator = random.Random(5)
    pieces = [f"w{number}{mark}" for number in range(6) for mark in ("@@", "")]
    pieces += [f"▁w{number}" for number in range(6)]
    for split, count in (("train", 100), ("valid", 10), ("test", 23)):
        lengths = [LENGTH if n == TOO_LONG else generator.randint(1, 8) for n in range(count)]
        for language in ("de", "en"):
            lines = [" ".join(generator.choices(pieces, k=length)) for length in lengths]
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return toy.binarise(folder)


@pytest.fixture(scope="module")
def checkpoints(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {}
    for name, flags in FLAGS.items():
        flags = ["--max-source-positions", 20, "--max-target-positions", 20, *flags]
        flags += ["--skip-invalid-size-inputs-valid-test", "--lr", 0.01]
        paths[name], _ = toy.train(tmp_path_factory.mktemp(name), data, *flags)
    return paths


def call_here(data: Path, checkpoint: Path, output: Path, *flags: object) -> int:
    """Run the script in this process, which saves the time of importing fairseq."""
    arguments = [data, "--path", checkpoint, "--output-folder", output, "--cpu", *flags]
    return cli.run("align", list(map(str, arguments)))


def read(folder: Path) -> dict[str, bytes]:
    """Return the content of each file but the manifest, which contains the test's paths."""
    names = {path.name for path in folder.iterdir()} - {"manifest.json"}
    return {name: (folder / name).read_bytes() for name in names}


def by_hand(data: Path, checkpoint: Path, targets: dict[int, list[str]] | None = None):
    """Yield the number, the pieces without EOS and the weights of each sentence, run alone."""
    translator = load_translator(str(checkpoint), str(data), True)
    words = translator.task.target_dictionary
    for number in range(23):
        if number == TOO_LONG:
            continue
        (sample,) = translator.batches("test", 1000, [number])
        if targets:
            line = " ".join(targets[number])
            sample["target"] = words.encode_line(line, add_if_not_exist=False).long()[None]
            sample["net_input"]["prev_output_tokens"] = sample["target"].roll(1, dims=1)
        (pair,) = forced_attention(translator.models[0], sample, words.pad())
        pieces = [[words[token] for token in side[:-1]] for side in (pair.source, pair.target)]
        yield number, *pieces, pair.weights["cross"].tolist()


def lines_by_hand(weights, source, target) -> dict[str, str]:
    """Return the line of a sentence for each file, from the word numbers of its pieces."""
    lines = {}
    for kind, rows in (("normal", slice(0, -1)), ("shifted", slice(1, None))):
        for layer, heads in enumerate(weights, start=1):
            merged = {
                f"head{number}": references.merge_subwords(
                    [row[:-1] for row in head[rows]], source, target
                )
                for number, head in enumerate(heads, start=1)
            }
            merged["mean"] = np.mean(list(merged.values()), axis=0).tolist()
            for name, words in merged.items():
                links = sorted(references.word_links(words))
                line = " ".join(f"{source}-{target}" for source, target in links)
                lines[f"{kind}-layer{layer}-{name}.pharaoh"] = line
    return lines


@pytest.mark.each_value
@pytest.mark.parametrize("model", FLAGS)
@pytest.mark.parametrize("subwords", ["subword_nmt", "sentencepiece", "none"])
def test_files_against_the_model_run_on_each_sentence(
    data: Path, checkpoints: dict[str, Path], tmp_path: Path, model: str, subwords: str
) -> None:
    flags = ["--subwords", subwords, "--max-tokens", 60]
    assert call_here(data, checkpoints[model], tmp_path, *flags) == 0
    files = {name: content.decode().split("\n")[:-1] for name, content in read(tmp_path).items()}
    assert {len(lines) for lines in files.values()} == {23}
    nulls = 0
    for number, source, target, weights in by_hand(data, checkpoints[model]):
        numbers = [attention_by_hand.words(side, subwords) for side in (source, target)]
        expected = lines_by_hand(weights, *numbers)
        found = {name: lines[number] for name, lines in files.items() if name in expected}
        assert found == expected
        assert len(files) == len(expected) + 2
        for side, name in zip(numbers, ("source.txt", "target.txt"), strict=True):
            assert len(files[name][number].split()) == side[-1] + 1
        nulls += sum(line.count("-") <= numbers[1][-1] for line in expected.values())
    # Every target word has a link, except with null attention.
    assert (nulls > 0) == (model == "rela_g")


def test_command_line_and_sentence_that_is_too_long(
    data: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "neuer Ordner" / "out"
    arguments = [data, "--path", checkpoints["stock"], "--output-folder", output, "--cpu"]

    result = toy.command("align", *arguments)
    assert str(output) in result.stdout and str(TOO_LONG) in result.stderr.splitlines()[-1]
    files = read(output)
    for name, content in files.items():
        assert (content.decode().split("\n")[TOO_LONG] == "") == name.endswith(".pharaoh")
    text = (data.parent / "test.en").read_text(encoding="utf-8")
    assert files["target.txt"].decode() == re.sub("@@( |$)", "", text, flags=re.MULTILINE)
    manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["too_long"] == [TOO_LONG] and manifest["sentences"] == 23
    assert manifest["checkpoint"]["path"] == str(checkpoints["stock"])
    assert cli.run("align", list(map(str, arguments))) == 0
    assert capsys.readouterr().out.startswith("done already")


def test_interrupted_run_goes_on(
    data: Path, checkpoints: dict[str, Path], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(align, "PART", 7)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    call_here(data, checkpoints["rela_g"], whole, "--max-tokens", 1000)
    write_part, written, limit = AlignmentFolder.write_part, [], 2

    def write_up_to_the_limit(self, numbers, *rest):
        if len(written) == limit:
            raise KeyboardInterrupt
        written.append(numbers)
        write_part(self, numbers, *rest)

    monkeypatch.setattr(AlignmentFolder, "write_part", write_up_to_the_limit)
    assert call_here(data, checkpoints["rela_g"], stopped) == 1
    assert written == [range(0, 7), range(7, 14)]
    assert not (stopped / "manifest.json").exists() and not list(stopped.glob("*.pharaoh"))
    limit = 4
    # Any batches give the same.
    assert call_here(data, checkpoints["rela_g"], stopped, "--max-tokens", 25) == 0
    assert written[2:] == [range(14, 21), range(21, 23)]
    assert read(stopped) == read(whole)


def test_other_settings_are_refused_by_name(
    data: Path, checkpoints: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert call_here(data, checkpoints["rela_g"], tmp_path) == 0
    before = read(tmp_path)
    capfd.readouterr()
    for checkpoint, named, *flags in (
        ("rela_g", "subwords", "--subwords", "none"),
        ("rela_g", "valid", "--subset", "valid"),
        ("stock", "checkpoint"),
    ):
        assert_refused(capfd, named, call_here, data, checkpoints[checkpoint], tmp_path, *flags)
        assert read(tmp_path) == before
    # The batch size and the checkpoint's file name may change.
    copy = tmp_path / "copy.pt"
    copy.write_bytes(checkpoints["rela_g"].read_bytes())
    assert call_here(data, copy, tmp_path, "--max-tokens", 50) == 0


def test_own_translations(data: Path, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = checkpoints["rela_g"]
    flags = ["--steps", "translations", "--beam", 2, "--subwords", "none"]
    assert call_here(data, checkpoint, tmp_path, *flags) == 0
    files = {name: content.decode().split("\n") for name, content in read(tmp_path).items()}
    translator = load_translator(str(checkpoint), str(data), True)
    words, targets = translator.task.target_dictionary, {}
    for sample, hypotheses in search(translator, translator.batches("test", 4000), 2):
        for number, (best, *_) in zip(sample["id"].tolist(), hypotheses, strict=True):
            targets[number] = [words[token] for token in best["tokens"][:-1]]
    references_text = (data.parent / "test.en").read_text(encoding="utf-8").splitlines()
    assert any(files["target.txt"][n].split() != references_text[n].split() for n in targets)
    for number, source, target, weights in by_hand(data, checkpoint, targets):
        assert target == targets[number] == files["target.txt"][number].split()
        expected = lines_by_hand(weights, range(len(source)), range(len(target)))
        assert {name: files[name][number] for name in expected} == expected
    assert files["target.txt"][TOO_LONG] == "" != files["source.txt"][TOO_LONG]


def test_bad_input_is_one_line(
    data: Path, checkpoints: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    checkpoint, output = checkpoints["stock"], tmp_path / "out"
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in data.iterdir():
        if not path.name.startswith("test.de-en.en"):
            (sources / path.name).write_bytes(path.read_bytes())
    for folder, named, *flags in (
        (sources, "--steps translations"),
        (data, "--beam", "--beam", 2),
    ):
        assert_refused(capfd, named, call_here, folder, checkpoint, output, *flags)
        assert not output.exists()
    assert call_here(sources, checkpoint, output, "--steps", "translations") == 0


@pytest.mark.parametrize("model", ["rela_g", "lstm_sparse"])
def test_a_typed_pair_has_the_links_of_the_model_run_on_it(
    model: str, data: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = "w1 w2 w3 w5", "w4 w0 w2"
    flags = [data, "--path", checkpoints[model], "--cpu", "--source", source, "--target", target]
    assert cli.run("align", list(map(str, flags))) == 0
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
    )
    assert [row[0] for row in rows] == target.split()
    translator = load_translator(str(checkpoints[model]), str(data), True)
    sample = typed_batch(translator, [source], [target])
    (pair,) = forced_attention(translator.model, sample, 1)
    lines = lines_by_hand(pair.weights["cross"].tolist(), range(4), range(3))
    expected = {name: line for name, line in lines.items() if name.endswith("mean.pharaoh")}
    assert len(header) == 1 + len(expected)
    for column, title in enumerate(header[1:], start=1):
        layer, kind = title.removeprefix("layer ").split(", ")
        found = [
            f"{source.split().index(row[column])}-{place}"
            for place, row in enumerate(rows)
            if row[column]
        ]
        assert sorted(found) == sorted(expected[f"{kind}-layer{layer}-mean.pharaoh"].split())


def test_a_typed_sentence_is_translated_first(
    data: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [data, "--path", checkpoints["rela_g"], "--cpu", "--source", "w1 w2 w3"]
    assert cli.run("align", list(map(str, flags))) == 0
    translator = load_translator(str(checkpoints["rela_g"]), str(data), True)
    (sample,) = with_best_translations(translator, [typed_batch(translator, ["w1 w2 w3"])], 5)
    words = translator.task.target_dictionary.string(sample["target"], "subword_nmt").split()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == words
