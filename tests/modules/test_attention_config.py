"""The attention flags: the modules that they build and the values that they refuse."""

from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import fields

import pytest
import torch
from fairseq.modules import MultiheadAttention

import toy
from fairseq_sparse.modules.attention_config import (
    FLAG_PLACES,
    AttentionConfig,
    attention_kinds,
    check_attention,
)
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.model_settings import add_flags, set_flag_defaults
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention

# Flags, and the kinds that they ask for in the encoder, in the decoder, and between them.
CHOICES = [
    ((), ("softmax", "softmax", "softmax")),
    (("--attention", "rela_g"), ("rela_g", "rela_g", "rela_g")),
    (("--attention-enc", "relu"), ("relu", "softmax", "softmax")),
    (("--attention-dec", "sparsemax"), ("softmax", "sparsemax", "softmax")),
    (("--attention-cross", "rela_i"), ("softmax", "softmax", "rela_i")),
    (
        ("--attention", "rela_g", "--attention-dec", "softmax", "--attention-cross", "entmax15"),
        ("rela_g", "softmax", "entmax15"),
    ),
    (
        ("--attention", "rela_g")
        + ("--attention-enc", "softmax", "--attention-dec", "softmax")
        + ("--attention-cross", "softmax"),
        ("softmax", "softmax", "softmax"),
    ),
]


def attentions(model):
    """Return the attention modules of each place."""
    decoder = model.decoder.layers
    return {
        "enc": [layer.self_attn for layer in model.encoder.layers],
        "dec": [layer.self_attn for layer in decoder],
        "cross": [layer.encoder_attn for layer in decoder if layer.encoder_attn is not None],
    }


@pytest.mark.parametrize("flags, kinds", CHOICES)
def test_each_place_gets_the_kind_that_the_flags_ask_for(flags, kinds):
    built = attentions(toy.model(*flags))
    for place, kind in zip(FLAG_PLACES, kinds, strict=True):
        assert len(built[place]) == 2
        for module in built[place]:
            if kind == "softmax":
                assert type(module) is MultiheadAttention
            else:
                assert type(module) is SparseMultiheadAttention
                assert module.attention_kind == kind
            assert module.self_attention == (place != "cross")
            assert module.encoder_decoder_attention == (place == "cross")


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_every_kind_is_a_value_of_every_flag(kind):
    for flag in ("--attention", "--attention-enc", "--attention-dec", "--attention-cross"):
        args = parse(flag, kind)
        set_flag_defaults(args, AttentionConfig)
        expected = FLAG_PLACES if flag == "--attention" else (flag.removeprefix("--attention-"),)
        asked = {place: kind if place in expected else "softmax" for place in FLAG_PLACES}
        assert attention_kinds(args) == asked


def test_alpha_goes_where_it_is_used():
    flags = ("--attention", "rela_g", "--attention-enc", "entmax", "--attention-cross", "entmax")
    built = attentions(toy.model(*flags, "--attention-alpha", 1.3))
    for place in ("enc", "cross"):
        assert all(m.fixed_alpha == 1.3 and not m.learns_alpha for m in built[place])
    built = attentions(toy.model(*flags, "--attention-alpha", 1.3, "--attention-alpha-learnable"))
    for place in FLAG_PLACES:
        for module in built[place]:
            assert module.learns_alpha == (place != "dec")
            if module.learns_alpha:
                torch.testing.assert_close(module.alpha(), torch.full_like(module.alpha(), 1.3))


def test_queries_are_scaled_where_the_attention_is_entmax():
    flags = ("--attention", "entmax15", "--attention-dec", "softmax", "--attention-cross", "rela_g")
    built = attentions(toy.model(*flags, "--attention-scale-queries"))
    assert all(module.query_scale is not None for module in built["enc"])
    assert all(module.query_scale is None for module in built["cross"])
    assert all(module.query_scale is None for module in attentions(toy.model(*flags))["enc"])


def test_widths_heads_and_dropout_are_those_of_the_place():
    built = attentions(
        toy.model(
            *("--attention", "rela_g", "--attention-dropout", 0.25),
            *("--encoder-embed-dim", 48, "--encoder-attention-heads", 3),
            *("--decoder-embed-dim", 64, "--decoder-attention-heads", 4),
        )
    )
    expected = {"enc": (48, 48, 3), "dec": (64, 64, 4), "cross": (64, 48, 4)}
    for place, (width, width_of_keys, heads) in expected.items():
        for module in built[place]:
            assert (module.embed_dim, module.kdim, module.vdim) == (width, *[width_of_keys] * 2)
            assert module.num_heads == heads and module.norm.weight.shape == (width,)
            assert module.dropout_module.p == 0.25


# Flags, and the words that the refusal must have.
REFUSED = """
--attention-enc top1 | --attention-enc top1
--attention-dec top1 | --attention-dec top1
--attention-cross Softmax | --attention-cross Softmax
--attention entmax --attention-alpha 1.0 | --attention-alpha
--attention-enc entmax --attention-alpha -3 | --attention-alpha
--attention entmax --attention-alpha inf | --attention-alpha
--attention entmax --attention-alpha nan | --attention-alpha
--attention entmax --attention-alpha 1.0001 | --attention-alpha
--attention entmax --attention-alpha 1e38 | --attention-alpha
--attention-alpha 1.3 | --attention-alpha, --attention entmax
--attention rela_g --attention-enc relu --attention-alpha 1.3 | --attention-alpha, relu, rela_g
--attention entmax15 --attention-alpha-learnable | --attention-alpha-learnable, entmax15
--attention entmax --attention-alpha 2.0 --attention-alpha-learnable | --attention-alpha 2.0
--attention entmax --attention-alpha 1.001 --attention-alpha-learnable | --attention-alpha 1.001
--attention rela_g --attention-dec sigmoid --attention-scale-queries | rela_g, sigmoid
--attention-cross rela_g --no-cross-attention | --attention-cross, --no-cross-attention
--attention rela_g --attention-dropout 1.0 | --attention-dropout
--encoder-attention-heads 3 | --encoder-attention-heads 3, --encoder-embed-dim
--decoder-attention-heads 0 | --decoder-attention-heads
--attention rela_g --encoder-attention-heads -1 | --encoder-attention-heads
--attention-cross rela_g --decoder-attention-heads 5 | --decoder-attention-heads 5
--attention rela_g --encoder-xformers-att-config {"name":"favor"} | --encoder-xformers-att-config
--attention-cross rela_g --decoder-xformers-att-config {"name":"favor"} | --decoder-xformers
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_flags_that_do_not_fit_are_refused_by_name(line):
    flags, _, words = line.partition(" | ")
    with pytest.raises(ValueError) as refusal:
        toy.model(*flags.split())
    assert all(word in str(refusal.value) for word in words.split(", "))


def test_the_other_half_of_the_model_may_use_xformers():
    args = parse("--attention-enc", "rela_g")
    set_flag_defaults(args, AttentionConfig)
    args.attention_dropout, args.decoder_xformers_att_config = 0.0, '{"name": "favor"}'
    for part in ("encoder", "decoder"):
        setattr(args, f"{part}_embed_dim", 64)
        setattr(args, f"{part}_attention_heads", 4)
    check_attention(args)


def parse(*flags):
    parser = ArgumentParser(argument_default=SUPPRESS)
    add_flags(parser, AttentionConfig)
    return parser.parse_args([str(flag) for flag in flags])


def test_flags_without_a_value_leave_room_for_an_architecture():
    assert vars(parse()) == {}
    args = parse("--attention-alpha", 1.2)
    args.attention = "entmax"  # as a named architecture does
    set_flag_defaults(args, AttentionConfig)
    defaults = {flag.name: flag.default for flag in fields(AttentionConfig) if flag.name != "_name"}
    assert vars(args) == {**defaults, "attention": "entmax", "attention_alpha": 1.2}


def test_a_checkpoint_from_before_the_flags_means_softmax():
    args = Namespace()
    set_flag_defaults(args, AttentionConfig)
    assert set(attention_kinds(args).values()) == {"softmax"}


def test_no_flag_has_a_name_that_fairseq_moves_elsewhere():
    for flag in fields(AttentionConfig):
        assert not flag.name.startswith(("encoder", "decoder"))
