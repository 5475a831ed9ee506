"""Candidates from products in bfloat16: none is missed, and their logits are exact."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import references
from fairseq_sparse.ops.cpu import screen
from fairseq_sparse.ops.cpu.rows import SolvedRows
from fairseq_sparse.ops.cpu.screen import find_candidates, round_rows
from fairseq_sparse.ops.fenchel_young import RowLoss
from fairseq_sparse.ops.reference.rows import TAU

pytestmark = pytest.mark.usefixtures("compiled")

INF = float("inf")
NAN = float("nan")
EPS = torch.finfo(torch.float32).eps
ALPHAS = (1.05, 1.25, 1.5, 1.75, 2.0)
TAUS = (None, -0.5, 0.0, 0.3, 4.0)


def worst_in_bfloat16(*shape):
    """Return numbers with the largest rounding errors in bf16, all in the same direction."""
    power = torch.randint(-3, 4, shape).float().exp2()
    return power * (1 + 2.0**-8 - 2.0**-15)


def drawn(kind, rows, size, width):
    """Return features ``[rows, width]`` and weights ``[size, width]`` with logits of about 1."""
    if kind == "random":
        x, w = torch.randn(rows, width), torch.randn(size, width)
    elif kind == "correlated":
        common = torch.randn(width)
        x, w = common + 0.1 * torch.randn(rows, width), common + 0.1 * torch.randn(size, width)
    elif kind == "worst":
        x, w = worst_in_bfloat16(rows, width), worst_in_bfloat16(size, width)
        w[::2] *= -1
    elif kind == "norms":
        x = torch.randn(rows, width) * torch.logspace(-4, 3, rows)[:, None]
        w = torch.randn(size, width) * torch.logspace(3, -4, size)[:, None]
    else:  # logits that differ in the last digits
        x, w = torch.randn(rows, width), torch.randn(1, width) + 1e-3 * torch.randn(size, width)
    return x, w / width**0.5


KINDS = ("random", "correlated", "worst", "norms", "near")
each_kind = pytest.mark.parametrize("kind", KINDS)


def solved_rows(z, alpha, tau=None):
    tau = None if tau is None else torch.tensor(tau, dtype=torch.float64)
    return SolvedRows(z, RowLoss(alpha, tau, 0.0, -100))


def rounded(x, w):
    return round_rows(x), round_rows(w)


def found(x, w, alpha=1.5, tau=None, target=None, most=1.0):
    target = torch.zeros(len(x), dtype=torch.int64) if target is None else target
    return find_candidates(*rounded(x, w), target, alpha, tau, most)


def support(x, w, alpha, tau):
    """Return where p is nonzero, computed in fp64."""
    z = x.double() @ w.double().t()
    if tau is None:
        return references.entmax(z, alpha) > 0
    return references.alpha_relu(z, tau, alpha) > 0


def as_mask(packed):
    rows = torch.arange(len(packed.start) - 1).repeat_interleave(packed.start.diff())
    mask = torch.zeros(len(packed.start) - 1, packed.size, dtype=torch.bool)
    mask[rows, packed.columns.long()] = True
    assert int(mask.sum()) == packed.z.numel() == packed.columns.numel()  # no duplicates
    return mask


def error_allowed(x, w):
    """Return the error allowed in fp32 for the product of each row of x with each of w."""
    return (x.size(1) + 2) * EPS * (x.double().abs() @ w.double().abs().t()) + 1e-40


def assert_exact_candidates(x, w, alpha, tau):
    target = torch.randint(len(w), (len(x),))
    packed, gold = found(x, w, alpha, tau, target)
    mask = as_mask(packed)
    assert (mask | ~support(x, w, alpha, tau)).all()
    exact, allowed = x.double() @ w.double().t(), error_allowed(x, w)
    assert ((packed.z.double() - exact[mask]).abs() <= allowed[mask]).all()
    rows = torch.arange(len(x))
    assert ((gold.double() - exact[rows, target]).abs() <= allowed[rows, target]).all()


# --- rounding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (4, 16), (5, 17), (2, 300), (0, 4)])
def test_rows_are_rounded_as_pytorch_rounds(shape):
    bits = torch.randint(-(2**31), 2**31 - 1, shape).int()
    halfway = torch.randn(shape).view(torch.int32) & ~0xFFFF | 0x8000
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, 3.4e38, -3.4e38, 1e-45, 1e-39])
    special = special.repeat(shape[0] * shape[1])[: shape[0] * shape[1]].view(shape)
    for x in (torch.randn(shape), bits.view(torch.float32), halfway.view(torch.float32), special):
        half = round_rows(x).half
        expected = x.bfloat16()
        assert half.dtype == torch.bfloat16
        assert torch.equal(half.isnan(), expected.isnan())
        kept = ~expected.isnan()
        assert torch.equal(half.view(torch.int16)[kept], expected.view(torch.int16)[kept])


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-3, 1.0, 1e3, 1e15])
@pytest.mark.parametrize("width", [1, 16, 100, 1000])
def test_norms_and_errors_are_bounds_but_not_by_much(width, scale):
    for x in (torch.randn(20, width) * scale, worst_in_bfloat16(20, width) * scale):
        _, half, norm, error = round_rows(x)
        exact_norm = (x.double() + half.double()).norm(dim=1) / 2
        exact_error = (x.double() - half.double()).norm(dim=1)
        assert (norm >= exact_norm).all() and (error >= exact_error).all()
        if 1e-15 < scale < 1e15:  # where fp32 can represent the squares
            rounding = 3e-7 * (width + 8)
            assert (norm <= (1 + rounding) * exact_norm).all()
            assert (error <= (1 + rounding) * (exact_error + rounding * exact_norm)).all()


# --- the bound -----------------------------------------------------------------------------------


def bounds(x, w):
    """Return the bf16 products, and a lower and an upper bound of the exact ones, computed in fp32
    as in screen.c."""
    features, weight = rounded(x, w)
    about = (features.half @ weight.half.t()).float()
    norms = features.error[:, None] * weight.norm, features.norm[:, None] * weight.error
    lower, upper = (
        about + sign * 0.00391 * about.abs() + sign * norms[0] + sign * norms[1] for sign in (-1, 1)
    )
    return about, lower, upper


def exact_products(x, w):
    """Return the products in fp64, and a bound of the error of fp64."""
    x, w = x.double(), w.double()
    return x @ w.t(), x.size(1) * 2.0**-52 * (x.abs() @ w.abs().t())


def ties(*shape):
    """Return numbers halfway between two bf16 numbers, or next to such a number."""
    bits = torch.randn(shape).view(torch.int32) & ~0xFFFF | 0x8000
    return (bits + torch.randint(-1, 2, shape)).int().view(torch.float32)


def cancelling(rows, width):
    """Return numbers whose sums cancel, so that a product is small but its error is not."""
    x = torch.randn(rows, width)
    x[:, 1::2] = -x[:, : width // 2 * 2 : 2] * (1 + 2.0**-9 * torch.randn(rows, width // 2))
    return x


def one_huge(rows, width):
    x = torch.randn(rows, width)
    x[torch.arange(rows), torch.randint(width, (rows,))] *= 1e6
    return x


def denormal(*shape):
    return torch.randint(-(2**20), 2**20, shape).float() * 2.0**-149


def near_overflow(*shape):
    return torch.randn(shape).sign() * (3.4e38 * torch.rand(shape) ** 4).clamp(max=3.4e38)


# Kinds of entries; in some, all errors have the same direction, so that they add up.
ENTRIES = {
    "normal": lambda *shape: torch.randn(shape),
    "worst": worst_in_bfloat16,
    "equal": lambda *shape: torch.full(shape, 1 + 2.0**-8 - 2.0**-15),
    "ties": ties,
    "positive ties": lambda *shape: ties(*shape).abs(),
    "cancelling": cancelling,
    "one huge": one_huge,
    "denormal": denormal,
    "near overflow": near_overflow,
    "zero": torch.zeros,
}


@given(
    kinds=st.tuples(*[st.sampled_from(sorted(ENTRIES))] * 2),
    width=st.one_of(st.integers(1, 40), st.integers(1, 2048)),
    scales=st.tuples(*[st.integers(-40, 40)] * 2),
    correlated=st.booleans(),
    flushes=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@example(("equal", "equal"), 2048, (0, 0), False, False, 0)
@example(("equal", "equal"), 1, (-63, -63), False, True, 0)
@example(("near overflow", "normal"), 7, (0, 0), False, False, 0)
def test_products_are_within_their_bounds(kinds, width, scales, correlated, flushes, seed):
    torch.manual_seed(seed)
    x, w = (ENTRIES[kind](count, width) for kind, count in zip(kinds, (20, 30), strict=True))
    if correlated:
        w[:20] = x
    x, w = (t * 2.0**scale for t, scale in zip((x, w), scales, strict=True))
    exact, lost = exact_products(x, w)
    try:
        torch.set_flush_denormal(flushes)
        about, lower, upper = (t.double() for t in bounds(x, w))
    finally:
        torch.set_flush_denormal(False)
    # If a bound is NaN, the logit or its whole row is a candidate.
    assert not (exact > upper + lost).any()
    assert not (exact < lower - lost).any()
    assert (about.isfinite() | lower.isnan() | upper.isnan() | upper.isinf()).all()


@pytest.mark.parametrize("width", [1, 16, 512])
def test_the_norms_of_rounded_rows_are_no_bound(width):
    # Both errors in the same direction: |x - x'| |w'| + |x'| |w - w'| leaves out their product.
    x = w = torch.full((1, width), 1 + 2.0**-8 - 2.0**-15)
    halves = x.bfloat16().double()
    lost = exact_products(x, w)[0] - halves @ halves.t()
    error, norm = (x.double() - halves).norm(), halves.norm()
    middle = (x.double() + halves).norm() / 2
    assert 2 * error * norm < 0.9985 * lost
    assert lost <= 2 * error * middle * (1 + 1e-12)


@pytest.mark.parametrize("width", [3, 16, 100, 512])
def test_the_bound_is_not_idle(width):
    x, w = drawn("worst", 30, 50, width)
    about, _, upper = bounds(x, w)
    assert ((about - exact_products(x, w)[0]).abs() > 0.2 * (upper - about)).any()


def test_rows_too_long_for_their_sums_are_not_bounded():
    x = torch.ones(1, (1 << 20) + 1)
    assert round_rows(x[:, :-1].contiguous()).error.isfinite().all()
    assert round_rows(x).error.isinf().all()


# --- candidates ----------------------------------------------------------------------------------


@pytest.mark.pairwise
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("alpha", ALPHAS)
@each_kind
def test_nothing_is_missed_and_logits_are_exact(kind, alpha, tau):
    for size in (1, 40, 300):
        x, w = drawn(kind, 12, size, 24)
        for scale in (0.01, 1.0, 30.0):
            assert_exact_candidates(x * scale / (alpha - 1), w, alpha, tau)


HALVES = 1 + torch.arange(128)[:, None] / 128  # all of bfloat16 in [1, 2)
BETWEEN = HALVES + (2.0**-8 - 1e-6)  # rounded down by nearly half a step


@pytest.mark.parametrize("x", [HALVES, BETWEEN])
@pytest.mark.parametrize("w", [HALVES, BETWEEN])
def test_nothing_is_missed_next_to_the_threshold(x, w):
    # Each of the three roundings (features, weights, products) alone hides some logits above tau.
    for tau in torch.linspace(1, 3.9, 30).tolist():
        assert_exact_candidates(x, w, 2.0, tau)
    # With two logits, the second is in the support of sparsemax if it is above the first less 1.
    for first in w[:64:7]:
        for distance in torch.linspace(-0.02, 0.02, 30):
            pair = torch.stack([first + 1, first + distance])
            assert_exact_candidates(torch.ones(1, 1), pair, 2.0, None)


@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 9),
    size=st.integers(1, 600),
    width=st.integers(1, 70),
    alpha=st.floats(1.05, 2),
    tau=st.sampled_from(TAUS),
    scale=st.integers(-10, 10),
    shifted=st.integers(-70, 70),
    seed=st.integers(0, 1 << 30),
)
@example("random", 9, 400, 16, 2.0, None, 3, -68, 0)
@example("random", 9, 400, 16, 2.0, None, 3, 63, 0)
def test_nothing_is_missed_at_any_scale(kind, rows, size, width, alpha, tau, scale, shifted, seed):
    torch.manual_seed(seed)
    x, w = drawn(kind, rows, size, width)
    # Features and weights may be tiny or huge, but their logits are not.
    assert_exact_candidates(x * 2.0 ** (scale + shifted), w * 2.0**-shifted, alpha, tau)


@pytest.mark.parametrize("tau", [None, 0.3])
def test_few_are_candidates_where_the_support_is_small(tau):
    x, w = drawn("random", 40, 2000, 64)
    packed, _ = found(x * 3, w, 1.5, tau)
    small = support(x * 3, w, 1.5, tau)
    assert int(small.sum()) <= packed.z.numel() <= 2 * int(small.sum()) + 40


@pytest.mark.parametrize("alpha", ALPHAS)
def test_candidates_have_the_solution_of_all_logits(alpha):
    x, w = drawn("random", 30, 700, 32)
    x = x * 3 / (alpha - 1)
    z = x @ w.t()
    target = torch.randint(700, (30,))
    packed, gold = found(x, w, alpha, None, target)
    some, all_of_them = solved_rows(packed, alpha), solved_rows(z, alpha)
    torch.testing.assert_close(some.solution[TAU], all_of_them.solution[TAU], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some.conjugate, all_of_them.conjugate, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gold, z[range(30), target], rtol=1e-5, atol=1e-4)
    packed, _ = found(x, w, alpha, 0.3, target)
    some, all_of_them = (solved_rows(logits, alpha, 0.3) for logits in (packed, z))
    torch.testing.assert_close(some.conjugate, all_of_them.conjugate, rtol=1e-4, atol=1e-4)


def test_columns_ascend_in_each_row():
    x, w = drawn("near", 20, 500, 20)
    packed, _ = found(x, w)
    assert packed.start[0] == 0 and packed.size == 500 and packed.columns.dtype == torch.int32
    for row in range(20):
        columns = packed.columns[packed.start[row] : packed.start[row + 1]]
        assert len(columns) > 0 and (columns.diff() > 0).all()
        assert 0 <= int(columns[0]) and int(columns[-1]) < 500


@pytest.mark.parametrize("room", [1, 3, 40])
def test_rows_with_more_candidates_than_there_is_room_for(room, monkeypatch):
    x, w = drawn("random", 20, 40, 8)
    target = torch.randint(40, (20,))
    expected, gold = found(x, w, target=target)
    monkeypatch.setattr("fairseq_sparse.ops.cpu.screen._ROOM", 40 // room)
    packed, again = found(x, w, target=target)
    assert expected.start.diff().max() > 3
    torch.testing.assert_close((*packed[:3], again), (*expected[:3], gold), rtol=0, atol=0)


def test_none_where_there_are_too_many():
    x, w = drawn("random", 10, 100, 8)
    assert found(x * 0, w, most=0.999) is None  # all are in the support
    assert found(x * 0, w, most=1.0)[0].z.numel() == 1000
    packed, _ = found(x * 5, w)
    share = packed.z.numel() / 1000
    assert found(x * 5, w, most=share) is not None
    assert found(x * 5, w, most=share - 5e-4) is None


@pytest.mark.parametrize("tau", [None, 0.3])
@pytest.mark.parametrize("value", [NAN, INF, -INF, 3.4e38])
def test_features_that_are_no_numbers_stay_in_their_row(value, tau):
    x, w = drawn("random", 6, 300, 16)
    x = x * 4
    expected = as_mask(found(x, w, 1.5, tau)[0])
    good = [0, 2, 3, 5]
    x[1, 3] = x[4] = value
    packed, gold = found(x, w, 1.5, tau, torch.arange(6))
    mask = as_mask(packed)
    assert torch.equal(mask[good], expected[good])
    assert gold[good].isfinite().all()
    solved = solved_rows(packed, 1.5, tau)
    assert solved.conjugate[good].isfinite().all()
    if value == value and abs(value) < INF:
        return
    # The same as from the whole row: NaN, or infinity for alpha-ReLU.
    assert not solved.conjugate[[1, 4]].isfinite().any()


@pytest.mark.parametrize("value", [NAN, INF])
def test_weights_that_are_no_numbers_are_candidates(value):
    x, w = drawn("random", 6, 300, 16)
    w[7, 3] = value
    assert as_mask(found(x, w)[0])[:, 7].all()


def test_zero_and_single_rows():
    for rows, size, width in ((1, 1, 1), (1, 300, 1), (7, 1, 5), (1, 17, 16)):
        for tau in TAUS:
            assert_exact_candidates(torch.zeros(rows, width), torch.randn(size, width), 1.5, tau)
            assert_exact_candidates(torch.randn(rows, width), torch.zeros(size, width), 1.5, tau)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_candidates(threads):
    x, w = drawn("random", 80, 300, 32)
    expected, expected_gold = found(x * 4, w)
    try:
        torch.set_num_threads(threads)
        packed, gold = found(x * 4, w)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(gold, expected_gold)
    assert all(torch.equal(a, b) for a, b in zip(packed[:3], expected[:3], strict=True))


@pytest.mark.parametrize("limit", ["SSE41", "AVX2", "AVX512_CORE", "avx512_core_vnni"])
def test_no_bfloat16_product_where_onednn_may_not_use_its_instructions(limit, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert not screen.multiplies_bfloat16.__wrapped__()
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    unlimited = screen.multiplies_bfloat16.__wrapped__()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    assert screen.multiplies_bfloat16.__wrapped__() == unlimited
