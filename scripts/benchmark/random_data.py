"""Random parallel text in fairseq's binary format, for measurements that depend only on sizes."""

from __future__ import annotations

import argparse
from pathlib import Path

LANGUAGES = ("de", "en")
# The usual shift of the Zipf-Mandelbrot law, which word frequencies follow.
SHIFT = 2.7


def write(folder: Path, vocabulary: int, sentences: int, seed: int = 1) -> None:
    """Write a training set as ``fairseq-preprocess`` does, with a joint dictionary.

    Words are drawn by Zipf's law, so that a few make up most of the text; sentences have 8 to 50
    words, with similar numbers on both sides.

    Args:
        vocabulary: entries of the dictionary, the four special symbols included.
        sentences: number of sentence pairs.
    """
    import numpy as np
    import torch
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import make_builder

    words = Dictionary()
    for number in range(vocabulary - len(words)):
        words.add_symbol(f"w{number}", n=vocabulary - number)
    generator = np.random.default_rng(seed)
    frequency = 1 / (np.arange(vocabulary - words.nspecial) + SHIFT)
    frequency /= frequency.sum()
    lengths = generator.integers(8, 51, sentences)
    for language in LANGUAGES:
        words.save(str(folder / f"dict.{language}.txt"))
        prefix = str(folder / f"train.{'-'.join(LANGUAGES)}.{language}")
        builder = make_builder(f"{prefix}.bin", "mmap", vocab_size=vocabulary)
        for length in lengths + generator.integers(-3, 4, sentences):
            tokens = words.nspecial + generator.choice(len(frequency), length, p=frequency)
            builder.add_item(torch.from_numpy(np.append(tokens, words.eos())))
        builder.finalize(f"{prefix}.idx")


def vocabulary_size(text: str) -> int:
    """Parse a size that leaves room for words, for argparse."""
    value = int(text)
    if value < 8:
        raise argparse.ArgumentTypeError(f"a vocabulary has at least 8 entries, not {value}")
    return value
