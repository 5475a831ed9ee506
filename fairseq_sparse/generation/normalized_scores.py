"""Kinds of scores of a model: log-probabilities with or without zeros, weights that do not sum to
1, these divided by their sum (``--score-normalization sum``), and any of them at a temperature."""

from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor, nn


class RescoredModel(nn.Module):
    """A model with other scores, which replaces *model* in one generator.

    Everything but the scores is forwarded to the model. The model itself does not change: another
    generator over the same model gets its own scores.

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


class NormalizedScores(RescoredModel):
    """A model whose probabilities are divided by their sum at every step."""

    are_normalized = True

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        """Return (log-)probabilities that sum to 1, or are all 0 where the model's are."""
        scores = self.model.get_normalized_probs(net_output, True, sample)
        total = torch.logsumexp(scores, dim=-1, keepdim=True)
        scores = scores - total.masked_fill(torch.isneginf(total), 0.0)
        return scores if log_probs else scores.exp()


class TemperedScores(RescoredModel):
    """A model at a temperature, as its output transform defines it; other models divide logits.

    Args:
        model: any fairseq model with a decoder.
        temperature: > 0.
    """

    def __init__(self, model: nn.Module, temperature: float):
        super().__init__(model)
        self.temperature = temperature

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        """Return the (log-)probabilities at the temperature."""
        logits, *extra = net_output
        transform = getattr(_output_projection(self.model), "transform", None)
        if transform is None:  # a model of fairseq's, or adaptive softmax
            logits = logits / self.temperature
        else:
            logits = transform.at_temperature(logits, self.temperature)
        return self.model.get_normalized_probs((logits, *extra), log_probs, sample)


def at_temperature(models: Iterable[nn.Module], temperature: float) -> list[nn.Module]:
    """Wrap the models in :class:`TemperedScores`, unless the temperature is 1."""
    if temperature == 1:
        return list(models)
    return [TemperedScores(model, temperature) for model in models]


def is_sparse_model(model: Optional[nn.Module]) -> bool:
    """Return whether *model* can give a token probability 0, as its output projection says."""
    return getattr(_output_projection(model), "is_sparse", False)


def scores_are_log_probs(model: nn.Module) -> bool:
    """Return whether the scores of a model are log-probabilities; False for raw alpha-ReLU."""
    return are_normalized(model) or getattr(_output_projection(model), "scores_are_log_probs", True)


def are_normalized(model: nn.Module) -> bool:
    """Return whether the scores of a model are those of :class:`NormalizedScores`."""
    return getattr(model, "are_normalized", False)


def with_distributions(models: Iterable[nn.Module]) -> list[nn.Module]:
    """Wrap those models whose probabilities do not sum to 1 in :class:`NormalizedScores`."""
    return [model if scores_are_log_probs(model) else NormalizedScores(model) for model in models]


def _output_projection(model: Optional[nn.Module]) -> Optional[nn.Module]:
    return getattr(getattr(model, "decoder", None), "output_projection", None)


def refuse_nan(values: Tensor) -> None:
    """Raise a ValueError if there is a NaN among probabilities, or their sums or logarithms."""
    if values.isnan().any():
        raise ValueError("probabilities are NaN: the model's parameters are NaN or infinite")
