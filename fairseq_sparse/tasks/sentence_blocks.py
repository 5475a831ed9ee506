"""A text with one block per line, for language models."""

import numpy as np
from fairseq.data import TokenBlockDataset


class SentenceBlocks(TokenBlockDataset):
    """fairseq's ``TokenBlockDataset`` with ``break_mode="eos"``, made to work under NumPy 2.

    An item is the triple (source, target, past target).

    Args:
        dataset: the lines, each a tensor of tokens.
        sizes: their lengths.
        pad, eos: indices of padding and of the end of a line.
    """

    def __init__(self, dataset, sizes, pad: int, eos: int):
        options = {"break_mode": "eos", "include_targets": True}
        super().__init__(dataset, sizes, None, pad, eos, **options)

    @staticmethod
    def _build_slice_indices(sizes, break_mode, document_sep_len, block_size):
        sizes = np.asarray(sizes).astype(np.int64)
        rows, ends = np.arange(len(sizes)), sizes.cumsum()
        # Each block begins at offset 0 of the line with its number, and ends in that line.
        places = np.stack([rows, np.zeros_like(rows), rows], axis=1)
        return sizes, places, np.stack([ends - sizes, ends], axis=1)
