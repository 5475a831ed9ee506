"""The attention of an LSTM decoder: one query at a time, over all source positions."""

from typing import Optional

import torch
from fairseq.models.lstm import AttentionLayer
from torch import Tensor, nn

from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.ops.precision import at_least_fp32, without_autocast


def add_bias(attention: AttentionLayer) -> None:
    """Give the map of the attentional states a bias, drawn as fairseq's LSTM draws its biases."""
    weight = attention.output_proj.weight
    bias = torch.empty(weight.size(0), dtype=weight.dtype, device=weight.device)
    attention.output_proj.bias = nn.Parameter(bias.uniform_(-0.1, 0.1))


class GlobalAttention(AttentionLayer):
    """fairseq's global attention with weights other than softmax.

    Scores are bilinear, ``h_t W s`` ("general" in Luong et al. 2015), and the result is
    ``tanh(W_c [c_t; h_t] + b)`` with the context ``c_t``, the weighted mean of the source states.
    There is a bias ``b`` only if :func:`add_bias` has added it.

    Args:
        stock: the attention to replace; its parameters are taken over, not copied.
        attention: the kind of weights, a key of ``ATTENTION_KINDS`` whose weights sum to 1.
        alpha: the alpha of ``entmax``, > 1.
    """

    def __init__(self, stock: AttentionLayer, attention: str, alpha: float):
        nn.Module.__init__(self)  # the stock __init__ would draw parameters
        self.input_proj = stock.input_proj
        self.output_proj = stock.output_proj
        self.attention_kind = attention
        kind = ATTENTION_KINDS[attention]
        self.weights = kind.weights.with_alpha(alpha) if kind.takes_alpha else kind.weights

    def forward(
        self, input: Tensor, source_hids: Tensor, encoder_padding_mask: Optional[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Attend with the decoder states of one step.

        Args:
            input: states of the decoder, ``[batch, decoder size]``.
            source_hids: states of the encoder, ``[source length, batch, encoder size]``.
            encoder_padding_mask: ``[source length, batch]``, true where there is no source token.

        Returns:
            Attentional states ``[batch, decoder size]`` and, without a gradient, the weights
            ``[source length, batch]``.
        """
        states = source_hids.transpose(0, 1)  # [batch, source length, encoder size]
        query = self.input_proj(input).type_as(source_hids)
        with without_autocast(source_hids):
            scores = (states @ query.unsqueeze(-1)).squeeze(-1)  # [batch, source length]
            if encoder_padding_mask is not None:
                masked = encoder_padding_mask.t()
                scores = at_least_fp32(scores).masked_fill(masked, float("-inf"))
            weights = self.weights(scores).type_as(source_hids)
            context = (weights.unsqueeze(1) @ states).squeeze(1)
        output = torch.tanh(self.output_proj(torch.cat((context, input), dim=1)))
        return output, weights.detach().t()
