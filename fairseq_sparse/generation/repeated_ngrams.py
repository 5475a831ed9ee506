"""``--no-repeat-ngram-size``: masks tokens that would repeat an n-gram of a hypothesis."""

import math
from typing import Optional

import numpy as np
import torch
from torch import Tensor, nn


def mask_repeats(
    size: int, tokens: np.ndarray, log_probs: Tensor, forced: Optional[np.ndarray] = None
) -> Tensor:
    """Give the tokens that would repeat an n-gram the score -inf, in place.

    Args:
        size: n, at least 1.
        tokens: ``[hypotheses, length]``, beginning with the decoder's start symbol.
        log_probs: those of the next token, ``[hypotheses, vocabulary]``.
        forced: the hypotheses to leave unchanged (indices or a mask).
    """
    length = tokens.shape[1]
    if length <= size:
        return log_probs
    ngrams = np.lib.stride_tricks.sliding_window_view(tokens[:, 1:], size, axis=1)
    last = tokens[:, None, length - size + 1 :]  # [hypotheses, 1, n - 1]
    repeats = (ngrams[:, :, :-1] == last).all(axis=2)  # [hypotheses, n-grams]
    if forced is not None:
        repeats[forced] = False
    rows, places = repeats.nonzero()
    row, token = torch.from_numpy(rows), torch.from_numpy(ngrams[rows, places, -1])
    log_probs[row.to(log_probs.device), token.to(log_probs.device)] = -math.inf
    return log_probs


class RepeatedNGramMask(nn.Module):
    """:func:`mask_repeats` in fairseq's loop, in place of fairseq's ``NGramRepeatBlock``.

    Without its CUDA extension, fairseq's class also compares the padding behind the tokens, and
    ignores n = 1. With the extension, n = 1 ends every hypothesis.

    Args:
        size: n, at least 1.
        pad, eos: the padding of a hypothesis stands for EOS of a prompt (see
            ``SparseSequenceGenerator._prefix_tokens``).

    Attributes:
        forced: the hypotheses whose next token is forced (indices or a mask), for the next step
            only.
    """

    def __init__(self, size: int, pad: int, eos: int):
        super().__init__()
        self.size, self.pad, self.eos = size, pad, eos
        self.forced: Optional[np.ndarray] = None

    def forward(
        self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Tensor:
        """Mask as :func:`mask_repeats` does; the arguments are fairseq's."""
        forced, self.forced = self.forced, None
        tokens = tokens[:, : step + 1]
        tokens = tokens.masked_fill(tokens == self.pad, self.eos).numpy(force=True)
        return mask_repeats(self.size, tokens, lprobs, forced)
