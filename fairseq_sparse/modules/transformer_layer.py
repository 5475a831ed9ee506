"""Transformer layers with any kind of attention, through the hooks of fairseq's layers."""

from typing import Any

from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from fairseq_sparse.modules.attention_config import attention_options
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention


class SparseTransformerEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer, with the attention that the flags ask for."""

    def __init__(self, cfg, return_fc: bool = False):
        super().__init__(cfg, return_fc)
        # fairseq 0.12.2: a freshly loaded model would take a fused layer that skips self_attn, and
        # that fails under recent torch.
        self.can_use_fastpath = False

    def build_self_attention(self, embed_dim: int, cfg) -> nn.Module:
        options = attention_options(cfg, "enc")
        if options["attention"] == "softmax":
            return super().build_self_attention(embed_dim, cfg)
        heads = cfg.encoder.attention_heads
        return _sparse_attention(self, cfg, embed_dim, heads, self_attention=True, **options)


class SparseTransformerDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer, with the attention that the flags ask for."""

    def build_self_attention(self, embed_dim: int, cfg, **kwargs) -> nn.Module:
        options = attention_options(cfg, "dec")
        if options["attention"] == "softmax":
            return super().build_self_attention(embed_dim, cfg, **kwargs)
        # With cross_self_attention the mask covers the source, too.
        options["self_attention"] = options["is_causal"] = not cfg.cross_self_attention
        heads = cfg.decoder.attention_heads
        return _sparse_attention(self, cfg, embed_dim, heads, **kwargs, **options)

    def build_encoder_attention(self, embed_dim: int, cfg) -> nn.Module:
        options = attention_options(cfg, "cross")
        if options["attention"] == "softmax":
            return super().build_encoder_attention(embed_dim, cfg)
        width = cfg.encoder.embed_dim
        options.update(kdim=width, vdim=width, encoder_decoder_attention=True)
        return _sparse_attention(self, cfg, embed_dim, cfg.decoder.attention_heads, **options)


def _sparse_attention(
    layer: nn.Module, cfg: Any, embed_dim: int, heads: int, **options: Any
) -> SparseMultiheadAttention:
    """Build the attention of a layer, with the settings that all places share."""
    return SparseMultiheadAttention(
        embed_dim,
        heads,
        dropout=cfg.attention_dropout,
        q_noise=layer.quant_noise,
        qn_block_size=layer.quant_noise_block_size,
        **options,
    )


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Wrap a layer as --checkpoint-activations and fully sharded training require."""
    if cfg.checkpoint_activations:
        # A checkpointed layer is always sharded, whatever its size.
        wrapped = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(wrapped, min_num_params=0)
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)
