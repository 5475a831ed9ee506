"""Sampling that leaves out improbable tokens by a threshold: min-p and epsilon sampling."""

import math

import torch
from fairseq.search import Sampling
from torch import Tensor


class TruncatedSampling(Sampling):
    """fairseq's sampling, restricted to tokens whose probability reaches a threshold.

    As in fairseq, the score of a token is its log-probability before others are left out.

    Args:
        tgt_dict (~fairseq.data.Dictionary): target dictionary.
        sampling_topk, sampling_topp: as in fairseq, applied after the thresholds; *sampling_topp*
            is a share of the distribution before them.
        min_p: the threshold as a share of the largest probability (Nguyen et al. 2024); 0 for none.
        epsilon: the threshold (Hewitt, Manning, Liang 2022); the most probable token always
            remains. 0 for none.
    """

    def __init__(self, tgt_dict, sampling_topk, sampling_topp, min_p=0.0, epsilon=0.0):
        super().__init__(tgt_dict, sampling_topk, sampling_topp)
        self.min_p = min_p
        self.epsilon = epsilon

    def step(self, step: int, lprobs: Tensor, *args, **kwargs):
        """Take a step; arguments and result are those of ``fairseq.search.Sampling``."""
        largest = lprobs.amax(dim=-1, keepdim=True)
        threshold = largest + (math.log(self.min_p) if self.min_p > 0 else -math.inf)
        if self.epsilon > 0:
            # If the weights do not sum to 1, epsilon is a share of their sum.
            least = torch.logsumexp(lprobs, dim=-1, keepdim=True) + math.log(self.epsilon)
            threshold = torch.maximum(threshold, torch.minimum(least, largest))
        return super().step(
            step, lprobs.masked_fill(lprobs < threshold, -math.inf), *args, **kwargs
        )
