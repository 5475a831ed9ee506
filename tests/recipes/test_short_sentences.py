"""The recipe that trains on short sentences and also tests on long ones."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import sacrebleu

from fairseq_sparse.commands import run

TINY = ("encoder-layers=1", "encoder-embed-dim=16", "decoder-layers=1", "decoder-embed-dim=16")
TINY += ("generate.max-len-b=20", "corpus.max_tokens=7")


def write_raw(folder: Path) -> None:
    """Write sentences of 2 to 11 words, and the same in capitals as the other side."""
    folder.mkdir()
    random_state = random.Random(1)
    for split, count in (("train", 300), ("val", 20), ("test_2016_flickr", 20)):
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


@pytest.mark.slow
def test_a_model_of_short_sentences_is_scored_on_long_ones(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw")
    options = ["--cpu", "--epochs", "2", "--average", "2", "--bpe-merges", "30"]
    for value in TINY:
        options += ["--set", value]
    for name in ("raw", "data", "run"):
        options += [f"--{name}-dir", str(tmp_path / name)]
    assert run.main(["multi30k_de_en_short", "softmax+rela_g", *options]) == 0
    prepared = tmp_path / "data" / "prepared"
    lengths = lengths_of(prepared / "tokenized")
    assert max(lengths["train"]) == 7 and len(lengths["train"]) == 180
    assert min(lengths["long"]) == 8 and len(lengths["long"]) == 120
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["bleu"]["sentences"] == len(lengths["test"]) == 20
    assert summary["long"]["sentences"] == 120
    translations = (tmp_path / "run" / "hyp-long.detok.txt").read_text().split("\n")[:-1]
    reference = (prepared / "text" / "long.en").read_text()
    chrf = sacrebleu.corpus_chrf(translations, [reference.split("\n")[:-1]])
    assert summary["long"]["chrf"] == pytest.approx(chrf.score)
