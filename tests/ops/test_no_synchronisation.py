"""No op reads a value of a tensor that is not on the CPU: that would stall a GPU.

Tensors on the meta device have a shape and a dtype but no values, so that reading one raises;
they take the path of GPUs without kernels.
"""

import pytest
import torch

from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    entmax,
    entmax15,
    entmax_loss,
    entmax_threshold,
    softmax,
    sparsemax,
    tau_from_logits,
)

DTYPES = (torch.float32, torch.float16)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def values(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def assert_backward(result, *inputs):
    for x, grad in zip(inputs, torch.autograd.grad(result.sum(), inputs), strict=True):
        assert grad.shape == x.shape and grad.dtype == x.dtype


def test_looking_at_a_value_raises():
    with pytest.raises(Exception, match="(?i)meta"):
        bool(values(1) > 0)


@each_dtype
def test_mappings(dtype):
    z = values(2, 3, 5, dtype=dtype)
    for dim in (0, -1):
        for p in (
            softmax(z, dim),
            sparsemax(z, dim),
            entmax15(z, dim),
            entmax15(z, dim, "sort"),
            entmax15(z, dim, "bisect"),
            entmax(z, 1.3, dim),
            entmax(z, 2.5, dim),
            alpha_relu(z, 0.1),
            alpha_relu(z, values(), 2.0),
        ):
            assert p.shape == z.shape and p.dtype == dtype
            assert_backward(p, z)


@each_dtype
def test_alpha_for_each_row(dtype):
    z, alpha = values(2, 3, 5, dtype=dtype), values(3, 1)
    p = entmax(z, alpha)
    assert p.shape == z.shape and p.dtype == dtype
    assert_backward(p, z, alpha)


@each_dtype
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses(dtype, reduction):
    z, target = values(2, 3, 5, dtype=dtype), values(2, 3, dtype=torch.int64)
    options = {"reduction": reduction, "label_smoothing": 0.1, "ignore_index": 1}
    for loss in (
        entmax_loss(z, target, **options),
        entmax_loss(z, target, 2.0, algorithm="sort", **options),
        entmax_loss(z, target, 3.0, **options),
        alpha_relu_loss(z, target, 0.1, **options),
        alpha_relu_loss(z, target, values(), 2.0, **options),
    ):
        assert loss.shape == (target.shape if reduction == "none" else ())
        assert loss.dtype == torch.float32
        assert_backward(loss, z)


@each_dtype
def test_thresholds(dtype):
    z = values(2, 3, 5, dtype=dtype)
    for tau, shape in ((entmax_threshold(z, 1.5, 1), (2, 5)), (tau_from_logits(z), ())):
        assert tau.shape == shape and tau.dtype == torch.float32 and tau.device.type == "meta"
