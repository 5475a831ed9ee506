"""Kinds of scores of a model: log-probabilities with or without zeros, weights that do not sum to
1, and these divided by their sum (``--score-normalization sum``)."""

from collections.abc import Iterable
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


def is_sparse_model(model: Optional[nn.Module]) -> bool:
    """Return whether *model* can give a token probability 0, as its output projection says."""
    return getattr(_output_projection(model), "is_sparse", False)


def scores_are_log_probs(model: nn.Module) -> bool:
    """Return whether the scores of a model are log-probabilities; False for raw alpha-ReLU."""
    if isinstance(model, NormalizedScores):
        return True
    return getattr(_output_projection(model), "scores_are_log_probs", True)


def with_distributions(models: Iterable[nn.Module]) -> list[nn.Module]:
    """Wrap those models whose probabilities do not sum to 1 in :class:`NormalizedScores`."""
    return [model if scores_are_log_probs(model) else NormalizedScores(model) for model in models]


def _output_projection(model: Optional[nn.Module]) -> Optional[nn.Module]:
    return getattr(getattr(model, "decoder", None), "output_projection", None)


def refuse_nan(values: Tensor) -> None:
    """Raise a ValueError if there is a NaN among probabilities, or their sums or logarithms."""
    if values.isnan().any():
        raise ValueError("probabilities are NaN: the model's parameters are NaN or infinite")
