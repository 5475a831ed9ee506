"""Search on probabilities that were divided by their sum (``--score-normalization sum``)."""

from typing import Any, Optional

import torch
from torch import Tensor, nn


class NormalizedScores(nn.Module):
    """A model whose probabilities are divided by their sum at every step.

    It replaces *model* in one generator, and forwards everything else to it. The model itself does
    not change: another generator over the same model gets the unnormalised weights of alpha-ReLU.

    Args:
        model: any fairseq model with a decoder.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # not set yet, as while a copy is being made
                raise
            return getattr(self.model, name)

    def forward(self, *args, **kwargs) -> Any:
        """Call the model."""
        return self.model(*args, **kwargs)

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        """Return (log-)probabilities that sum to 1, or are all 0 where the model's are."""
        scores = self.model.get_normalized_probs(net_output, True, sample)
        total = torch.logsumexp(scores, dim=-1, keepdim=True)
        scores = scores - total.masked_fill(torch.isneginf(total), 0.0)
        return scores if log_probs else scores.exp()
