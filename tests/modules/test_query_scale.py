"""Scaled queries: each is scaled by the number of keys that it sees, under any mask."""

import pytest
import torch
from torch.autograd import gradcheck

from attention_cases import FP64, INF, MASKS, masks, self_attention, sequence
from fairseq_sparse.modules.query_scale import QueryScale, count_visible
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention


@pytest.mark.parametrize("mask", MASKS)
def test_visible_keys_are_counted(mask):
    options, bias = masks()[mask]
    layer = self_attention("entmax15_scaled")
    masked = options.get("key_padding_mask")
    key = torch.empty(3, 2, 5, 4)
    found = count_visible(
        key,
        None if masked is None else masked.bool(),
        layer._bias(options.get("attn_mask"), batch=3),
    )
    assert torch.equal(found.expand(3, 2, 5), (bias > -INF).sum(-1).float())


def test_counts_are_exact_under_autocast():
    """fp16 cannot represent 2,049, nor bf16 257."""
    masked = torch.zeros(1, 3000, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = count_visible(torch.empty(1, 1, 3000, 1), masked, torch.zeros(2, 3000))
    assert found.flatten().tolist() == [3000, 3000]


def test_at_first_the_maps_are_small():
    scale = QueryScale(512, 8)
    for linear in (scale.beta, scale.gamma):
        assert linear.weight.shape == (8, 512) and (linear.bias == 0).all()
        assert 0.018 < linear.weight.std() < 0.022
    found = scale(torch.zeros(3, 1, 512), torch.tensor([1.0, 50.0, 5000.0]))
    assert torch.equal(found, (1 + torch.tensor(2.0).log()).expand(1, 8, 3, 1))


def test_derivative_and_range():
    scale = QueryScale(4, 2).double()
    torch.nn.init.normal_(scale.gamma.weight)
    x = sequence(3, 2, 4).requires_grad_()
    visible = torch.tensor([0, 1, 40], dtype=FP64)
    assert gradcheck(lambda x: scale(x, visible), x)
    # gamma is at most 2; a query that sees nothing counts as one that sees a key: log 2
    with torch.no_grad():
        scale.gamma.bias.fill_(1e4)
        scale.beta.weight.zero_()
    beta, length = torch.tensor(2.0).log(), torch.tensor([2.0, 2.0, 41.0]).log()
    expected = (1 + beta * length**2).expand(2, 2, 3).double()
    torch.testing.assert_close(scale(x, visible).squeeze(-1), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("attention", ["softmax", "rela_g", "sigmoid"])
def test_other_kinds_are_refused(attention):
    with pytest.raises(ValueError, match=f"alpha-entmax, not for --attention {attention}"):
        SparseMultiheadAttention(8, 2, attention=attention, scale_queries=True)
