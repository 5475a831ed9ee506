"""The kernel of alpha-entmax's gradient.

Without a GPU it runs in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import references
from fairseq_sparse.ops.gpu.gradients import entmax_gradient
from op_cases import DTYPES, logits
from references import INF, assert_close_to_naive

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
each_alpha = pytest.mark.parametrize("alpha", (1.1, 1.5, 2.0, 3.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_alpha
def test_agrees_with_the_jacobian(alpha, dtype):
    p = references.entmax(logits(4, 9), alpha).to(dtype)
    grad = logits(4, 9, dtype=dtype)
    found = entmax_gradient(p.to(DEVICE), grad.to(DEVICE), alpha)
    assert found.dtype == dtype
    # The interpreter truncates to bfloat16, where a GPU rounds.
    atol = 0.008 * float(found.abs().max()) * (dtype == torch.bfloat16)

    def naive(p, grad):
        return references.entmax_gradient(p, grad, alpha)

    assert_close_to_naive(found.cpu(), naive, p, grad, slack=8, atol=atol)


@each_alpha
def test_rows_of_several_blocks(alpha):
    # Some blocks have no entry of the support.
    z = logits(2, 9000, scale=3.0)
    z[1, 2000:] -= 30
    p, grad = references.entmax(z, alpha), logits(2, 9000)
    found = entmax_gradient(p.to(DEVICE), grad.to(DEVICE), alpha).cpu()
    for row, weights, incoming in zip(found, p, grad, strict=True):
        seen = weights > 0
        expected = torch.zeros_like(row)
        expected[seen] = references.entmax_gradient(weights[seen], incoming[seen], alpha)
        torch.testing.assert_close(row, expected)


@each_alpha
def test_rows_at_the_edge(alpha):
    p = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [NAN, NAN, NAN]], device=DEVICE)
    grad = torch.tensor([[1.0, 2, INF], [INF, 3, NAN], [1, 2, NAN], [1, 2, 3]], device=DEVICE)
    found = entmax_gradient(p, grad, alpha)
    assert (found[:2] == 0).all()
    torch.testing.assert_close(found[2, 0], -found[2, 1])
    assert found[2, 0] < 0 and found[2, 2] == 0 and found[3].isnan().all()


def test_any_layout():
    p, grad = references.entmax(logits(5, 7), 1.5).to(DEVICE), logits(5, 7).to(DEVICE)
    expected = entmax_gradient(p, grad, 1.5)
    assert torch.equal(entmax_gradient(p.t().contiguous().t(), grad, 1.5), expected)
    wide = torch.full((5, 9), NAN, device=DEVICE, dtype=torch.float64)
    wide[:, 1:8] = grad
    assert torch.equal(entmax_gradient(p, wide[:, 1:8], 1.5), expected)
    ones = torch.ones((), device=DEVICE, dtype=torch.float64).expand(5, 7)
    assert entmax_gradient(p, ones, 1.5).abs().max() < 1e-12  # the sum is constant
    for shape in ((0, 5), (3, 0)):
        assert entmax_gradient(p.new_zeros(shape), p.new_zeros(shape), 1.5).shape == shape
