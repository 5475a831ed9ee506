"""The kernels of rows of logits: mappings, their gradients, losses.

Without a GPU they run in Triton's interpreter, on tensors of the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", minversion="3.3", reason="needs triton 3.3")

import references
from fairseq_sparse.ops import entmax, entmax_loss, linear_entmax_loss, log_entmax
from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.gpu import rows
from numerics.interpreted_gpu import InterpretedGPU
from op_cases import LOSSES, TAU, batch, logits
from references import INF, assert_close_to_naive

pytestmark = pytest.mark.pairwise
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
FP32 = torch.float32
SIZES = (1, 300, 4200)  # rows of one block, and of several of which the last is not full
each_alpha = pytest.mark.parametrize("alpha", (1.1, 1.5, 2.0))
each_size = pytest.mark.parametrize("size", SIZES)
each_dtype = pytest.mark.parametrize("dtype", (FP32, torch.float16, torch.bfloat16), ids=str)
each_loss = pytest.mark.parametrize("kind", LOSSES, ids=str)


def on_device(*shape, dtype=FP32, **options):
    return logits(*shape, dtype=dtype, **options).to(DEVICE)


def solve(z, alpha, log=False):
    """Return p, or its logarithm, and tau; alpha is a number or a tensor."""
    each = (alpha, 0.0) if torch.is_tensor(alpha) else (None, alpha)
    return rows.entmax(z, *each, "newton", 0, log)


def tau_of(kind):
    return torch.tensor(TAU, device=DEVICE) if str(kind) == "alpha_relu" else None


def losses_and_gradient(z, target, kind, alpha=1.5, label_smoothing=0.0, ignore_index=-100, grad=1):
    options = (alpha, label_smoothing, ignore_index)
    losses, solution = rows.row_loss(z, target, tau_of(kind), *options, "newton", 0)
    grad = torch.ones_like(losses) * grad
    return losses, rows.row_loss_backward(grad, z, target, solution, *options)


@each_dtype
@each_size
@each_alpha
def test_entmax_agrees_with_bisection(alpha, size, dtype):
    z = on_device(2, size, dtype=dtype, scale=2.0)
    p, tau = solve(z, alpha)
    assert p.dtype == dtype and tau.dtype == FP32
    assert_close_to_naive(p.cpu(), lambda z: references.entmax(z, alpha), z.cpu(), slack=4)
    rounding = 3 * torch.finfo(FP32).eps  # tau is a sum
    assert_close_to_naive(
        tau.cpu(), lambda z: references.entmax_threshold(z, alpha), z.cpu(), slack=4, atol=rounding
    )
    log_p, _ = solve(z, alpha, log=True)
    assert log_p.dtype == FP32
    torch.testing.assert_close(log_p.exp(), p.float(), rtol=0.01, atol=2e-6)


@each_size
@each_alpha
def test_entmax_sums_to_1(alpha, size):
    z = on_device(4, size)
    z *= torch.tensor([0.0, 1e-3, 1.0, 30.0], device=DEVICE).unsqueeze(1)
    p, _ = solve(z, alpha)
    assert (p.double().sum(-1) - 1).abs().max() < 1e-6
    assert (p >= 0).all()


@each_alpha
def test_no_place_of_large_entries_hides_them(alpha):
    """Each lane keeps its two largest entries; here one lane has the whole support, or many have
    more than two entries of it."""
    size, block = 5000, rows.row_options(5000)["BLOCK"]
    in_one_lane = on_device(1, size) * 0.1
    in_one_lane[:, 3::block] += 3 + on_device(1, 1).abs()
    constant = torch.full((1, size), 5.0, device=DEVICE)
    two_values = (torch.arange(size, device=DEVICE) % 2).float().mul(0.01).unsqueeze(0)
    rising = torch.linspace(0, 0.1, size, device=DEVICE).unsqueeze(0)
    z = torch.cat([in_one_lane, constant, two_values, rising])
    p, _ = solve(z, alpha)
    assert_close_to_naive(p.cpu(), lambda z: references.entmax(z, alpha), z.cpu(), slack=4)
    assert ((p[0] > 0).sum() <= 5) == (alpha > 1.1)
    assert torch.equal(p[1], p[1, :1].expand(size))


@each_dtype
@pytest.mark.parametrize("size", [6, 4100])
@each_alpha
def test_rows_at_the_edge(alpha, size, dtype):
    z = on_device(9, size, dtype=dtype)
    z[0] = 2.5
    z[1] = -INF
    z[1, -1] = 3
    z[2, 1:3], z[2, 3:] = 1e4, -1e4
    z[3, ::2] = -INF
    z[4] = -INF
    z[5, -2] = NAN
    z[6, 0] = NAN
    z[7] = z[7].round()
    z[8, -2] = INF
    p, tau = solve(z, alpha)
    log_p, _ = solve(z, alpha, log=True)
    assert (p[4] == 0).all() and (log_p[4] == -INF).all()
    for blank in (p, log_p, tau):
        assert blank[5:7].isnan().all() and blank[8].isnan().all()
    assert p[1, -1] == 1 and tau[1] == 3 * (alpha - 1) - 1
    others = [0, 1, 2, 3, 7]
    exact = references.entmax(z[others].cpu().double(), alpha)
    rounding = max(2e-6, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(p[others].cpu().double(), exact, rtol=0, atol=rounding)
    assert torch.equal(log_p[others] == -INF, p.float()[others] == 0) or dtype != FP32


@pytest.mark.parametrize("size", [7, 5000])
def test_alpha_for_each_row(size):
    """Rows with alpha > 2 are bisected; p is then less exact near the threshold."""
    alpha = torch.tensor([1.2, 1.5, 2.0, 2.3, 2.7, 1.3, 1.3, 1.0], device=DEVICE).unsqueeze(1)
    z = on_device(8, size, scale=2.0)
    z[3:5] *= 0.15
    z[5], z[6] = NAN, -INF
    p, _ = solve(z, alpha)
    exact = references.entmax(z[:5].cpu().double(), alpha[:5].cpu().double())
    for some, atol in ((slice(3), 2e-6), (slice(3, 5), 1e-5)):
        torch.testing.assert_close(p[some].cpu().double(), exact[some], rtol=0, atol=atol)
    assert p[5].isnan().all() and (p[6] == 0).all()
    assert p[7].isnan().all()  # 1 is no alpha of alpha-entmax
    for row in range(5):
        assert torch.equal(p[row], solve(z[row : row + 1], alpha[row : row + 1])[0][0])


@each_dtype
@each_size
@each_alpha
def test_gradient_of_entmax_is_the_jacobian_product(alpha, size, dtype):
    p = references.entmax(logits(2, size, scale=2.0), alpha).to(dtype)
    grad = logits(2, size, dtype=dtype)
    found = rows.entmax_backward(p.to(DEVICE), grad.to(DEVICE), alpha).cpu()
    assert found.dtype == dtype
    rounding = 16 * torch.finfo(dtype).eps
    for row, incoming, ours in zip(p.double(), grad.double(), found.double(), strict=True):
        seen = row > 0  # the Jacobian of a whole vocabulary would not fit into memory
        assert (ours[~seen] == 0).all()
        exact = references.entmax_gradient(row[seen], incoming[seen], alpha)
        torch.testing.assert_close(ours[seen], exact, rtol=rounding, atol=rounding)


@each_alpha
def test_gradient_of_entmax_at_the_edge(alpha):
    p = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [NAN, NAN, NAN]], device=DEVICE)
    grad = torch.tensor([[1.0, 2, INF], [INF, 3, NAN], [1, 2, NAN], [1, 2, 3]], device=DEVICE)
    found = rows.entmax_backward(p, grad, alpha)
    assert (found[:2] == 0).all()
    torch.testing.assert_close(found[2, 0], -found[2, 1])
    assert found[2, 0] < 0 and found[2, 2] == 0 and found[3].isnan().all()


@pytest.mark.parametrize("size", [9, 4500])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@each_dtype
@each_alpha
@each_loss
def test_losses_agree_with_the_defining_formulas(kind, alpha, label_smoothing, dtype, size):
    z, target = batch(3, size=size, dtype=dtype, scale=2.0)
    losses, grad = losses_and_gradient(
        z.to(DEVICE), target.to(DEVICE), kind, alpha, label_smoothing
    )
    assert losses.dtype == FP32 and grad.dtype == dtype

    def naive(z, target):
        return kind.naive_loss(z, target, alpha, label_smoothing)

    def naive_gradient(z, target):
        return kind.naive_gradient(z, target, alpha, label_smoothing)

    # The interpreter truncates to bfloat16, where a GPU rounds.
    atol = 0.004 * float(grad.abs().max()) * (dtype == torch.bfloat16)
    rounding = 8 * torch.finfo(FP32).eps
    assert_close_to_naive(losses.cpu(), naive, z, target, slack=6, atol=rounding)
    assert_close_to_naive(grad.cpu(), naive_gradient, z, target, slack=6, atol=atol + rounding)


@pytest.mark.parametrize("size", [6, 4100])
@each_loss
def test_the_gradient_that_replaces_the_logits_is_the_same(kind, size):
    z, target = (x.to(DEVICE) for x in batch(5, size=size, dtype=FP32))
    target[1] = 3
    losses, grad = losses_and_gradient(z, target, kind, 1.5, 0.1, ignore_index=3)
    options = RowLoss(1.5, tau_of(kind), 0.1, 3)
    assert torch.equal(rows.residual_(z, target, options, "newton", 0), losses)
    assert torch.equal(z, grad)
    assert losses[1] == 0 and (grad[1] == 0).all()


@each_loss
def test_losses_of_rows_at_the_edge(kind):
    z, target = (x.to(DEVICE) for x in batch(9, size=6, dtype=FP32))
    target[:] = torch.tensor([0, 2, 1, 5, 6, -3, 0, -1, -1])
    z[1, 2] = -INF  # an impossible target
    z[2, 1] = NAN
    z[3, :3], z[3, 3:] = 1e4, -1e4
    z[6] = -INF
    z[7] = NAN  # ignored
    losses, grad = losses_and_gradient(z, target, kind, ignore_index=-1)
    assert losses[1] == INF and losses[2].isnan() and losses[6] == INF
    if str(kind) == "entmax":
        torch.testing.assert_close(losses[3].cpu(), torch.tensor(2e4), rtol=1e-4, atol=0)
    assert losses[4:6].isnan().all()  # these targets are no classes
    assert (losses[7:] == 0).all() and (grad[7:] == 0).all()
    assert grad[2].isnan().any() and (losses[~losses.isnan()] >= 0).all()


@each_loss
def test_each_row_has_its_gradient_scaled_before_it_is_rounded(kind):
    z, target = (x.to(DEVICE) for x in batch(3, size=6, dtype=torch.float16))
    q = torch.zeros(6, dtype=torch.float64).index_fill(0, target[2].cpu(), 1.0)
    z[2] = kind.logits_of(q, 1.5) - 0.1  # almost fitted: a small residual
    _, expected = losses_and_gradient(z.float(), target, kind)
    weights = torch.tensor([1.0, -2.0, 1e5], device=DEVICE)  # 1e5 is too large for fp16
    _, grad = losses_and_gradient(z, target, kind, grad=weights)
    assert grad.dtype == torch.float16 and grad.isfinite().all()
    torch.testing.assert_close(grad.float(), expected * weights[:, None], rtol=2e-3, atol=1e-3)


def test_any_layout_of_the_inputs():
    z, target = on_device(6, 40), torch.arange(6, device=DEVICE)
    p, losses = solve(z, 1.5)[0], losses_and_gradient(z, target, "entmax")
    spread = torch.full((6, 80), NAN, device=DEVICE)
    spread[:, ::2] = z
    for same in (z.t().contiguous().t(), spread[:, ::2]):
        assert torch.equal(solve(same, 1.5)[0], p)
        for ours, theirs in zip(losses_and_gradient(same, target, "entmax"), losses, strict=True):
            assert torch.equal(ours, theirs)
    assert torch.equal(solve(z[:1].expand(3, 40), 1.5)[0], p[:1].expand(3, 40))
    grad = on_device(40, 6).t()
    expected = rows.entmax_backward(p, grad.contiguous(), 1.5)
    assert torch.equal(rows.entmax_backward(p.t().contiguous().t(), grad, 1.5), expected)


def test_the_longest_rows():
    z = on_device(2, 1 << 18)
    z[1] = 0.5
    p, _ = solve(z, 1.5)
    assert (p.double().sum(-1) - 1).abs().max() < 1e-6


def test_what_the_kernels_leave_to_the_reference():
    z, empty = on_device(3, 5), on_device(0, 5)
    rest = ("newton", 0, False)
    assert rows.fits_entmax(z, None, 1.5, *rest)
    assert rows.fits_entmax(z, torch.full((3, 1), 2.5), 0.0, *rest)
    for given in ((z.double(), None, 1.5), (empty, None, 1.5), (z, None, 2.5), (z, None, 1.0)):
        assert not rows.fits_entmax(*given, *rest)
    assert not rows.fits_entmax(z, None, 1.5, "sort", 0, False)
    assert not rows.fits_entmax_backward(z, z.double(), 1.5)


@pytest.mark.parametrize("dtype", [FP32, torch.float16], ids=str)
def test_the_public_functions_take_this_road(dtype):
    """Values and gradients, from the public function to the kernel."""
    z, target = (x.to(DEVICE) for x in batch(4, size=30, dtype=dtype))
    weight = on_device(30, 8, dtype=dtype)
    grad = on_device(4, 30, dtype=dtype)

    def results():
        x, w = on_device_ones(dtype).requires_grad_(), weight.clone().requires_grad_()
        own = z.clone().requires_grad_()
        p = entmax(own, 1.5)
        losses = entmax_loss(own, target, label_smoothing=0.1)
        linear = linear_entmax_loss(x, w, None, target)
        gradients = torch.autograd.grad((p * grad).sum() + losses, own)
        return (
            p,
            losses,
            linear,
            log_entmax(z, 1.5).exp(),
            *gradients,
            *torch.autograd.grad(linear, (x, w)),
        )

    with InterpretedGPU() as mode:
        found = results()
    assert mode.used == {
        "entmax", "entmax_backward", "row_loss", "row_loss_backward", "linear_loss",
    }  # fmt: skip
    rounding = max(1e-5, 4 * torch.finfo(dtype).eps)
    for ours, theirs in zip(found, results(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


def on_device_ones(dtype):
    return torch.linspace(-1, 1, 32, device=DEVICE).view(4, 8).to(dtype)


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("size", [25, 40001, 1 << 18])
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_on_a_gpu(alpha, size, dtype):
    z = logits(5, size, dtype=dtype, scale=1.5).requires_grad_()
    on_gpu = z.detach().cuda().requires_grad_()
    exact, found = entmax(z, alpha), entmax(on_gpu, alpha)
    grad = logits(5, size, dtype=dtype)
    rounding = max(8 * torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(found.cpu(), exact, rtol=rounding, atol=rounding)
    (expected,) = torch.autograd.grad(exact, z, grad)
    (actual,) = torch.autograd.grad(found, on_gpu, grad.cuda())
    torch.testing.assert_close(actual.cpu(), expected, rtol=rounding, atol=rounding)


@pytest.mark.gpu
def test_no_synchronisation_on_a_gpu():
    z, target = torch.randn(30, 50, device="cuda"), torch.arange(30, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        own = z.clone().requires_grad_()
        entmax(own, 1.5).sum().backward()
        entmax_loss(own, target, reduction="sum").backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
