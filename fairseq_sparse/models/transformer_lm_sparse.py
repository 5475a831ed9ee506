"""fairseq's Transformer language model with a sparse output layer and sparse attention."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
from argparse import Namespace
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    register_model,
    register_model_architecture,
)
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor, nn

from fairseq_sparse.models.transformer_sparse import SparseTransformerDecoder
from fairseq_sparse.modules.attention_config import SelfAttentionConfig, check_self_attention
from fairseq_sparse.modules.output_config import OutputConfig
from fairseq_sparse.modules.sparse_output import SparseOutputModel


@dataclass
class TransformerLMSparseConfig(OutputConfig, SelfAttentionConfig, TransformerLanguageModelConfig):
    """The flags of fairseq's ``transformer_lm``, of the output and of the attention."""


@register_model("transformer_lm_sparse", dataclass=TransformerLMSparseConfig)
class TransformerLMSparseModel(SparseOutputModel, TransformerLanguageModel):
    """fairseq's ``transformer_lm`` with its output transform and attention chosen by flags.

    With softmax in both it computes exactly what the stock model does, but for the masks that
    dropout draws, with the same state-dict keys, so each can load the other's checkpoints. ``--task
    language_modeling_sparse`` supports all outputs; fairseq's ``language_modeling`` trains and
    validates any output, but evaluates and searches only softmax outputs.
    """

    @classmethod
    def complete_flags(cls, args: Namespace) -> None:
        check_self_attention(args)

    @classmethod
    def assemble(cls, args: Namespace, task):
        """Build the decoder as fairseq's language model does; it has no hook to reuse."""
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))
        if args.max_target_positions is None:
            args.max_target_positions = args.tokens_per_sample
        embedding = cls.build_token_embedding(args, task.source_dictionary)
        cfg = TransformerConfig.from_namespace(args)
        decoder = SparseTransformerDecoder(
            cfg, task.target_dictionary, embedding, no_encoder_attn=True
        )
        return cls(decoder)

    @classmethod
    def build_token_embedding(cls, args: Any, dictionary: Dictionary) -> nn.Module:
        """Build the layer that embeds tokens, of the kind that the flags ask for.

        Raises:
            ValueError: --tie-adaptive-weights does not fit the other flags.
        """
        if args.tie_adaptive_weights:
            _check_tied_weights(args)
        if args.character_embeddings:
            return CharacterTokenEmbedder(
                dictionary,
                literal_eval(args.character_filters),
                args.character_embedding_dim,
                args.decoder_embed_dim,
                args.char_embedder_highway_layers,
            )
        if args.adaptive_input:
            return AdaptiveInput(
                len(dictionary),
                dictionary.pad(),
                args.decoder_input_dim,
                args.adaptive_input_factor,
                args.decoder_embed_dim,
                utils.eval_str_list(args.adaptive_input_cutoff, type=int),
                args.quant_noise_pq,
                args.quant_noise_pq_block_size,
            )
        return cls.build_embedding(args, dictionary, args.decoder_input_dim)

    def extract_features(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **kwargs):
        """Return the features ``[batch, length, d]``, and extras; the lengths are not needed."""
        return self.decoder.extract_features(src_tokens, encoder_out=None, **kwargs)

    def get_normalized_probs(
        self, net_output: Any, log_probs: bool, sample: Optional[dict[str, Any]] = None
    ) -> Tensor:
        """Same as in fairseq, except under ``fairseq-eval-lm`` with ``language_modeling_sparse``:
        it measures the probabilities, and those of a sparse output are returned smoothed.

        Raises:
            ValueError: ``fairseq-eval-lm`` was given an ensemble.
        """
        evaluation = None if sample is None else sample.get("evaluation")
        if evaluation is None:
            return super().get_normalized_probs(net_output, log_probs, sample)
        if not log_probs:  # fairseq's scorer does so for an ensemble
            raise ValueError(
                "fairseq-eval-lm under --task language_modeling_sparse measures one model: give "
                "one checkpoint in --path"
            )
        # Without targets, because adaptive softmax would compute only what they need.
        p = super().get_normalized_probs(net_output, False)
        evaluation.add(p, sample["target"])
        projection = self.decoder.output_projection  # adaptive softmax has none
        if projection is not None and projection.is_sparse:
            return evaluation.smoothed_log_probs(p)
        return super().get_normalized_probs(net_output, log_probs, sample)

    def check_inference(self, cfg: Any, transform: str) -> None:
        """Refuse what fairseq's own commands cannot do with a sparse language model.

        Raises:
            ValueError: naming the task, the transform and what works.
        """
        task = TASK_REGISTRY.get(getattr(cfg.task, "_name", None))
        scores_only = getattr(cfg.generation, "score_reference", False)
        if scores_only or getattr(task, "supports_sparse_outputs", False):
            return
        translates = task is not None and not issubclass(task, LanguageModelingTask)
        remedy = "translation_sparse" if translates else "language_modeling_sparse"
        raise ValueError(
            f"--task {getattr(cfg.task, '_name', None)} can neither search nor evaluate a language "
            f"model trained with --output-transform {transform}: beam search and sampling break on "
            "probabilities of exactly 0, and fairseq-eval-lm leaves tokens of probability 0 out of "
            f"its perplexity, so that a sparser model would look better; use --task {remedy}"
        )


def _check_tied_weights(args: Any) -> None:
    """Refuse --tie-adaptive-weights where adaptive input and output are not alike.

    Raises:
        ValueError: naming the flags.
    """
    alike = (
        args.adaptive_input
        and args.adaptive_input_factor == args.adaptive_softmax_factor
        and args.adaptive_input_cutoff == args.adaptive_softmax_cutoff
        and args.decoder_input_dim == args.decoder_output_dim
    )
    if not alike:
        raise ValueError(
            "--tie-adaptive-weights needs --adaptive-input, with the factor, the cutoff and the "
            "width (--decoder-input-dim) of adaptive softmax"
        )


# Settings of adaptive softmax in fairseq's architectures, with the values that turn it off.
_ADAPTIVE_SOFTMAX = {
    "adaptive_softmax_cutoff": None,
    "tie_adaptive_weights": False,
    "tie_adaptive_proj": False,
}


def _with_any_output(architecture: Callable[[Namespace], None], args: Namespace) -> None:
    """Fill in the settings of one of fairseq's architectures. Unless the output is softmax, this
    turns adaptive softmax off; if the user asked for it, it is refused later."""
    chosen = {name for name in _ADAPTIVE_SOFTMAX if getattr(args, name, None)}
    architecture(args)
    if str(getattr(args, "output_transform", "softmax")) != "softmax":
        for name in _ADAPTIVE_SOFTMAX.keys() - chosen:
            setattr(args, name, _ADAPTIVE_SOFTMAX[name])


for _name, _model in list(ARCH_MODEL_NAME_REGISTRY.items()):
    if _model == "transformer_lm" and _name != _model:
        register_model_architecture(
            "transformer_lm_sparse", _name.replace(_model, "transformer_lm_sparse")
        )(partial(_with_any_output, ARCH_CONFIG_REGISTRY[_name]))
