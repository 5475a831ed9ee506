"""The flags of the attention, shared by the Transformers of this package."""

# No `from __future__ import annotations`: fairseq reads the fields' types at run time.
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.sparse_attention import check_attention_options

# The three places of attention in a Transformer, as the flags call them.
FLAG_PLACES = ("enc", "dec", "cross")
# The kinds for an LSTM, whose context is a weighted mean of the source: the weights must sum to 1,
# and no norm or gate may follow.
GLOBAL_ATTENTION_KINDS = tuple(
    name for name, kind in ATTENTION_KINDS.items() if kind.sums_to_one and kind.norm is None
)
_DEFAULT_ALPHA = 1.5


def _kind_in(place: str):
    return field(default=None, metadata={"help": f"the same for {place}, overriding --attention"})


@dataclass
class SelfAttentionConfig(FairseqDataclass):
    """Flags that choose the attention of a Transformer with one place of attention. No name may
    begin with encoder_ or decoder_, because fairseq's TransformerConfig would move it elsewhere."""

    attention: ChoiceEnum(tuple(ATTENTION_KINDS)) = field(
        default="softmax",
        metadata={"help": "mapping from attention scores to attention weights, in all places"},
    )
    attention_alpha: float = field(
        default=_DEFAULT_ALPHA, metadata={"help": "alpha > 1 of --attention entmax"}
    )
    attention_alpha_learnable: bool = field(
        default=False,
        metadata={
            "help": "learn the alpha of --attention entmax, one for each head, in [1.01, 2], "
            "starting from --attention-alpha"
        },
    )
    attention_scale_queries: bool = field(
        default=False,
        metadata={
            "help": "multiply the queries of sparsemax, entmax15 and entmax attention by "
            "1 + beta (log(n + 1))^gamma, n the number of keys, with beta and gamma learned for "
            "each head and query, as in ASEntmax"
        },
    )


@dataclass
class AttentionConfig(SelfAttentionConfig):
    """Flags that choose the attention in each place."""

    attention_enc: Optional[str] = _kind_in("the encoder's self-attention")
    attention_dec: Optional[str] = _kind_in("the decoder's self-attention")
    attention_cross: Optional[str] = _kind_in("cross-attention")


@dataclass
class GlobalAttentionConfig(FairseqDataclass):
    """Flags that choose the one attention of an LSTM model."""

    attention: ChoiceEnum(GLOBAL_ATTENTION_KINDS) = field(
        default="softmax", metadata={"help": "mapping from attention scores to attention weights"}
    )
    attention_alpha: float = field(
        default=_DEFAULT_ALPHA, metadata={"help": "alpha > 1 of --attention entmax"}
    )
    attention_bias: bool = field(
        default=False,
        metadata={
            "help": "add a bias to the linear map that computes the attentional states, as in "
            "'Sparse Sequence-to-Sequence Models'; fairseq's LSTM has none, lstm_sparse_mt and "
            "lstm_sparse_morph have it by default"
        },
    )


def attention_kinds(args: Any) -> dict[str, str]:
    """Return the kind of attention in each of ``FLAG_PLACES`` that the flags ask for."""
    return {
        place: str(
            getattr(args, f"attention_{place}", None) or getattr(args, "attention", "softmax")
        )
        for place in FLAG_PLACES
    }


def attention_options(args: Any, place: str) -> dict[str, Any]:
    """Return the arguments of :class:`SparseMultiheadAttention` for a place."""
    kind = attention_kinds(args)[place]
    takes_alpha, is_entmax = ATTENTION_KINDS[kind].takes_alpha, ATTENTION_KINDS[kind].is_entmax
    return {
        "attention": kind,
        "alpha": args.attention_alpha,
        "alpha_learnable": bool(args.attention_alpha_learnable) and takes_alpha,
        "scale_queries": bool(args.attention_scale_queries) and is_entmax,
    }


def check_attention(args: Namespace) -> None:
    """Refuse flags that are out of range or have no effect, before anything is built.

    Raises:
        ValueError: naming the flag and the remedy.
    """
    kinds = attention_kinds(args)
    for place, kind in kinds.items():
        if kind not in ATTENTION_KINDS:
            raise ValueError(
                f"--attention-{place} {kind} is unknown; choose from {', '.join(ATTENTION_KINDS)}"
            )
    _check_alpha(list(kinds.values()), args.attention_alpha, args.attention_alpha_learnable)
    _check_scaled_queries(kinds.values(), args)
    for part in ("encoder", "decoder"):
        _check_heads(args, part)
    if set(kinds.values()) == {"softmax"}:
        return
    if getattr(args, "no_cross_attention", False) and getattr(args, "attention_cross", None):
        raise ValueError("--attention-cross has no effect with --no-cross-attention; leave one out")
    for part, places in (("encoder", ["enc"]), ("decoder", ["dec", "cross"])):
        if any(kinds[place] != "softmax" for place in places):
            _check_part(args, part)


def check_self_attention(args: Any) -> None:
    """Do the checks of :func:`check_attention` for a decoder-only model.

    Raises:
        ValueError: naming the flag and the remedy.
    """
    kind = str(args.attention)
    _check_alpha([kind], args.attention_alpha, args.attention_alpha_learnable)
    _check_scaled_queries([kind], args)
    _check_heads(args, "decoder")
    if kind != "softmax":
        _check_part(args, "decoder")


def _check_part(args: Any, part: str) -> None:
    """Refuse settings that sparse attention in the encoder or the decoder does not support."""
    if not 0 <= args.attention_dropout < 1:
        raise ValueError(f"--attention-dropout must lie in [0, 1), got {args.attention_dropout}")
    if getattr(args, f"{part}_xformers_att_config", None):
        raise ValueError(
            f"--{part}-xformers-att-config goes with softmax attention only; leave it out"
        )


def _check_heads(args: Any, part: str) -> None:
    """Refuse a number of heads that does not divide the width of the encoder or the decoder."""
    width = getattr(args, f"{part}_embed_dim")
    heads = getattr(args, f"{part}_attention_heads")
    if heads < 1:
        raise ValueError(f"--{part}-attention-heads must be at least 1, got {heads}")
    if width % heads != 0:
        raise ValueError(
            f"--{part}-attention-heads {heads} does not divide --{part}-embed-dim {width}"
        )


def check_global_attention(args: Namespace, has_attention: bool) -> None:
    """Refuse flags that are out of range or have no effect on an LSTM, before anything is built.

    Args:
        has_attention: whether the decoder attends at all (``--decoder-attention``).

    Raises:
        ValueError: naming the flag and the remedy.
    """
    kind = str(args.attention)
    if kind not in GLOBAL_ATTENTION_KINDS:
        raise ValueError(
            f"--attention {kind} does not fit an LSTM, whose attention weights sum to 1, with no "
            f"norm or gate after them; choose from {', '.join(GLOBAL_ATTENTION_KINDS)}"
        )
    if not has_attention and kind != "softmax":
        raise ValueError(f"--attention {kind} has no effect with --decoder-attention 0")
    if not has_attention and args.attention_bias:
        raise ValueError("--attention-bias has no effect with --decoder-attention 0")
    _check_alpha([kind], args.attention_alpha)


def _check_alpha(kinds: list[str], alpha: float, learnable: bool = False) -> None:
    if any(ATTENTION_KINDS[kind].takes_alpha for kind in kinds):
        check_attention_options(alpha, learnable)
    elif alpha != _DEFAULT_ALPHA or learnable:
        raise ValueError(
            "--attention-alpha and --attention-alpha-learnable are for --attention entmax; the "
            f"attention is {', '.join(dict.fromkeys(kinds))}"
        )


def _check_scaled_queries(kinds: Iterable[str], args: Any) -> None:
    """Refuse scaled queries where no attention is alpha-entmax.

    Raises:
        ValueError: naming the flag and the kinds.
    """
    if args.attention_scale_queries and not any(ATTENTION_KINDS[kind].is_entmax for kind in kinds):
        names = [name for name, kind in ATTENTION_KINDS.items() if kind.is_entmax]
        raise ValueError(
            f"--attention-scale-queries is for --attention {', '.join(names)}; the attention is "
            f"{', '.join(dict.fromkeys(kinds))}"
        )
