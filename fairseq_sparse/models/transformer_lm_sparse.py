"""fairseq's Transformer language model with a sparse output layer and sparse attention."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
from dataclasses import dataclass, fields
from typing import Any, Optional

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from omegaconf import II

from fairseq_sparse.checkpoints.safety import check_settings
from fairseq_sparse.models.transformer_sparse import SparseTransformerDecoder
from fairseq_sparse.modules.attention_config import SelfAttentionConfig, check_self_attention
from fairseq_sparse.modules.dropout import set_dropout
from fairseq_sparse.modules.learned_alpha import log_learned_alpha
from fairseq_sparse.modules.output_config import OutputConfig, check_criterion
from fairseq_sparse.modules.sparse_output import CheckedLoading, check_language_model_use


@dataclass
class TransformerLMSparseConfig(OutputConfig, SelfAttentionConfig, TransformerLanguageModelConfig):
    """The flags of fairseq's ``transformer_lm``, of the output and of the attention."""

    # From another part of the configuration: a model refuses a criterion that does not fit it.
    criterion_name: Optional[str] = II("criterion._name")


@register_model("transformer_lm_sparse", dataclass=TransformerLMSparseConfig)
class TransformerLMSparseModel(CheckedLoading, TransformerLanguageModel):
    """fairseq's ``transformer_lm`` whose output transform and attention are chosen by flags.

    With softmax in both it gives the numbers of the stock model and has the same state-dict keys,
    so that either loads the other's checkpoints. It is trained and validated under fairseq's task
    ``language_modeling``, and with softmax at the output evaluated and searched as well.
    """

    @classmethod
    def build_model(cls, args: Any, task):
        check_settings(args)
        check_self_attention(args)
        if args.criterion_name is not None:
            check_criterion(args.criterion_name, str(args.output_transform))
        model = super().build_model(args, task)
        stock = model.decoder
        cfg = TransformerConfig.from_namespace(args)
        cfg.criterion_name = args.criterion_name
        for config in (OutputConfig, SelfAttentionConfig):
            for flag in fields(config):
                setattr(cfg, flag.name, getattr(args, flag.name))
        model.decoder = SparseTransformerDecoder(
            cfg, task.target_dictionary, stock.embed_tokens, no_encoder_attn=True
        )
        # What both have starts as stock would draw it.
        model.decoder.load_state_dict(stock.state_dict(), strict=False)
        set_dropout(model, args)
        log_learned_alpha(model)
        return model

    def prepare_for_inference_(self, cfg: Any) -> None:
        # Adaptive softmax has no projection.
        transform = getattr(self.decoder.output_projection, "transform", "softmax")
        check_language_model_use(cfg, transform)
        super().prepare_for_inference_(cfg)
