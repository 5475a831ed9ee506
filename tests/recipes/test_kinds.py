"""Recipes that are not of sentence pairs alone: language models, inflection, long sentences."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import sacrebleu

from fairseq_sparse.commands import cli

SIZES = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 2}
WORDS = "the king shall speak and all his men will hear what he says to them".split()


def call(dataset: str, variant: str, folder: Path, *more: object, **flags: object) -> Path:
    """Run all stages of a recipe on ``folder/raw``, and return its folder."""
    places = ("--raw-dir", folder / "raw", "--data-dir", folder / "data")
    words = [dataset, variant, "--cpu", "--epochs", 2, *places, "--run-dir", folder / "run", *more]
    for name, value in flags.items():
        words += ["--set", f"{name.replace('_', '-')}={value}"]
    assert cli.run("run", [str(word) for word in words]) == 0
    return folder / "run"


def sizes(*sides: str) -> dict[str, object]:
    return {f"{side}-{name}": value for side in sides for name, value in SIZES.items()}


@pytest.mark.slow
def test_a_language_model_is_measured_and_sampled(tmp_path: Path, capsys) -> None:
    (tmp_path / "raw").mkdir()
    rng = random.Random(1)
    speeches = [
        "\n".join(" ".join(rng.choices(WORDS, k=4)) + mark for mark in ":.") for _ in range(200)
    ]
    (tmp_path / "raw" / "input.txt").write_text("\n\n".join(speeches) + "\n")
    more = {"decoder-input-dim": 16, "decoder-output-dim": 16, "lr": "1e-2"}
    options = ("--bpe-merges", 30, "--batch", 500)
    folder = call("tinyshakespeare", "softmax", tmp_path, *options, **sizes("decoder"), **more)
    prepared = tmp_path / "data" / "prepared"
    measures = json.loads((folder / "measures.json").read_text())
    counts = {}
    for split in ("train", "valid", "test"):
        lines = (prepared / "bpe" / f"{split}.en").read_text().splitlines()
        assert all(line.count(" <nl> ") == 1 for line in lines)
        counts[split] = len(lines)
        if split != "train":
            assert measures[split]["tokens"] == sum(len(line.split()) + 1 for line in lines)
            assert 0 < measures[split]["sparsemax_score"] < 1 < measures[split]["eps_ppl"]
    assert counts == {"train": 180, "valid": 10, "test": 10}
    assert (prepared / "bpe.codes").read_text().count("\n") == 31  # none is of <nl>
    assert "nl" not in (prepared / "bpe.codes").read_text().replace("</w>", "")
    samples = (folder / "samples.txt").read_text()
    assert samples.count("\n\n") >= 9 and "<nl>" not in samples and "@@" not in samples
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"] == measures["test"] and summary["training"]["updates"] > 0
    assert "sparsemax score" in capsys.readouterr().out


@pytest.mark.slow
def test_inflection_is_scored_by_accuracy(tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "task1" / "all"
    folder.mkdir(parents=True)
    rng = random.Random(1)
    for language in ("turkish", "german"):
        for part, count in (("train-medium", 60), ("dev", 8), ("test", 9)):
            lemmas = ["".join(rng.choices("aeklmr", k=4)) for _ in range(count)]
            lines = [f"{lemma}\t{lemma}ler\tN;PL\n" for lemma in lemmas]
            (folder / f"{language}-{part}").write_text("".join(lines))
    small = {
        f"{side}-{x}": 8 for side in ("encoder", "decoder") for x in ("embed-dim", "hidden-size")
    }
    made = call("sigmorphon2018_medium_part", "entmax15", tmp_path, **small)
    summary = json.loads((made / "summary.json").read_text())
    assert summary["inflection"] == json.loads((made / "accuracy.json").read_text())
    assert {path.name for path in (made / "guesses").iterdir()} == {"german-out", "turkish-out"}
    assert list(summary["attention"]) == ["cross"] and "bleu" not in summary
    # As in the paper, sparsity and certificates of the search are of the validation set.
    assert summary["valid"]["search"]["sentences"] == 16
    assert summary["valid"]["nonzeros"] > 0
    assert not (made / "alignments").exists()
    names = {path.name for path in (made / "checkpoints").iterdir()}
    assert names == {"checkpoint_best.pt", "checkpoint_last.pt"}


@pytest.mark.slow
def test_long_sentences_are_a_test_set_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    rng = random.Random(1)
    for split, count in (("train", 300), ("val", 20), ("test_2016_flickr", 20)):
        lines = [" ".join(rng.choices(WORDS, k=number % 10 + 2)) for number in range(count)]
        for side, text in (("de", lines), ("en", [line.upper() for line in lines])):
            packed = gzip.compress(("\n".join(text) + "\n").encode())
            (tmp_path / "raw" / f"{split}.{side}.gz").write_bytes(packed)
    options = ("--set", "corpus.max_tokens=7", "--bpe-merges", 30, "--average", 1)
    more = sizes("encoder", "decoder")
    made = call("multi30k_de_en_short", "softmax+rela_g", tmp_path, *options, **more)
    lengths = {
        split: [
            len(line.split())
            for line in (tmp_path / f"data/prepared/tokenized/{split}.de").read_text().splitlines()
        ]
        for split in ("train", "long")
    }
    assert max(lengths["train"]) == 7 and len(lengths["train"]) == 180
    assert min(lengths["long"]) == 8 and len(lengths["long"]) == 120
    summary = json.loads((made / "summary.json").read_text())
    assert (summary["bleu"]["sentences"], summary["long"]["sentences"]) == (20, 120)
    translations = (made / "hyp-long.detok.txt").read_text().splitlines()
    reference = (tmp_path / "data/prepared/text/long.en").read_text().splitlines()
    chrf = sacrebleu.corpus_chrf(translations, [reference])
    assert summary["long"]["chrf"] == pytest.approx(chrf.score)
