"""The options of beam search and of exact search."""

import math
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_sparse.generation.certificate import ScoreBound, Step


@dataclass(frozen=True)
class SearchSettings:
    """The options of a search, as the flags of ``fairseq-generate`` set them.

    Attributes:
        beam: beam size.
        nbest: how many of the best hypotheses must be those of the full search.
        pad, unk, eos: indices of padding, the unknown token, and the token that ends a hypothesis.
        min_len: minimum number of tokens, EOS not counted.
        len_penalty: exponent of the length that divides a score; None: no division.
        unk_penalty: number to subtract from the score of the unknown token.
        suppressed: tokens that must not be chosen.
        no_repeat_ngram_size: n of the n-grams that must not be repeated; 0: no limit.
        lm_weight: weight of the scores of the language model.
        continues_prompts: whether prefixes are prompts of a language model, in which EOS ends
            nothing, rather than parts of translations.
        add_up_mass: whether to add up the probability of everything that is dropped.
        adds_log_probs: whether the models alone give the scores, and these are log-probabilities.
        sums_to_one: whether, moreover, the probabilities of the next token always sum to 1.
    """

    beam: int
    nbest: int
    pad: int
    unk: int
    eos: int
    min_len: int
    len_penalty: Optional[float]
    unk_penalty: float
    suppressed: tuple[int, ...]
    no_repeat_ngram_size: int
    lm_weight: float
    continues_prompts: bool
    add_up_mass: bool
    adds_log_probs: bool
    sums_to_one: bool

    def score_bound(self, max_len: Step) -> ScoreBound:
        """Return the bound of final scores for hypotheses of at most *max_len* tokens, a number or
        one for each sentence."""
        return ScoreBound(max_len, self.len_penalty, self.adds_log_probs and self.unk_penalty >= 0)

    @property
    def sums_to_one_from(self) -> float:
        """The first step from which the probabilities of the next token sum to 1 although tokens
        are masked; infinity if there is none."""
        is_masked = self.suppressed or self.unk_penalty != 0 or self.no_repeat_ngram_size > 0
        return self.min_len if self.sums_to_one and not is_masked else math.inf

    def mask_next(self, step: int, forced: np.ndarray, log_probs: Tensor) -> np.ndarray:
        """Mask all but the forced tokens in place; mask EOS and suppressed tokens elsewhere.

        A forced token of probability 0 gets score 0: it changes no score.

        Args:
            step: the number of tokens that each hypothesis has.
            forced: the next token of each sentence, padding if any may come, ``[sentences]``.
            log_probs: ``[sentences, beam, vocabulary]``, the best hypothesis of each sentence
                first.

        Returns:
            the sentences whose forced token has probability 0
        """
        is_forced = forced != self.pad
        forbidden = (self.eos,) * (step < self.min_len) + self.suppressed
        if forbidden:
            free = torch.from_numpy(np.flatnonzero(~is_forced)).to(log_probs.device)
            for each in forbidden:
                log_probs[free, :, each] = -math.inf
        rows = np.flatnonzero(is_forced)
        if len(rows) == 0:
            return rows
        row, token = (torch.from_numpy(x).to(log_probs.device) for x in (rows, forced[rows]))
        kept = log_probs[row, :, token]  # [forced, beam]
        is_zero = kept.isneginf()
        log_probs[row] = -math.inf
        log_probs[row, :, token] = kept.masked_fill(is_zero, 0.0)
        return rows[is_zero[:, 0].numpy(force=True)]
