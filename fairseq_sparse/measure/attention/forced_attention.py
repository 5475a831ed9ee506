"""The attention of a model in each sentence pair, given the target (teacher-forced)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_sparse.measure.attention.attention_statistics import watch_attention


@dataclass(frozen=True)
class SentenceAttention:
    """The weights of every head in one sentence pair, on the CPU.

    Attributes:
        number: the pair's number in its data set, from 0, as ``fairseq-generate`` prints it.
        source: tokens, EOS at the end, ``[source length]``.
        target: tokens, EOS at the end, ``[target length]``. Row ``t`` of the decoder's and of
            cross-attention is the query that predicts ``target[t]``; its input was
            ``target[t - 1]``, and EOS for the first.
        weights: for each requested place ``[layers, heads, queries, keys]``, fp32, without
            padding; 0 for keys that a query may not see.
    """

    number: int
    source: Tensor
    target: Tensor
    weights: dict[str, Tensor]


@torch.no_grad()
def forced_attention(
    model: nn.Module,
    sample: Mapping[str, Any],
    padding_index: int,
    places: Sequence[str] = ("cross",),
) -> Iterator[SentenceAttention]:
    """Run a model on a batch and yield the attention of its sentence pairs one by one.

    The weights of the whole batch stay on the model's device; they are converted to fp32 pair by
    pair.

    Args:
        model: in eval mode, with attention as for :func:`attention_modules`.
        sample: a fairseq batch, with ``id``, ``net_input`` and ``target``.
        padding_index: of source and target dictionary.
        places: some of ``PLACES``.

    Raises:
        ValueError: the model has no such attention.
    """
    found: dict[str, dict[int, Tensor]] = {place: {} for place in places}
    seen: dict[str, Tensor] = {}  # [batch, queries, keys]

    def keep(place: str, layer: int, weights: Tensor, masked: Tensor) -> None:
        found[place][layer] = weights.masked_fill(masked, 0)
        seen[place] = ~masked.expand(weights.shape[1:])

    with watch_attention(model, keep, places):
        model.extract_features(**sample["net_input"])
    for place, layers in found.items():
        if not layers:
            raise ValueError(f"the model has no {place} attention")
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    for row, number in enumerate(sample["id"].tolist()):
        real_source, real_target = source[row] != padding_index, target[row] != padding_index
        weights = {}
        for place, layers in found.items():
            queries = real_source if place == "encoder" else real_target
            keys = seen[place][row][queries].any(0)
            rows = [layers[layer][:, row][:, queries][..., keys] for layer in sorted(layers)]
            weights[place] = torch.stack(rows).float().cpu()
        source_tokens, target_tokens = source[row][real_source], target[row][real_target]
        yield SentenceAttention(number, source_tokens.cpu(), target_tokens.cpu(), weights)
