"""``--max-tokens`` and ``--update-freq`` for a number of target tokens (``corpus batch-size``)."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_sparse.errors import RecipeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# fairseq's --required-batch-size-multiple, and its limit for positions of a Transformer.
_MULTIPLE, _LONGEST = 8, 1024
_PAIRS = 300_000
_ROUNDS = 6


def read_lengths(folder: Path, source: str, target: str) -> NDArray:
    """Return the lengths of at most ``_PAIRS`` random training pairs, ``[pairs, 2]``.

    Raises:
        RecipeError: the folder has no training data of fairseq-preprocess.
    """
    import numpy as np
    from fairseq.data import data_utils

    sides = []
    for language in (source, target):
        path = folder / f"train.{source}-{target}.{language}"
        try:
            dataset = data_utils.load_indexed_dataset(str(path), None)
        except (AssertionError, ValueError, struct.error) as error:
            raise RecipeError(f"{path}: not data of fairseq-preprocess: {error}") from error
        if dataset is None:
            raise RecipeError(f"{path}: there are no such training data")
        # A copy: the file is closed with the data set.
        sides.append(np.array(dataset.sizes, dtype=np.int64))
    lengths = np.stack(sides, axis=1)
    return lengths[np.random.default_rng(1).permutation(len(lengths))[:_PAIRS]]


def find_batch_size(
    lengths: NDArray, tokens: int, devices: int, device_tokens: int
) -> tuple[int, int, float]:
    """Return ``--max-tokens``, ``--update-freq`` and the mean number of target tokens in an update.

    An update has as few batches as the devices' memory allows, and they are as large as needed.

    Args:
        lengths: of source and target, with EOS, ``[pairs, 2]``.
        tokens: wanted target tokens per update, with EOS and without padding.
        device_tokens: the largest ``--max-tokens`` of a device.

    Raises:
        RecipeError: no training pair fits into a batch.
    """
    mean = _target_tokens(lengths, device_tokens)
    frequency = max(1, math.ceil(tokens / (devices * mean)))
    share = tokens / (devices * frequency)
    max_tokens, best = device_tokens, (math.inf, device_tokens, mean)
    for _ in range(_ROUNDS):
        max_tokens = min(device_tokens, max(1, round(max_tokens * share / mean)))
        mean = _target_tokens(lengths, max_tokens)
        best = min(best, (abs(mean - share), max_tokens, mean))
    _, max_tokens, mean = best
    return max_tokens, frequency, mean * devices * frequency


def _target_tokens(lengths: NDArray, max_tokens: int) -> float:
    """Return the mean number of target tokens in a batch that fairseq forms."""
    import numpy as np
    from fairseq.data import data_utils

    longer = lengths.max(axis=1)
    lengths = lengths[longer <= min(max_tokens, _LONGEST)]
    if not len(lengths):
        raise RecipeError(f"no training pair fits into {max_tokens} tokens: raise --device-tokens")
    # The same order as LanguagePairDataset.ordered_indices().
    order = np.argsort(lengths[:, 1], kind="mergesort")
    order = order[np.argsort(lengths[order, 0], kind="mergesort")]
    batches = data_utils.batch_by_size(
        order,
        num_tokens_fn=None,
        num_tokens_vec=lengths.max(axis=1)[order],
        max_tokens=max_tokens,
        required_batch_size_multiple=_MULTIPLE,
    )
    used = np.concatenate(batches)
    return float(lengths[used, 1].sum() / len(batches))
