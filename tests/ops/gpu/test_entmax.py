"""The kernel of alpha-entmax.

Without a GPU it runs in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import references
from fairseq_sparse.ops import entmax, mappings
from fairseq_sparse.ops.gpu import entmax as kernels
from fairseq_sparse.ops.gpu.entmax import entmax_rows
from op_cases import DTYPES, logits
from references import INF, assert_close_to_naive

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
ALPHAS = (1.1, 1.5, 2.0, 3.0)
each_alpha = pytest.mark.parametrize("alpha", ALPHAS)
SIZES = (1, 300, 4200)  # rows of one block, and of several of which the last is not full


def on_device(*shape, **options):
    return logits(*shape, **options).to(DEVICE)


def assert_as_on_cpu(z, alpha, atol=2e-6):
    """Assert that p, tau, conjugate and maximum are those of the CPU, including NaN."""
    found = entmax_rows(z, alpha)
    expected = mappings.entmax_rows(z.cpu(), alpha.cpu() if torch.is_tensor(alpha) else alpha)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-6, atol=atol, equal_nan=True)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@each_alpha
def test_agrees_with_bisection(alpha, size, dtype):
    z = on_device(2, size, dtype=dtype, scale=2.0)
    p, tau, _, maximum = entmax_rows(z, alpha)
    assert p.dtype == dtype and tau.dtype == maximum.dtype
    assert_close_to_naive(p.cpu(), lambda z: references.entmax(z, alpha), z.cpu(), slack=4)
    rounding = 3 * torch.finfo(tau.dtype).eps  # tau is a sum
    assert_close_to_naive(
        tau.cpu(), lambda z: references.entmax_threshold(z, alpha), z.cpu(), slack=4, atol=rounding
    )
    assert torch.equal(maximum, z.amax(-1).to(maximum.dtype))


@pytest.mark.parametrize("size", SIZES)
@each_alpha
def test_sums_to_1(alpha, size):
    z = on_device(4, size, dtype=torch.float32)
    z *= torch.tensor([0.0, 1e-3, 1.0, 30.0], device=DEVICE).unsqueeze(1)
    p = entmax_rows(z, alpha).p
    assert (p.double().sum(-1) - 1).abs().max() < 1e-6
    assert (p >= 0).all()


@each_alpha
def test_the_conjugate_is_the_largest_value_of_the_objective(alpha):
    z = on_device(3, 300, scale=2.0)
    p, _, conjugate, maximum = entmax_rows(z, alpha)
    value = (p * (z - maximum.unsqueeze(1))).sum(-1) + references.tsallis_entropy(p, alpha)
    torch.testing.assert_close(conjugate, value)
    other = torch.softmax(z, -1)
    value = (other * (z - maximum.unsqueeze(1))).sum(-1)
    assert (conjugate > value + references.tsallis_entropy(other, alpha)).all()


@each_alpha
def test_no_place_of_large_entries_hides_them(alpha):
    """Each lane keeps its three largest entries; here one lane has the whole support, or many
    have more than three entries of it."""
    size, block = 5000, kernels.row_options(5000, torch.float32)["BLOCK"]
    in_one_lane = on_device(1, size, dtype=torch.float32) * 0.1
    in_one_lane[:, 3::block] += 3 + on_device(1, 1, dtype=torch.float32).abs()
    constant = torch.full((1, size), 5.0, device=DEVICE)
    two_values = (torch.arange(size, device=DEVICE) % 2).float().mul(0.01).unsqueeze(0)
    rising = torch.linspace(0, 0.1, size, device=DEVICE).unsqueeze(0)
    z = torch.cat([in_one_lane, constant, two_values, rising])
    found = assert_as_on_cpu(z, alpha)
    assert ((found.p[0] > 0).sum() <= 5) == (alpha > 1.1)
    assert torch.equal(found.p[1], found.p[1, :1].expand(size))


@pytest.mark.each_value
@pytest.mark.parametrize(
    "size, dtype", [(6, torch.float32), (6, torch.float16), (4100, torch.float32)], ids=str
)
@each_alpha
def test_rows_at_the_edge(alpha, size, dtype):
    z = on_device(8, size, dtype=dtype)
    z[0] = 2.5
    z[1] = -INF
    z[1, -1] = 3
    z[2, 1:3], z[2, 3:] = 1e4, -1e4
    z[3, ::2] = -INF
    z[4] = -INF
    z[5, -2] = NAN
    z[6, 0] = NAN
    z[7] = z[7].round()
    found = assert_as_on_cpu(z, alpha)
    assert (found.p[4] == 0).all()
    assert found.p[5:7].isnan().all()
    assert found.p[1, -1] == 1
    z[5, -2] = INF
    found = entmax_rows(z[4:], alpha)
    assert found.p[1].isnan().all() and found.tau[1].isnan()
    assert (found.p[0] == 0).all()


@pytest.mark.parametrize("size", [7, 5000])
def test_alpha_for_each_row(size):
    z = on_device(4, size, dtype=torch.float32, scale=2.0)
    alpha = torch.tensor([1.2, 1.5, 2.0, 2.7], device=DEVICE)
    p = assert_as_on_cpu(z, alpha.unsqueeze(1)).p
    for row, value in enumerate(alpha.tolist()):
        alone = entmax_rows(z[row : row + 1], value).p[0]
        torch.testing.assert_close(p[row], alone, rtol=1e-5, atol=1e-6)
    same = entmax_rows(z, torch.tensor([[1.5]], device=DEVICE, dtype=torch.float64)).p
    torch.testing.assert_close(same, entmax_rows(z, 1.5).p, rtol=1e-5, atol=1e-6)


def test_a_row_does_not_depend_on_those_that_share_its_program():
    """Some rows need Newton steps; others, with alpha > 2, need bisection."""
    z = on_device(6, 100, dtype=torch.float32, scale=2.0)
    z[2], z[4] = NAN, -INF
    alpha = torch.tensor([1.3, 2.6, 1.5, 1.9, 1.3, 2.0], device=DEVICE).unsqueeze(1)
    for alphas in (alpha, torch.full_like(alpha, 1.5)):
        found = entmax_rows(z, alphas)
        for row in (0, 1, 2, 5):
            alone = entmax_rows(z[row : row + 1], alphas[row : row + 1])
            for ours, theirs in zip(found, alone, strict=True):
                assert torch.equal(ours[row : row + 1].nan_to_num(7), theirs.nan_to_num(7))


def test_rows_that_lie_far_apart():
    """From 2 ** 31 entries on, an offset in memory needs more than 32 bits.

    The space between the rows is never touched, so it takes no memory.
    """
    memory = torch.empty((1 << 31) + 64, dtype=torch.float16, device=DEVICE)
    z = memory.as_strided((2, 40), ((1 << 31) + 8, 1))
    z.copy_(on_device(2, 40, dtype=torch.float16))
    assert torch.equal(entmax_rows(z, 1.5).p, entmax_rows(z.contiguous(), 1.5).p)


def test_any_layout():
    z = on_device(6, 40, dtype=torch.float32)
    expected = entmax_rows(z, 1.5).p
    wide = torch.full((6, 90), NAN, device=DEVICE)
    wide[:, 20:60] = z
    spread = torch.full((6, 80), NAN, device=DEVICE)
    spread[:, ::2] = z
    for same in (z.t().contiguous().t(), wide[:, 20:60], spread[:, ::2]):
        assert torch.equal(entmax_rows(same, 1.5).p, expected)
    assert torch.equal(entmax_rows(z[:1].expand(3, 40), 1.5).p, expected[:1].expand(3, 40))
    assert torch.equal(entmax_rows(z, 1.5).p, expected)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_nothing_to_do(shape):
    found = entmax_rows(torch.zeros(shape, device=DEVICE), 1.5)
    assert found.p.shape == shape and found.tau.shape == shape[:1]


def test_the_longest_rows():
    z = on_device(2, 1 << 18, dtype=torch.float32)
    z[1] = 0.5
    p = assert_as_on_cpu(z, 1.5).p
    assert (p.double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [25, 40001, 1 << 18])
@pytest.mark.parametrize("alpha", [1.001, 1.1, 1.5, 2.1, 3.0])
def test_on_a_gpu(alpha, size, dtype):
    z = logits(5, size, dtype=dtype, scale=1.5).requires_grad_()
    on_gpu = z.detach().cuda().requires_grad_()
    exact, found = entmax(z, alpha), entmax(on_gpu, alpha)
    grad = logits(5, size, dtype=dtype)
    tolerance = 8 * torch.finfo(dtype).eps
    tolerance = {"rtol": max(tolerance, 1e-5 * (dtype != torch.float64)), "atol": tolerance}
    torch.testing.assert_close(found.cpu(), exact, **tolerance)
    (expected,) = torch.autograd.grad(exact, z, grad)
    (actual,) = torch.autograd.grad(found, on_gpu, grad.cuda())
    torch.testing.assert_close(actual.cpu(), expected, **tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("per_row", [False, True])
def test_no_synchronisation_on_a_gpu(per_row):
    z = torch.randn(30, 50, device="cuda")
    alpha = torch.full((30, 1), 1.7, device="cuda") if per_row else 1.5
    torch.cuda.set_sync_debug_mode("error")
    try:
        mappings.entmax_rows(z, alpha)
        mappings.entmax_rows(z, alpha, topk=5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
