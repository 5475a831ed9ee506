"""Decoding step by step, with the incremental state of fairseq's module, equals one pass."""

import pytest
import torch
from fairseq.modules import MultiheadAttention

from attention_cases import (
    CASES,
    HEADS,
    WIDTH,
    causal,
    module,
    padding,
    self_attention,
    sequence,
)

each_case = pytest.mark.parametrize("case", CASES)
LENGTH = 5


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def step_by_step(layer, x, pad, state, first=0):
    """Yield outputs and weights of each step. As in fairseq's decoder, a step is given its padding
    mask only if it has padding."""
    for position in range(first, len(x)):
        this, masked = x[position : position + 1], pad[:, position : position + 1]
        yield layer(
            *(this, this, this),
            key_padding_mask=masked if masked.any() else None,
            incremental_state=state,
            need_head_weights=True,
        )


@pytest.mark.each_value
@pytest.mark.parametrize(
    "pad",
    [padding(0, 0, 0), padding(0, 2, 4), padding(2, 0, 1, left=True), padding(1, 5, 2, left=True)],
    ids=["none", "right", "left", "all of one"],
)
@each_case
def test_self_attention_step_by_step(case, pad):
    layer, x = self_attention(case), sequence(LENGTH)
    full, weights = layer(x, x, x, pad, attn_mask=causal(LENGTH), need_head_weights=True)
    for position, (output, now) in enumerate(step_by_step(layer, x, pad, {})):
        close(output[0], full[position])
        close(now[:, :, 0], weights[:, :, position, : position + 1])


@each_case
def test_beams_can_be_reordered(case):
    """After three steps, hypotheses are dropped and doubled; each goes on with its own past."""
    layer = self_attention(case)
    past, future, pad = sequence(3), sequence(2, batch=4), padding(0, 1, 3, length=3, left=True)
    order = torch.tensor([2, 0, 0, 1])
    state = {}
    for _ in step_by_step(layer, past, pad, state):
        pass
    layer.reorder_incremental_state(state, order)
    x = torch.cat([past[:, order], future])
    pad = torch.cat([pad[order], torch.zeros(4, 2, dtype=torch.bool)], 1)
    full, _ = layer(x, x, x, pad, attn_mask=causal(LENGTH))
    for position, (output, _) in enumerate(step_by_step(layer, x, pad, state, 3), start=3):
        close(output[0], full[position])


@each_case
def test_keys_of_cross_attention_are_kept_from_the_first_step(case):
    layer = module(case, kdim=6, vdim=6, encoder_decoder_attention=True)
    query, key = sequence(LENGTH), sequence(7, width=6)
    pad = padding(0, 3, 7, length=7)
    full, weights = layer(query, key, key, pad, static_kv=True, need_head_weights=True)
    state = {}
    for position in range(LENGTH):
        # After the first step the keys are not read.
        source = key if position == 0 else None if position == 1 else torch.full_like(key, 1e6)
        output, now = layer(
            query[position : position + 1],
            *(source, source),
            key_padding_mask=pad,
            incremental_state=state,
            static_kv=True,
            need_head_weights=True,
        )
        close(output[0], full[position])
        close(now[:, :, 0], weights[:, :, position])


@each_case
def test_keys_of_cross_attention_follow_the_sentences_that_are_left(case):
    layer = module(case, encoder_decoder_attention=True)
    query, key, pad = sequence(2), sequence(7), padding(0, 3, 1, length=7)
    state = {}
    layer(query[:1], key, key, pad, incremental_state=state, static_kv=True)
    left = torch.tensor([2, 1])
    layer.reorder_incremental_state(state, left)
    second, _ = layer(query[1:, left], None, None, incremental_state=state, static_kv=True)
    close(second, layer(query[1:, left], key[:, left], key[:, left], pad[left])[0])


def test_a_state_without_a_padding_mask_takes_the_one_that_is_given():
    """fairseq's layers create such states where they are given earlier keys and values."""
    layer = module("rela_g", encoder_decoder_attention=True)
    query, key, pad = sequence(1), sequence(7), padding(0, 3, 1, length=7)
    state = {}
    expected, _ = layer(query, key, key, pad, incremental_state=state, static_kv=True)
    (kept,) = state.values()
    del kept["prev_key_padding_mask"]
    actual, _ = layer(query, None, None, pad, incremental_state=state, static_kv=True)
    close(actual, expected)


def test_the_size_of_the_beam_changes_nothing():
    """The stock module would keep one row of keys for all hypotheses of a sentence."""
    plain = module("rela_g", encoder_decoder_attention=True)
    told = module("rela_g", encoder_decoder_attention=True)
    told.load_state_dict(plain.state_dict())
    told.set_beam_size(2)
    query, key = sequence(2, batch=4), sequence(7, batch=2).repeat_interleave(2, dim=1)
    results = []
    for layer in (plain, told):
        state = {}
        layer(query[:1], key, key, incremental_state=state, static_kv=True)
        layer.reorder_incremental_state(state, torch.tensor([1, 1, 2]))
        results.append(layer(query[1:, :3], None, None, None, state, static_kv=True)[0])
    close(*results)


def test_the_state_is_that_of_the_stock_module():
    """Parts of fairseq that read or reorder the state rely on this."""
    layer = self_attention("softmax")
    stock = MultiheadAttention(WIDTH, HEADS, self_attention=True).double().eval()
    stock.load_state_dict(layer.state_dict())
    x, pad = sequence(LENGTH), padding(2, 0, 1, left=True)
    ours, theirs = {}, {}
    for _ in zip(
        step_by_step(layer, x, pad, ours), step_by_step(stock, x, pad, theirs), strict=True
    ):
        (mine,), (expected,) = ours.values(), theirs.values()
        assert set(mine) == set(expected) == {"prev_key", "prev_value", "prev_key_padding_mask"}
        for name in mine:
            close(mine[name].double(), expected[name].double())


def test_attention_over_source_and_target_step_by_step():
    """--cross-self-attention: each step adds its own keys, the first also those of the encoder."""
    layer = module("rela_g")
    source, x = sequence(4), sequence(LENGTH)
    pad = torch.cat([padding(0, 1, 3, length=4), padding(0, 0, 0)], 1)
    keys = torch.cat([source, x])
    mask = torch.cat([torch.zeros(LENGTH, 4), causal(LENGTH)], 1)
    full, _ = layer(x, keys, keys, pad, attn_mask=mask)
    state = {}
    for position in range(LENGTH):
        this = x[position : position + 1]
        now = torch.cat([source, this]) if position == 0 else this
        masked = pad[:, :5] if position == 0 else pad[:, 4 + position : 5 + position]
        output, _ = layer(this, now, now, masked, incremental_state=state)
        close(output[0], full[position])
