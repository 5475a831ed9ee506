#!/usr/bin/env python3
"""Find the --max-tokens and --update-freq for a given number of target tokens in an update.

fairseq's --max-tokens counts the longer side of each sentence pair, padding included; papers count
target tokens. This script forms batches as fairseq does, from the lengths in the training data (or
in a random part of it), and prints --max-tokens, --update-freq and the mean number of target tokens
in an update, with EOS and without padding.
"""

from __future__ import annotations

import argparse
import math
import struct
import sys
from pathlib import Path

from command_line import exit_status, positive, report_errors, script_parser

# fairseq's --required-batch-size-multiple, and its limit for positions of a Transformer.
MULTIPLE, LONGEST = 8, 1024
PAIRS = 300_000
ROUNDS = 6


def read_lengths(folder: Path, source: str, target: str):
    """Return the lengths of at most ``PAIRS`` random training pairs, ``[pairs, 2]``."""
    import numpy as np
    from fairseq.data import data_utils

    sides = []
    for language in (source, target):
        path = folder / f"train.{source}-{target}.{language}"
        try:
            dataset = data_utils.load_indexed_dataset(str(path), None)
        except (AssertionError, ValueError, struct.error) as error:
            raise ValueError(f"{path}: these are no data of fairseq-preprocess: {error}") from error
        if dataset is None:
            raise ValueError(f"{path}: there are no such training data")
        # A copy: the file is closed with the data set.
        sides.append(np.array(dataset.sizes, dtype=np.int64))
    lengths = np.stack(sides, axis=1)
    generator = np.random.default_rng(1)
    chosen = generator.permutation(len(lengths))[:PAIRS]
    return lengths[chosen]


def target_tokens(lengths, max_tokens: int) -> float:
    """Return the mean number of target tokens in a batch that fairseq forms."""
    import numpy as np
    from fairseq.data import data_utils

    longer = lengths.max(axis=1)
    lengths = lengths[longer <= min(max_tokens, LONGEST)]
    if not len(lengths):
        raise ValueError(f"no training pair fits into {max_tokens} tokens: give --device-tokens")
    # The same order as LanguagePairDataset.ordered_indices().
    order = np.argsort(lengths[:, 1], kind="mergesort")
    order = order[np.argsort(lengths[order, 0], kind="mergesort")]
    batches = data_utils.batch_by_size(
        order,
        num_tokens_fn=None,
        num_tokens_vec=lengths.max(axis=1)[order],
        max_tokens=max_tokens,
        required_batch_size_multiple=MULTIPLE,
    )
    used = np.concatenate(batches)
    return float(lengths[used, 1].sum() / len(batches))


def find_batch(lengths, tokens: int, devices: int, device_tokens: int) -> tuple[int, int, float]:
    """Return ``--max-tokens``, ``--update-freq`` and the mean number of target tokens in an update.

    An update has as few batches as the devices' memory allows, and they are as large as needed.
    """
    mean = target_tokens(lengths, device_tokens)
    frequency = max(1, math.ceil(tokens / (devices * mean)))
    share = tokens / (devices * frequency)
    max_tokens, best = device_tokens, (math.inf, device_tokens, mean)
    for _ in range(ROUNDS):
        max_tokens = min(device_tokens, max(1, round(max_tokens * share / mean)))
        mean = target_tokens(lengths, max_tokens)
        best = min(best, (abs(mean - share), max_tokens, mean))
    _, max_tokens, mean = best
    return max_tokens, frequency, mean * devices * frequency


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("data", type=Path, help="folder of fairseq-preprocess")
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    parser.add_argument(
        "--target-tokens", type=positive, required=True, help="target tokens per update"
    )
    parser.add_argument(
        "--devices", type=positive, default=1, help="number of devices (default: 1)"
    )
    parser.add_argument(
        "--device-tokens", type=positive, required=True, help="largest --max-tokens of a device"
    )
    return parser.parse_args(argv)


def print_batch(args: argparse.Namespace) -> None:
    lengths = read_lengths(args.data, args.source_lang, args.target_lang)
    sizes = find_batch(lengths, args.target_tokens, args.devices, args.device_tokens)
    print(f"{sizes[0]} {sizes[1]} {sizes[2]:.0f}")


def main(argv: list[str] | None = None) -> int:
    return report_errors("batch_size", print_batch, parse_args(argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
