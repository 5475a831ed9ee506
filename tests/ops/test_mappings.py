import pytest
import torch

import references
from fairseq_sparse.ops import (
    alpha_relu,
    alpha_relu_loss,
    entmax,
    entmax15,
    entmax_loss,
    entmax_threshold,
    log_entmax,
    softmax,
    sparsemax,
)
from op_cases import ALPHA_OF, DTYPES, HALF_DTYPES, MAPPINGS, logits
from references import assert_close_to_naive

INF = float("inf")
NAN = float("nan")
each_mapping = pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
each_sparse_mapping = pytest.mark.parametrize("name", ALPHA_OF)


def naive(name):
    return lambda z: references.entmax(z, ALPHA_OF[name])


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("size", [50, 517])
@each_sparse_mapping
def test_agrees_with_the_naive_version(name, size, scale, dtype):
    z = logits(20, size, dtype=dtype, scale=scale)
    before = z.clone()
    p = MAPPINGS[name](z)
    assert p.dtype == dtype and p.shape == z.shape
    # Which side of the threshold an entry at the threshold falls on is a matter of rounding: p is
    # then a rounding of the logits, raised to the power of the mapping, in place of 0.
    power = 1 / (ALPHA_OF[name] - 1)
    atol = (4 * torch.finfo(torch.float32).eps * z.abs().max().item()) ** power
    assert_close_to_naive(p, naive(name), z, slack=4, atol=atol)
    assert torch.equal(z, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_is_softmax(dtype):
    z = logits(3, 4, 5, dtype=dtype)
    for dim in (0, 1, -1):
        torch.testing.assert_close(softmax(z, dim), torch.softmax(z, dim))


ALGORITHMS = [
    *[("sort", alpha, 1) for alpha in (1.5, 2.0)],
    *[("partial", alpha, topk) for alpha in (1.5, 2.0) for topk in (1, 3, 10, 100)],
    *[("bisect", alpha, 1) for alpha in (1.25, 1.5, 2.0, 3.0)],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm, alpha, topk", ALGORITHMS)
def test_each_algorithm_of_the_papers_is_exact(algorithm, alpha, topk, dtype):
    z = logits(30, 40, dtype=dtype, scale=1.0)
    z[0], z[1, 1:], z[2, ::3], z[3], z[4] = 0.5, -INF, -INF, -INF, 0
    z[4, :7], z[5, 5] = 1, NAN

    def mapping(z, dim=-1):
        return entmax(z, alpha, dim, algorithm, topk)

    valid = torch.arange(30) != 5
    exact = {"slack": 8, "atol": 8 * torch.finfo(torch.float32).eps}
    exact |= {} if dtype != torch.float64 else {"atol": 1e-14}
    rows = torch.cat([z[:3], z[4:5], z[6:]])
    assert_close_to_naive(mapping(rows), lambda z: references.entmax(z, alpha), rows, **exact)
    assert mapping(z)[5].isnan().all() and (mapping(z)[3] == 0).all()
    torch.testing.assert_close(mapping(z[valid].t(), 0).t(), mapping(z[valid]), rtol=0, atol=1e-6)


def test_partial_looks_at_more_logits_until_they_hold_the_support():
    z = logits(50, 200, scale=0.3)
    support = (entmax15(z) > 0).sum(-1)
    assert support.min() < support.max() and support.max() > 16
    for topk in (1, 2, int(support.max()), 199, 10_000):
        p = entmax15(z, algorithm="partial", topk=topk)
        torch.testing.assert_close(p, entmax15(z), rtol=0, atol=1e-14)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_a_single_number_has_probability_1(alpha):
    z = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    p = entmax(z, alpha)
    assert p.shape == () and p.item() == 1
    assert torch.autograd.grad(p, z)[0] == 0
    assert entmax_threshold(z, alpha).item() == pytest.approx((alpha - 1) * 0.7 - 1)
    assert entmax15(z) == sparsemax(z) == softmax(z) == 1
    learned = torch.tensor([alpha], dtype=torch.float64, requires_grad=True)
    p = entmax(z, learned)
    assert p.shape == () and p.item() == 1
    assert torch.autograd.grad(p, (z, learned)) == (0, 0)


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (1, 1), (2, 5, 1), (2, 1, 1)])
def test_alpha_broadcasts_over_rows(shape):
    z = logits(2, 5, 7)
    alpha = 1.1 + 1.4 * torch.rand(shape, dtype=torch.float64)
    p = entmax(z, alpha)
    for index, row_alpha in zip(
        torch.cartesian_prod(torch.arange(2), torch.arange(5)),
        alpha.expand(2, 5, 1).flatten(),
        strict=True,
    ):
        b, row = index.tolist()
        torch.testing.assert_close(p[b, row], entmax(z[b, row], float(row_alpha)))


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("alpha_dtype", DTYPES)
def test_alpha_is_taken_at_its_value_whatever_its_dtype(dtype, alpha_dtype):
    z = logits(4, 30, dtype=dtype)
    alpha = torch.tensor([[1.1], [1.3], [1.7], [1.9]], dtype=alpha_dtype, requires_grad=True)
    p = entmax(z, alpha)
    assert p.dtype == dtype
    assert_close_to_naive(p.detach(), lambda z: references.entmax(z, alpha.detach().double()), z)
    grad = logits(4, 30)
    p.backward(grad.to(dtype))
    exact = alpha.detach().double().requires_grad_()
    entmax(z.double(), exact).backward(grad)
    assert alpha.grad.dtype == alpha_dtype and alpha.grad.shape == alpha.shape
    # p and the incoming gradient are kept as `dtype`, and divided by (alpha - 1)^2.
    allowed = torch.finfo(dtype).eps * 4 * 30 / (exact.detach() - 1) ** 2
    assert ((alpha.grad.double() - exact.grad).abs() < allowed).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_near_1_is_near_softmax(dtype):
    z = logits(20, 100, dtype=dtype)
    p = entmax(z, 1.001)
    assert (p > 0).all()
    # The distance goes to 0 as alpha - 1 does.
    distance = (p - torch.softmax(z, -1)).abs().max()
    assert distance < 5e-3
    assert distance < 0.11 * (entmax(z, 1.01) - torch.softmax(z, -1)).abs().max()


def test_near_1_fp32_is_as_exact_as_documented():
    for scale in (0.1, 1.0, 10.0):
        z = scale * logits(50, 200, dtype=torch.float32)
        p, exact = entmax(z, 1.001), entmax(z.double(), 1.001)
        assert (p - exact).abs().max() < 1e-5


@pytest.mark.parametrize("function", [entmax, log_entmax, entmax_threshold])
def test_an_alpha_that_fp32_cannot_deal_with_is_refused(function):
    """p would be far off, or NaN, in silence."""
    z = logits(4, 50, dtype=torch.float32)
    for alpha in (1 + 1e-9, 1.0001):
        p = entmax(z.double(), alpha)
        torch.testing.assert_close(p, torch.softmax(z.double(), -1), rtol=1e-2, atol=1e-3)
        with pytest.raises(ValueError, match="too near to 1"):
            function(z, alpha)
    for alpha in (1e7, 1e300):
        with pytest.raises(ValueError, match="alpha must be at most"):
            function(z.double(), alpha)


def test_large_alpha_is_near_argmax():
    z = logits(20, 100)
    p = entmax(z, 5)
    assert torch.equal(p.argmax(-1), z.argmax(-1))
    assert ((p > 0).sum(-1) <= (sparsemax(z) > 0).sum(-1)).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(20, dtype=torch.float64))
    # p is a fourth root, so its error near 0 depends on chance roundings.
    assert_close_to_naive(p, lambda z: references.entmax(z, 5.0), z, slack=10)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_threshold(alpha):
    z = logits(3, 4, 20)
    for dim in (0, 1, 2, -1, -3):
        tau = entmax_threshold(z, alpha, dim)
        p = ((alpha - 1) * z - tau.unsqueeze(dim)).clamp(min=0) ** (1 / (alpha - 1))
        torch.testing.assert_close(p.sum(dim), torch.ones_like(tau), rtol=1e-6, atol=0)
    assert_close_to_naive(tau, lambda z: references.entmax_threshold(z.movedim(0, -1), alpha), z)
    assert not entmax_threshold(z.requires_grad_(), alpha).requires_grad
    assert entmax_threshold(z.half(), alpha).dtype == torch.float32


# --- any row, any layout -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@each_mapping
def test_rows_with_a_known_answer(mapping, dtype):
    def assert_row(row, expected):
        # The first and last rows must not be disturbed.
        z = torch.stack([torch.linspace(0, 3, len(row)), torch.tensor(row), torch.zeros(len(row))])
        z = z.to(dtype).requires_grad_()
        p = mapping(z)
        torch.testing.assert_close(p[1].float(), torch.tensor(expected), rtol=0.01, atol=1e-6)
        assert torch.isfinite(p).all()
        p.square().sum().backward()
        assert torch.isfinite(z.grad).all()

    assert_row([0.7], [1.0])
    assert_row([-INF], [0.0])
    assert_row([0.7, 0.7, 0.7, 0.7], [0.25] * 4)
    assert_row([1e4] * 5, [0.2] * 5)
    assert_row([-1e4] * 5, [0.2] * 5)
    assert_row([1e4, -1e4, 1e4, 0.0], [0.5, 0.0, 0.5, 0.0])
    assert_row([-INF, 2.5, -INF], [0.0, 1.0, 0.0])
    assert_row([-INF, -1e4, -INF], [0.0, 1.0, 0.0])
    assert_row([-INF, 3.0, 3.0, -INF], [0.0, 0.5, 0.5, 0.0])
    assert_row([-INF, -INF, -INF], [0.0, 0.0, 0.0])


@pytest.mark.parametrize("dtype", DTYPES)
@each_mapping
def test_largest_and_smallest_logits_of_the_dtype(mapping, dtype):
    top, tiny = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    rows = [[top, -top, 0, top], [-top, -top, -INF, -top], [tiny, -tiny, tiny, 0]]
    z = torch.tensor(rows, dtype=dtype)
    p = mapping(z)
    assert torch.isfinite(p).all()
    torch.testing.assert_close(p.double().sum(-1), torch.ones(3).double(), rtol=0.01, atol=0)


@pytest.mark.parametrize("bad", [NAN, INF])
@each_mapping
def test_nan_and_infinity_come_out_as_nan(mapping, bad):
    z = logits(4, 6).masked_fill(torch.rand(4, 6) < 0.2, -INF)
    z[:, 0] = 1.0
    good = mapping(z)
    z[1, 2] = bad
    z[3, :] = bad
    z.requires_grad_()
    p = mapping(z)
    assert p[[1, 3]].isnan().all()
    assert torch.equal(entmax_threshold(z, 1.5).isnan(), p.isnan().any(-1))
    torch.testing.assert_close(p[[0, 2]], good[[0, 2]])
    p.square().sum().backward()
    assert torch.isfinite(z.grad[[0, 2]]).all()
    # A NaN that turned into a plausible gradient would go unnoticed.
    assert z.grad[[1, 3]].isnan().any(-1).all()


def test_nan_and_infinity_with_an_alpha_for_each_row():
    z = logits(4, 6)
    z[1, 2], z[2, 4], z[3] = NAN, INF, -INF
    alpha = torch.tensor([[1.2], [1.5], [2.0], [2.5]]).double().requires_grad_()
    p = entmax(z.requires_grad_(), alpha)
    assert p[1:3].isnan().all() and (p[3] == 0).all()
    p.square().sum().backward()
    assert torch.isfinite(alpha.grad[[0, 3]]).all() and torch.isfinite(z.grad[[0, 3]]).all()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (0,), (3, 0), (2, 3, 0)])
@each_mapping
def test_empty(mapping, shape):
    z = torch.zeros(shape, requires_grad=True)
    p = mapping(z)
    assert p.shape == shape
    p.sum().backward()
    assert z.grad.shape == shape


def test_empty_with_an_alpha_for_each_row():
    for shape in ((0, 5), (3, 0)):
        alpha = torch.full((shape[0], 1), 1.5, requires_grad=True)
        p = entmax(torch.zeros(shape), alpha)
        assert p.shape == shape
        assert entmax_threshold(torch.zeros(shape), 1.5).shape == shape[:1]
        p.sum().backward()
        assert (alpha.grad == 0).all()


@each_mapping
def test_sums_that_half_precision_cannot_count(mapping):
    # Ones added up in fp16 stop at 2048, in bf16 at 256.
    for dtype in HALF_DTYPES:
        z = torch.zeros(2, 5000, dtype=dtype)
        p = mapping(z)
        expected = torch.tensor(1 / 5000, dtype=dtype)
        torch.testing.assert_close(p, expected.expand_as(p), rtol=0.01, atol=0)


@each_mapping
def test_autocast(mapping):
    layer = torch.nn.Linear(8, 30)
    x = torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = layer(x)
        assert z.dtype == torch.bfloat16
        p = mapping(z)
        loss = (p.float() * torch.arange(30)).sum()
    torch.testing.assert_close(p, mapping(z.detach()), rtol=0, atol=0)
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.isfinite(layer.weight.grad).all() and (layer.weight.grad != 0).any()


def test_alpha_one_is_softmax():
    z = logits(3, 4).requires_grad_()
    for one in (1, 1.0):
        assert torch.equal(entmax(z, one, dim=0), softmax(z, dim=0))


@pytest.mark.parametrize("alpha", [1.0, 0.5, -1.0])
def test_a_tensor_alpha_of_one_or_less_is_refused(alpha):
    alphas = torch.tensor([[1.5], [alpha], [2.0]])
    with pytest.raises(ValueError, match=f"alpha must exceed 1, its least value is {alpha}"):
        entmax(logits(3, 4), alphas)

    with pytest.raises(ValueError, match="alpha must exceed 1"):
        torch.func.vmap(entmax)(logits(3, 4), alphas)


def test_what_is_no_number_is_refused_by_name():
    z = torch.randn(3, 4)
    target = torch.zeros(3, dtype=torch.int64)
    for mapping in (
        *(softmax, entmax15, sparsemax, entmax_threshold),
        lambda x: alpha_relu(x, 0.1),
        lambda x: entmax(x, 1),
        lambda x: log_entmax(x, 1),
        lambda x: entmax_loss(x, target, alpha=1.0),
        lambda x: entmax_loss(x, target, alpha=1.5),
        lambda x: alpha_relu_loss(x, target, 0.1),
    ):
        with pytest.raises(TypeError, match="logits must be floating point, got torch.int64"):
            mapping(torch.ones(3, 4, dtype=torch.int64))
    for alpha in ("1.5", None, [1.5]):
        with pytest.raises(TypeError, match="alpha must be a number"):
            entmax(z, alpha)
        with pytest.raises(TypeError, match="alpha must be a number"):
            alpha_relu(z, 0.1, alpha)
    with pytest.raises(TypeError, match="alpha must be floating point"):
        entmax(z, torch.full((3, 1), 2))
    with pytest.raises(TypeError, match="tau must be a number or a tensor, got '0.1'"):
        alpha_relu(z, "0.1")


def test_bad_arguments():
    z = torch.zeros(3, 4)
    for alpha in (1.0, 0.5, -2, NAN, INF):
        with pytest.raises(ValueError, match="alpha must be a finite number above 1"):
            sparse = entmax if alpha != 1 else entmax_threshold  # entmax(z, 1) is softmax
            sparse(z, alpha)
        with pytest.raises(ValueError, match="alpha must be a finite number above 1"):
            entmax_threshold(z, alpha)
    for shape in ((3,), (4, 1), (1, 3, 1), (3, 4)):
        with pytest.raises(ValueError, match=r"alpha of shape .* does not broadcast to \(3, 1\)"):
            entmax(z, torch.full(shape, 1.5))
    with pytest.raises(ValueError, match=r"does not broadcast to \(1, 4\)"):
        entmax(z, torch.full((3, 1), 1.5), dim=0)
    for mapping in (sparsemax, entmax15):
        with pytest.raises(ValueError, match="topk"):
            mapping(z, algorithm="partial", topk=0)
        with pytest.raises(ValueError, match="newton, sort, partial, bisect"):
            mapping(z, algorithm="quick")
    for mapping in (entmax, log_entmax):
        with pytest.raises(ValueError, match="quick"):
            mapping(z, 1, algorithm="quick")
    for alpha in (1.3, torch.tensor(1.5)):
        with pytest.raises(ValueError, match="1.5 or 2"):
            entmax(z, alpha, algorithm="sort")
