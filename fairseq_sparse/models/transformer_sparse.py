"""fairseq's Transformer with a sparse output layer and sparse attention."""

from argparse import ArgumentParser, Namespace
from typing import Any, Optional

from fairseq.models import register_model, register_model_architecture
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
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor

from fairseq_sparse.modules.attention_config import AttentionConfig, check_attention
from fairseq_sparse.modules.flags import add_flags, set_flag_defaults
from fairseq_sparse.modules.learned_alpha import log_learned_alpha
from fairseq_sparse.modules.output_config import (
    OutputConfig,
    build_output_projection,
    check_criterion,
)
from fairseq_sparse.modules.transformer_layer import (
    SparseTransformerDecoderLayer,
    SparseTransformerEncoderLayer,
    wrap_layer,
)

_FLAGS = (OutputConfig, AttentionConfig)


class SparseTransformerEncoder(TransformerEncoderBase):
    """The stock encoder, with the attention that the flags ask for."""

    def build_encoder_layer(self, cfg):
        return wrap_layer(SparseTransformerEncoderLayer(cfg, return_fc=self.return_fc), cfg)


class SparseTransformerDecoder(TransformerDecoderBase):
    """The stock decoder, with the attention that the flags ask for, and with an
    :class:`OutputProjection` as its last layer."""

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
        """As in stock, but in training no layer returns its attention unless it is asked to:
        returned weights are all in memory at once."""
        if alignment_layer is None and self.training:
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
        super().build_output_projection(cfg, dictionary, embed_tokens)
        if self.adaptive_softmax is None:
            self.output_projection = build_output_projection(self.output_projection, cfg)
        elif str(cfg.output_transform) != "softmax":
            raise ValueError(
                f"--adaptive-softmax-cutoff does not fit --output-transform {cfg.output_transform}"
                "; leave it out"
            )

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        """(Log-)probabilities of the decoder's output; log 0 is -inf."""
        if self.adaptive_softmax is not None:
            return super().get_normalized_probs(net_output, log_probs, sample)
        logits = net_output[0]
        return (self.output_projection.log_probs if log_probs else self.output_projection.probs)(
            logits
        )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str):
        """Let a model with alpha_relu start from a checkpoint that has no tau."""
        super().upgrade_state_dict_named(state_dict, name)
        if hasattr(self.output_projection, "tau"):
            state_dict.setdefault(f"{name}.output_projection.tau", self.output_projection.tau)
        return state_dict


@register_model("transformer_sparse")
class TransformerSparseModel(TransformerModel):
    """fairseq's ``transformer`` whose output transform and attention are chosen by flags.

    With softmax everywhere it gives the numbers of the stock model and has the same
    state-dict keys, so that either loads the other's checkpoints.
    """

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        super().add_args(parser)
        add_flags(parser, *_FLAGS)

    @classmethod
    def build_model(cls, args: Namespace, task):
        set_flag_defaults(args, *_FLAGS)
        check_attention(args)
        transform = str(args.output_transform)
        # With --model-overrides it can be the whole configuration of a criterion.
        if isinstance(getattr(args, "criterion", None), str):
            check_criterion(args.criterion, transform)
        task_cfg = getattr(task, "cfg", None)
        if getattr(task_cfg, "eval_bleu", False):
            check_search(type(task), task_cfg, transform, "--eval-bleu")
        model = super().build_model(args, task)
        log_learned_alpha(model)
        return model

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

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        return self.decoder.get_normalized_probs(net_output, log_probs, sample)

    def prepare_for_inference_(self, cfg) -> None:
        if not getattr(cfg.generation, "score_reference", False):
            task = TASK_REGISTRY.get(getattr(cfg.task, "_name", None))
            check_search(task, cfg.task, str(self.cfg.output_transform), "decoding")
        super().prepare_for_inference_(cfg)


def check_search(task_class: Optional[type], task_cfg, transform: str, purpose: str) -> None:
    """Refuse to search with a sparse model under a task whose search cannot deal with zeros.

    Raises:
        ValueError: naming the task, the transform and the flag to change.
    """
    if transform == "softmax" or getattr(task_class, "supports_sparse_outputs", False):
        return
    raise ValueError(
        f"--task {getattr(task_cfg, '_name', None)} cannot search a model trained with "
        f"--output-transform {transform} ({purpose}): stock beam search breaks on probabilities "
        "of exactly 0; use --task translation_sparse"
    )


@register_model_architecture("transformer_sparse", "transformer_sparse")
def transformer_sparse(args: Namespace) -> None:
    set_flag_defaults(args, *_FLAGS)
    base_architecture(args)


@register_model_architecture("transformer_sparse", "transformer_sparse_tiny")
def transformer_sparse_tiny(args: Namespace) -> None:
    set_flag_defaults(args, *_FLAGS)
    tiny_architecture(args)


@register_model_architecture("transformer_sparse", "transformer_sparse_iwslt_de_en")
def transformer_sparse_iwslt_de_en(args: Namespace) -> None:
    set_flag_defaults(args, *_FLAGS)
    transformer_iwslt_de_en(args)


@register_model_architecture("transformer_sparse", "transformer_sparse_wmt_en_de")
def transformer_sparse_wmt_en_de(args: Namespace) -> None:
    set_flag_defaults(args, *_FLAGS)
    transformer_wmt_en_de(args)


@register_model_architecture("transformer_sparse", "transformer_sparse_wmt_en_de_big")
def transformer_sparse_wmt_en_de_big(args: Namespace) -> None:
    set_flag_defaults(args, *_FLAGS)
    transformer_wmt_en_de_big(args)
