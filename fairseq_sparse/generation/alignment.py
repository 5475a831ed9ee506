"""Word alignments from attention that can be null, or that has its padding in another place than
the source."""

from collections.abc import Sequence
from typing import Any

from fairseq import utils
from fairseq.models.lstm import LSTMDecoder, LSTMEncoder
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor, nn

from fairseq_sparse.generation.normalized_scores import at_temperature


def moves_padding(model: nn.Module) -> bool:
    """Return whether a model's attention always has the padding of a source at the end.

    It does for an LSTM, because fairseq's LSTM encoder moves the padding there.
    """
    return isinstance(getattr(model, "encoder", None), LSTMEncoder)


def attends_source(model: nn.Module) -> bool:
    """Return whether a model returns weights of attention to the source."""
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, LSTMDecoder):
        return decoder.attention is not None
    layers = getattr(decoder, "layers", None)  # of a Transformer
    return layers is None or any(
        getattr(layer, "encoder_attn", None) is not None for layer in layers
    )


def attended_source(models: Sequence[nn.Module], src_tokens: Tensor, pad: int) -> Tensor:
    """Return the source tokens in the order that the attention of an ensemble has.

    fairseq uses the order of the batch, and so makes wrong links if the source of an LSTM is padded
    on the left.

    Args:
        models: the ensemble.
        src_tokens: the input of the models, ``[batch, source length]``.
        pad: index of padding.

    Raises:
        ValueError: there is padding on the left, and only some of the models move it.
    """
    moves = [moves_padding(model) for model in models]
    if not any(moves) or not src_tokens[:, 0].eq(pad).any():
        return src_tokens
    if not all(moves):
        raise ValueError(
            "--print-alignment: an LSTM and another model have the padding of a batch in different "
            "places, so their attention cannot be averaged; use --batch-size 1"
        )
    return utils.convert_padding_direction(src_tokens, pad, left_to_right=True)


def extract_hard_alignment(
    attention: Tensor, source: Tensor, target: Tensor, pad: int, eos: int
) -> list[tuple[int, int]]:
    """Link each target token to the source token that it attends to most, if it attends to any.

    fairseq's ``utils.extract_hard_alignment`` takes the maximum even of a row of zeros, and so
    links a token that attends to nothing to the first source token.

    Args:
        attention: ``[target length, source length]``.
        source: token indices, with padding and EOS, which get no links.
        target: token indices, likewise.

    Returns:
        (source, target) positions, counted from 0 without padding and EOS.
    """
    links = utils.extract_hard_alignment(attention, source, target, pad, eos)
    if not links:
        return links
    # fairseq gives one link to each of these target tokens, in this order. The attention of a
    # batch can be shorter than its padded targets.
    linked = ((target != pad) & (target != eos)).nonzero().squeeze(-1)
    is_source_token = (source != pad) & (source != eos)
    attends = (attention[linked][:, is_source_token] > 0).any(-1).tolist()
    return [link for link, attended in zip(links, attends, strict=True) if attended]


class SparseSequenceScorer(SequenceScorer):
    """fairseq's scorer for ``--score-reference``, at a temperature. Null attention makes no links,
    and ``--print-alignment soft`` prints the attention itself."""

    def __init__(self, *args, temperature: float = 1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.temperature = temperature

    def generate(self, models, sample: dict[str, Any], **kwargs) -> list[list[dict[str, Any]]]:
        models = at_temperature(models, self.temperature)
        hypotheses = super().generate(models, sample, **kwargs)
        if not self.compute_alignment:
            return hypotheses
        is_soft = self.compute_alignment == "soft"
        extract = utils.extract_soft_alignment if is_soft else extract_hard_alignment
        sources = attended_source(models, sample["net_input"]["src_tokens"], self.pad)
        for row, (hypothesis,) in enumerate(hypotheses):
            if hypothesis["alignment"] is not None:
                hypothesis["alignment"] = extract(
                    hypothesis["attention"],
                    *(sources[row], sample["target"][row]),
                    *(self.pad, self.eos),
                )
        return hypotheses
