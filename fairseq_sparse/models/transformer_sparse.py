"""fairseq's Transformer with a sparse output layer and sparse attention."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, Optional

from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
    base_architecture,
    tiny_architecture,
    transformer_iwslt_de_en,
    transformer_wmt_en_de,
    transformer_wmt_en_de_big,
)
from torch import Tensor

from fairseq_sparse.modules.attention_config import AttentionConfig, check_attention
from fairseq_sparse.modules.flag_checks import check_adaptive_softmax, check_tied_output
from fairseq_sparse.modules.model_settings import add_flags, architecture, set_flag_defaults
from fairseq_sparse.modules.output_config import OutputConfig, build_output_projection
from fairseq_sparse.modules.sparse_output import SparseOutputDecoder, SparseOutputModel
from fairseq_sparse.modules.transformer_layer import (
    SparseTransformerDecoderLayer,
    SparseTransformerEncoderLayer,
    wrap_layer,
)

_FLAGS = (OutputConfig, AttentionConfig)

# Copies of an encoder layer's parameters, for fused layers, in the checkpoints of fairseq 0.12.2.
FUSED_COPIES = re.compile(r"\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")


class SparseTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder, with the attention that the flags ask for."""

    def build_encoder_layer(self, cfg):
        return wrap_layer(SparseTransformerEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str):
        """Same as in fairseq, without the copies that fairseq 0.12.2 makes of parameters."""
        for key in list(state_dict):
            if key.startswith(f"{name}.") and FUSED_COPIES.fullmatch(key, len(name)):
                del state_dict[key]
        return super().upgrade_state_dict_named(state_dict, name)


class SparseTransformerDecoder(SparseOutputDecoder, TransformerDecoderBase):
    """fairseq's decoder, with the attention that the flags ask for, and with an
    :class:`OutputProjection` as its last layer."""

    def __init__(self, cfg, *args, **kwargs):
        super().__init__(cfg, *args, **kwargs)
        self.load_alignments = bool(getattr(cfg, "load_alignments", False))

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return wrap_layer(SparseTransformerDecoderLayer(cfg, no_encoder_attn), cfg)

    def extract_features(
        self,
        prev_output_tokens,
        encoder_out: Optional[dict[str, list[Tensor]]],
        incremental_state: Optional[dict[str, dict[str, Optional[Tensor]]]] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ):
        """Same as in fairseq, except that in training no layer returns its attention weights unless
        asked to, because all of them would be in memory at once. Criterions with alignments use
        those of the last layer without asking."""
        if alignment_layer is None and self.training and not self.load_alignments:
            alignment_layer = -1
        return self.extract_features_scriptable(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
        )

    def build_output_projection(self, cfg, dictionary, embed_tokens):
        if self.share_input_output_embed and cfg.adaptive_softmax_cutoff is None:
            check_tied_output(embed_tokens, (len(dictionary), self.output_embed_dim))
        super().build_output_projection(cfg, dictionary, embed_tokens)
        if self.adaptive_softmax is None:
            self.output_projection = build_output_projection(self.output_projection, cfg)
        else:
            check_adaptive_softmax(cfg)


@register_model("transformer_sparse")
class TransformerSparseModel(SparseOutputModel, TransformerModel):
    """fairseq's ``transformer`` with its output transform and attention chosen by flags.

    With softmax everywhere it computes exactly what the stock model does, but for the masks that
    dropout draws, with the same state-dict keys, so each can load the other's checkpoints.
    """

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        super().add_args(parser)
        add_flags(parser, *_FLAGS)

    @classmethod
    def complete_flags(cls, args: Namespace) -> None:
        set_flag_defaults(args, *_FLAGS)
        check_attention(args)
        for name in ("encoder_layers_to_keep", "decoder_layers_to_keep"):
            kept = getattr(args, name, None)
            if isinstance(kept, list):  # of the command line; fairseq's model takes text alone
                setattr(args, name, ",".join(map(str, kept)))

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens):
        return SparseTransformerEncoder(
            TransformerConfig.from_namespace(args), src_dict, embed_tokens
        )

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens):
        cfg = TransformerConfig.from_namespace(args)
        return SparseTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )


def _with_flags(stock: Callable[[Namespace], None], args: Namespace) -> None:
    """Fill in the settings of an architecture of fairseq's, and the flags of this package."""
    set_flag_defaults(args, *_FLAGS)
    stock(args)


for _suffix, _stock in {
    "": base_architecture,
    "_tiny": tiny_architecture,
    "_iwslt_de_en": transformer_iwslt_de_en,
    "_wmt_en_de": transformer_wmt_en_de,
    "_wmt_en_de_big": transformer_wmt_en_de_big,
}.items():
    architecture("transformer_sparse", f"transformer_sparse{_suffix}")(partial(_with_flags, _stock))
