"""Recipes that need no catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_sparse.recipes.recipe import Corpus, Decoding, Model, RawFile, Recipe, Take, Training

TINY = {
    "encoder-layers": 1,
    "encoder-embed-dim": 32,
    "encoder-ffn-embed-dim": 32,
    "encoder-attention-heads": 2,
    "decoder-layers": 1,
    "decoder-embed-dim": 32,
    "decoder-ffn-embed-dim": 32,
    "decoder-attention-heads": 2,
}


def takes(**files: str) -> tuple[Take, ...]:
    """Return the sentences of the splits, from files that end in a language."""
    return tuple(Take(split, "text", f"{name}.de", f"{name}.en") for split, name in files.items())


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A small translation model."""
    return Recipe(
        dataset="toy",
        variant="entmax15",
        settings="",
        config="cpu",
        seed=1,
        label="",
        note="",
        task={"task": "translation_sparse", "source-lang": "de", "target-lang": "en"},
        corpus=Corpus(
            kind="parallel",
            source="de",
            target="en",
            files=(RawFile("train.de", "https://example.org/train.de", "0" * 64),),
            take=takes(train="train", valid="valid", test="test"),
            tokens={"de": "moses", "en": "moses"},
            bpe_merges=60,
        ),
        model=Model(
            output="entmax15",
            output_alpha=1.5,
            flags={"criterion": "entmax_loss", "output-transform": "entmax15"},
        ),
        training=Training(
            flags={"arch": "transformer_sparse", "share-all-embeddings": True, **TINY}
            | {"optimizer": "adam", "adam-betas": "(0.9, 0.98)", "lr": 0.01, "max-epoch": 3}
            | {"log-interval": 2},
            batch=512,
            unit="tokens",
            device_batch=300,
            average=2,
        ),
        decoding=Decoding(flags={"beam": 5, "max-len-b": 20}),
        data_dir=tmp_path / "data",
        run_dir=tmp_path / "run",
    )
