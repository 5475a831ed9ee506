"""A tensor that an op keeps for its gradient must not change in place: autograd raises."""

import pytest
import torch

from fairseq_sparse.modules import SparseMultiheadAttention
from fairseq_sparse.ops import (
    attend,
    backends,
    cpu,
    entmax,
    entmax15,
    gated_rms_norm,
    linear_entmax_loss,
)
from fairseq_sparse.ops.reference import attention as reference
from op_cases import attend_by_kernels_at_any_size, sparse_attention

needs_kernels = pytest.mark.skipif(cpu.build.library() is None, reason="needs a C compiler")


def refused():
    return pytest.raises(RuntimeError, match="modified.* (by an )?inplace|changed in place")


def heads(length=30):
    return [torch.randn(2, 3, length, 16, requires_grad=True) for _ in range(3)]


@needs_kernels
@pytest.mark.parametrize("alpha", [0.0, 1.5])
@pytest.mark.parametrize("mask", ["masked", "bias"])
def test_masks_of_attention(alpha, mask, monkeypatch):
    attend_by_kernels_at_any_size(monkeypatch)
    masked, bias = torch.zeros(2, 30, dtype=torch.bool), torch.zeros(30, 30)
    tensors = heads()
    result = sparse_attention(*tensors, alpha, 1.0, masked, bias)
    {"masked": masked, "bias": bias}[mask].fill_(1)
    with refused():
        result.sum().backward()


@pytest.mark.parametrize("weights", ["relu", "entmax15", "softmax"])
@pytest.mark.parametrize("mask", ["masked", "bias"])
def test_masks_of_attention_in_parts(weights, mask, monkeypatch):
    monkeypatch.setitem(reference._CHUNK_SCORES, "cpu", 1 << 18)
    masked, bias = torch.zeros(2, 400, dtype=torch.bool), torch.zeros(400, 400)
    with backends.use("reference"):
        result, _ = attend(*heads(400), weights, masked=masked, bias=bias)
        {"masked": masked, "bias": bias}[mask].fill_(1)
        with refused():
            result.sum().backward()


@pytest.mark.parametrize("changed", range(3))
def test_inputs_of_attention(changed):
    tensors = [x * 1 for x in heads()]
    result, _ = attend(*tensors, "relu")
    tensors[changed].zero_()
    with refused():
        result.sum().backward()


@pytest.mark.parametrize("kind", ["entmax15", "rela_g", "rela_i", "softmax_gated"])
def test_output_projection_of_an_attention_layer(kind):
    layer = SparseMultiheadAttention(32, 2, self_attention=True, attention=kind)
    x = torch.randn(5, 2, 32)
    result, _ = layer(x, x, x)
    with torch.no_grad():
        layer.out_proj.weight.mul_(3)
    with refused():
        result.sum().backward()


def test_inputs_of_other_ops():
    z, x, w = (torch.randn(20, 20, requires_grad=True) * 1 for _ in range(3))
    alpha, vector = torch.full((20, 1), 1.5), torch.ones(20)
    p = entmax15(z)
    loss = linear_entmax_loss(x, w, None, torch.arange(20))
    of_alpha, normed = entmax(z, alpha), gated_rms_norm(z, vector, vector)
    for kept, result in ((p, p), (w, loss), (alpha, of_alpha), (vector, normed)):
        with torch.no_grad():
            kept.add_(1)
        with refused():
            result.sum().backward(retain_graph=True)
