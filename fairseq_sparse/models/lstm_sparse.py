"""fairseq's LSTM sequence-to-sequence model with a sparse output layer and sparse attention."""

from argparse import ArgumentParser, Namespace
from typing import Any, Optional

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.lstm import (
    DEFAULT_MAX_SOURCE_POSITIONS,
    DEFAULT_MAX_TARGET_POSITIONS,
    Embedding,
    LSTMDecoder,
    LSTMEncoder,
    LSTMModel,
    base_architecture,
)
from torch import Tensor, nn

from fairseq_sparse.modules.attention_config import GlobalAttentionConfig, check_global_attention
from fairseq_sparse.modules.flag_checks import check_adaptive_softmax
from fairseq_sparse.modules.global_attention import GlobalAttention, add_bias
from fairseq_sparse.modules.model_settings import add_flags, architecture, set_flag_defaults
from fairseq_sparse.modules.output_config import OutputConfig, build_output_projection
from fairseq_sparse.modules.output_projection import OutputProjection
from fairseq_sparse.modules.sparse_output import SparseOutputDecoder, SparseOutputModel

_FLAGS = (OutputConfig, GlobalAttentionConfig)


class SparseLSTMDecoder(SparseOutputDecoder, LSTMDecoder):
    """fairseq's decoder, with the attention that the flags ask for, and with an
    :class:`OutputProjection` as its last layer.

    Args:
        args: the flags.
        dictionary: of the target language.
        options: the other arguments of fairseq's decoder.
    """

    def __init__(self, args: Namespace, dictionary: Dictionary, **options: Any):
        super().__init__(dictionary, **options)
        if args.attention_bias:
            add_bias(self.attention)
        if args.attention != "softmax":
            self.attention = GlobalAttention(
                self.attention, str(args.attention), args.attention_alpha
            )
        if self.adaptive_softmax is not None:
            check_adaptive_softmax(args)
            return
        if self.share_input_output_embed:
            vocab_size, embed_dim = self.embed_tokens.weight.shape
            self.fc_out = nn.Linear(embed_dim, vocab_size, bias=False, device="meta")
            self.fc_out.weight = self.embed_tokens.weight
        self.fc_out = build_output_projection(self.fc_out, args)

    @property
    def output_projection(self) -> Optional[OutputProjection]:
        """The last layer, by the name that it has in all models of this package."""
        return getattr(self, "fc_out", None)  # none with adaptive softmax

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out=None, incremental_state=None
    ):
        """Return the features ``[batch, length, d]`` and the attention, same as in fairseq."""
        if encoder_out is not None and incremental_state is None:
            # Each step reads all states, which is fastest where those of a sentence lie together.
            states = encoder_out[0].transpose(0, 1).contiguous().transpose(0, 1)
            encoder_out = (states, *encoder_out[1:])
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state)

    def output_layer(self, x: Tensor) -> Tensor:
        """Project features to the vocabulary size."""
        return x if self.adaptive_softmax is not None else self.fc_out(x)

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """Return the state as in fairseq: an output layer that is the embedding is saved once."""
        state = super().state_dict(
            *args, destination=destination, prefix=prefix, keep_vars=keep_vars
        )
        if self.share_input_output_embed:
            state.pop(f"{prefix}fc_out.weight", None)
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args) -> None:
        embeddings = state_dict.get(f"{prefix}embed_tokens.weight")
        if self.share_input_output_embed and embeddings is not None and self.output_projection:
            state_dict[f"{prefix}fc_out.weight"] = embeddings
        attention = f"{prefix}attention.output_proj"
        bias = getattr(getattr(self.attention, "output_proj", None), "bias", None)
        # Missing in fairseq's checkpoints and in older ones of this model.
        if bias is not None and f"{attention}.weight" in state_dict:
            state_dict.setdefault(f"{attention}.bias", torch.zeros_like(bias, requires_grad=False))
        super()._load_from_state_dict(state_dict, prefix, *args)


@register_model("lstm_sparse")
class LSTMSparseModel(SparseOutputModel, LSTMModel):
    """fairseq's ``lstm`` with its output transform and attention chosen by flags.

    The encoder and the decoder have LSTM layers; the decoder has input feeding and bilinear global
    attention, as in "Sparse Sequence-to-Sequence Models". With softmax everywhere and no
    ``--attention-bias`` it computes exactly what the stock model does, but for the masks that
    dropout draws, with the same state-dict keys, so each can load the other's checkpoints.
    """

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        LSTMModel.add_args(parser)
        add_flags(parser, *_FLAGS)

    @classmethod
    def complete_flags(cls, args: Namespace) -> None:
        lstm_sparse(args)
        check_global_attention(args, has_attention=utils.eval_bool(args.decoder_attention))

    @classmethod
    def assemble(cls, args: Namespace, task):
        """Build encoder and decoder as fairseq's LSTM does; it has no hooks to reuse."""
        _check_shapes(args, task)
        embedding = _embedding(task.source_dictionary, args, "encoder")
        encoder = LSTMEncoder(
            task.source_dictionary,
            embed_dim=args.encoder_embed_dim,
            hidden_size=args.encoder_hidden_size,
            num_layers=args.encoder_layers,
            dropout_in=args.encoder_dropout_in,
            dropout_out=args.encoder_dropout_out,
            bidirectional=args.encoder_bidirectional,
            pretrained_embed=embedding,
            max_source_positions=getattr(
                args, "max_source_positions", DEFAULT_MAX_SOURCE_POSITIONS
            ),
        )
        if args.share_all_embeddings:
            args.share_decoder_input_output_embed = True
        else:
            embedding = _embedding(task.target_dictionary, args, "decoder")
        cutoff = args.adaptive_softmax_cutoff if args.criterion == "adaptive_loss" else None
        decoder = SparseLSTMDecoder(
            args,
            task.target_dictionary,
            embed_dim=args.decoder_embed_dim,
            hidden_size=args.decoder_hidden_size,
            out_embed_dim=args.decoder_out_embed_dim,
            num_layers=args.decoder_layers,
            dropout_in=args.decoder_dropout_in,
            dropout_out=args.decoder_dropout_out,
            attention=utils.eval_bool(args.decoder_attention),
            encoder_output_units=encoder.output_units,
            pretrained_embed=embedding,
            share_input_output_embed=args.share_decoder_input_output_embed,
            adaptive_softmax_cutoff=utils.eval_str_list(cutoff, type=int),
            max_target_positions=getattr(
                args, "max_target_positions", DEFAULT_MAX_TARGET_POSITIONS
            ),
        )
        for part, name in ((encoder, "encoder"), (decoder, "decoder")):
            if getattr(args, f"{name}_freeze_embed"):
                part.embed_tokens.weight.requires_grad = False
        return cls(encoder, decoder)


def _check_shapes(args: Namespace, task) -> None:
    """Refuse sizes and embeddings that do not fit together.

    Raises:
        ValueError: naming the flags.
    """
    if args.encoder_layers != args.decoder_layers:
        raise ValueError("--encoder-layers must match --decoder-layers")
    if args.share_all_embeddings:
        if task.source_dictionary != task.target_dictionary:
            raise ValueError("--share-all-embeddings requires a joint dictionary")
        if args.decoder_embed_path not in (None, "", args.encoder_embed_path):
            raise ValueError("--share-all-embeddings does not go with --decoder-embed-path")
        if args.encoder_embed_dim != args.decoder_embed_dim:
            raise ValueError(
                "--share-all-embeddings requires --encoder-embed-dim to match --decoder-embed-dim"
            )
    shared = args.share_all_embeddings or args.share_decoder_input_output_embed
    if shared and args.decoder_embed_dim != args.decoder_out_embed_dim:
        raise ValueError(
            "--share-decoder-input-output-embed requires --decoder-embed-dim to match "
            "--decoder-out-embed-dim"
        )


def _embedding(dictionary: Dictionary, args: Namespace, part: str) -> nn.Embedding:
    """Build the embedding of the encoder or the decoder, from pretrained vectors if given."""
    path = getattr(args, f"{part}_embed_path")
    embedding = Embedding(len(dictionary), getattr(args, f"{part}_embed_dim"), dictionary.pad())
    if path:
        vectors = utils.parse_embedding(path)
        utils.print_embed_overlap(vectors, dictionary)
        embedding = utils.load_embedding(vectors, dictionary, embedding)
    return embedding


@architecture("lstm_sparse", "lstm_sparse")
def lstm_sparse(args: Namespace) -> None:
    set_flag_defaults(args, *_FLAGS)
    base_architecture(args)


def _two_layers(args: Namespace, size: int) -> None:
    """Set the sizes of "Sparse Sequence-to-Sequence Models": two layers of *size* units and dropout
    0.3. That each direction of the encoder has half of the units is ours."""
    defaults = {
        "encoder_embed_dim": size,
        "encoder_hidden_size": size // 2,
        "encoder_layers": 2,
        "decoder_embed_dim": size,
        "decoder_hidden_size": size,
        "decoder_layers": 2,
        "decoder_out_embed_dim": size,
        "dropout": 0.3,
        "encoder_bidirectional": True,
        "attention_bias": utils.eval_bool(getattr(args, "decoder_attention", "1")),
    }
    for name, value in defaults.items():
        setattr(args, name, getattr(args, name, value))
    lstm_sparse(args)


@architecture("lstm_sparse", "lstm_sparse_morph")
def lstm_sparse_morph(args: Namespace) -> None:
    """Set the sizes for morphological inflection."""
    _two_layers(args, 300)


@architecture("lstm_sparse", "lstm_sparse_mt")
def lstm_sparse_mt(args: Namespace) -> None:
    """Set the sizes for machine translation."""
    _two_layers(args, 500)
