"""``--no-repeat-ngram-size``: the tokens that would repeat an n-gram of a hypothesis."""

import math
from typing import Optional

import numpy as np
import torch
from torch import Tensor, nn


class RepeatedNGramMask(nn.Module):
    """Masks what would repeat an n-gram, in the place of fairseq's ``NGramRepeatBlock``.

    fairseq's compares the padding behind the tokens as well, unless it has its CUDA extension, and
    takes n = 1 for nothing at all or, with that extension, for the end of every hypothesis.

    Args:
        size: n, at least 1.

    Attributes:
        forced: the hypotheses whose next token is given, ``[hypotheses]``; for fairseq's loop, and
            of its next step only.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self.forced: Optional[np.ndarray] = None

    def forward(
        self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Tensor:
        """Mask as :meth:`mask` does; the arguments are fairseq's."""
        forced, self.forced = self.forced, None
        return self.mask(tokens[:, : step + 1].numpy(force=True), lprobs, forced)

    def mask(
        self, tokens: np.ndarray, log_probs: Tensor, forced: Optional[np.ndarray] = None
    ) -> Tensor:
        """Give the tokens that would repeat an n-gram the score -inf, in place.

        Args:
            tokens: ``[hypotheses, length]``, the first of them the decoder's start symbol.
            log_probs: of the next token, ``[hypotheses, vocabulary]``.
            forced: the hypotheses to leave as they are, ``[hypotheses]``.
        """
        length = tokens.shape[1]
        if length <= self.size:
            return log_probs
        ngrams = np.lib.stride_tricks.sliding_window_view(tokens[:, 1:], self.size, axis=1)
        last = tokens[:, None, length - self.size + 1 :]  # [hypotheses, 1, n - 1]
        repeats = (ngrams[:, :, :-1] == last).all(axis=2)  # [hypotheses, n-grams]
        if forced is not None:
            repeats[forced] = False
        rows, places = repeats.nonzero()
        row, token = torch.from_numpy(rows), torch.from_numpy(ngrams[rows, places, -1])
        log_probs[row.to(log_probs.device), token.to(log_probs.device)] = -math.inf
        return log_probs
