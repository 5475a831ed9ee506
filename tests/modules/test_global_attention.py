"""Global attention against the formulas of Luong et al., written for one query at a time."""

import pytest
import torch
from fairseq.models.lstm import AttentionLayer

import references
from fairseq_sparse.modules.attention_config import GLOBAL_ATTENTION_KINDS
from fairseq_sparse.modules.global_attention import GlobalAttention

ALPHA = {"softmax": 1.0, "sparsemax": 2.0, "entmax15": 1.5, "entmax": 1.3}
SOURCE, BATCH, ENCODER, DECODER = 7, 4, 6, 5
LENGTHS = (7, 3, 1, 5)


def layers(kind, dtype=torch.float64):
    torch.manual_seed(0)
    stock = AttentionLayer(DECODER, ENCODER, DECODER).to(dtype)
    return stock, GlobalAttention(stock, kind, ALPHA[kind])


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    query = 6 * torch.randn(BATCH, DECODER, generator=generator, dtype=dtype)
    source = torch.randn(SOURCE, BATCH, ENCODER, generator=generator, dtype=dtype)
    padding = torch.arange(SOURCE).unsqueeze(1) >= torch.tensor(LENGTHS)
    return query.requires_grad_(), source.requires_grad_(), padding


@pytest.mark.parametrize("kind", GLOBAL_ATTENTION_KINDS)
def test_it_is_what_the_formulas_say(kind):
    stock, attention = layers(kind)
    query, source, padding = inputs()
    output, weights = attention(query, source, padding)
    for row, length in enumerate(LENGTHS):
        states = source[:length, row]
        scores = states @ stock.input_proj.weight @ query[row]
        if ALPHA[kind] == 1:
            expected = scores.softmax(0)
        else:
            expected = references.entmax(scores.unsqueeze(0), ALPHA[kind])[0]
        torch.testing.assert_close(weights[:length, row], expected)
        assert not weights[length:, row].any()
        joined = torch.cat([expected @ states, query[row]])
        torch.testing.assert_close(output[row], torch.tanh(stock.output_proj.weight @ joined))
    if kind != "softmax":
        assert (weights.t()[~padding.t()] == 0).any()


@pytest.mark.parametrize("kind", GLOBAL_ATTENTION_KINDS)
def test_gradients(kind):
    _, attention = layers(kind)
    query, source, padding = inputs()
    torch.autograd.gradcheck(lambda *x: attention(*x, padding)[0], (query, source))
    _, weights = attention(query, source, padding)
    assert not weights.requires_grad  # fairseq's decoder keeps them all


def test_with_softmax_it_is_stock_s():
    stock, attention = layers("softmax")
    for ours, theirs in zip(attention(*inputs()), stock(*inputs()), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", GLOBAL_ATTENTION_KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_masks_and_sums_in_fp32(kind, dtype):
    _, attention = layers(kind, dtype)
    query, source, padding = inputs(dtype)
    output, weights = attention(query, source, padding)
    assert output.dtype == weights.dtype == dtype
    assert torch.isfinite(output).all() and not weights[padding].any()
    # Each weight is rounded once.
    error = (weights.float().sum(0) - 1).abs().max()
    assert error <= SOURCE * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", GLOBAL_ATTENTION_KINDS)
def test_no_padding_mask_is_no_padding(kind):
    _, attention = layers(kind)
    query, source, padding = inputs()
    nothing = torch.zeros_like(padding)
    for ours, theirs in zip(
        attention(query, source, None), attention(query, source, nothing), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
