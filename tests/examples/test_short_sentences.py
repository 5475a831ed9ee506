"""The recipe that trains on short sentences and also tests on long ones."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import sacrebleu

import recipes

TINY = (
    "--encoder-layers 1 --encoder-embed-dim 16 --decoder-layers 1 --decoder-embed-dim 16 "
    "--max-epoch 2 --log-interval 2"
)


def write_raw(folder: Path, train: int = 300) -> None:
    """Write sentences of 2 to 11 words, and the same in capitals as the other side."""
    folder.mkdir()
    random_state = random.Random(1)
    for split, count in (("train", train), ("val", 20), ("test_2016_flickr", 20)):
        lines = [
            " ".join(
                random_state.choices("ein Hund sieht die alte Straße".split(), k=length % 10 + 2)
            )
            for length in range(count)
        ]
        for language, text in (("de", lines), ("en", [line.upper() for line in lines])):
            path = folder / f"{split}.{language}.gz"
            path.write_bytes(gzip.compress("".join(f"{line}\n" for line in text).encode()))


def lengths_of(data: Path) -> dict[str, list[int]]:
    """Return the numbers of German tokens of each split."""
    return {
        split: [len(line.split()) for line in (data / f"{split}.de").read_text().splitlines()]
        for split in ("train", "test", "long")
    }


def test_longer_sentences_are_a_test_set(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", 60)
    recipes.run(
        *("run.sh", "multi30k_de_en_short", "softmax", "--cpu", "--stages", "prepare"),
        *("--data-dir", tmp_path / "data", "--run-dir", tmp_path / "run"),
        **{"RAW_DIR": tmp_path / "raw", "TRAIN_TOKENS": 7, "BPE_MERGES": 10},
    )
    prepared = tmp_path / "data" / "prepared"
    lengths = lengths_of(prepared / "tokenized")
    assert set(lengths["train"]) == set(range(2, 8)) and set(lengths["long"]) == set(range(8, 12))
    assert len(lengths["train"]) == 36 and len(lengths["long"]) == 24
    assert len((prepared / "reference" / "long.en").read_text().splitlines()) == 24
    assert (prepared / "bin" / "test1.de-en.de.bin").stat().st_size > 0


@pytest.mark.slow
def test_a_model_of_short_sentences_is_scored_on_long_ones(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw")
    printed = recipes.run(
        *("run.sh", "multi30k_de_en_short", "rela_g", "--cpu"),
        *("--data-dir", tmp_path / "data", "--run-dir", tmp_path / "run"),
        RAW_DIR=tmp_path / "raw",
        TRAIN_TOKENS=7,
        AVERAGE_LAST=2,
        BPE_MERGES=30,
        TRAIN_FLAGS=TINY,
        GENERATE_FLAGS="--max-len-b 20",
    ).stdout
    lengths = lengths_of(tmp_path / "data" / "prepared" / "tokenized")
    assert max(lengths["train"]) == 7 and len(lengths["train"]) == 180
    assert min(lengths["long"]) == 8 and len(lengths["long"]) == 120
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["bleu"]["sentences"] == len(lengths["test"]) == 20
    assert summary["long"]["sentences"] == 120
    assert "long sentences" in printed and printed.count("chrF2 = ") == 2
    translations = (tmp_path / "run" / "hyp-long.detok.txt").read_text().split("\n")[:-1]
    reference = (tmp_path / "data" / "prepared" / "reference" / "long.en").read_text()
    chrf = sacrebleu.corpus_chrf(translations, [reference.split("\n")[:-1]])
    assert summary["long"]["chrf"] == pytest.approx(chrf.score)
