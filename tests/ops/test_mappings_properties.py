"""Properties of the probabilities of any row."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.ops import entmax, entmax_threshold

INF = float("inf")
NAN = float("nan")


alphas = st.sampled_from([1.05, 1.3, 1.5, 1.9, 2.0, 2.5, 4.0])
rows = st.one_of(
    st.lists(st.floats(-20, 20), min_size=1, max_size=12),
    st.lists(st.integers(-2, 2).map(float), min_size=1, max_size=12),
)


def rounding(alpha, *logits):
    """Return a bound of the error of p = [x - tau]_+^beta from the rounding of the logits."""
    largest = max(1.0, *(float(z.abs().max()) for z in logits))
    return max(1.0, 1 / (alpha - 1)) * (64 * 2.0**-52 * largest) ** min(1.0, 1 / (alpha - 1))


@given(rows, alphas)
def test_is_a_distribution_that_keeps_the_order(row, alpha):
    z = torch.tensor(row, dtype=torch.float64)
    p = entmax(z, alpha)
    assert (p >= 0).all() and abs(float(p.sum()) - 1) < 1e-14
    order = z.argsort()
    assert (p[order].diff() >= 0).all()
    assert (p[order].diff()[z[order].diff() == 0] == 0).all()


@given(rows, alphas, st.floats(-1000, 1000))
def test_a_shift_changes_nothing(row, alpha, shift):
    z = torch.tensor(row, dtype=torch.float64)
    moved = z + shift
    assert (entmax(moved, alpha) - entmax(z, alpha)).abs().max() <= rounding(alpha, moved, z)


@given(rows, alphas, st.randoms(use_true_random=False))
def test_a_permutation_goes_through(row, alpha, random):
    z = torch.tensor(row, dtype=torch.float64)
    order = random.sample(range(len(row)), len(row))
    difference = entmax(z[order], alpha) - entmax(z, alpha)[order]
    assert difference.abs().max() <= rounding(alpha, z)


@given(rows, alphas)
def test_the_support_is_what_lies_above_the_threshold(row, alpha):
    z = torch.tensor(row, dtype=torch.float64)
    p, tau = entmax(z, alpha), entmax_threshold(z, alpha)
    margin = 64 * 2.0**-52 * max(1.0, float(((alpha - 1) * z).abs().max()))
    above = (alpha - 1) * z - tau
    assert (p[above > margin] > 0).all() and (p[above < -margin] == 0).all()
    assert (p[z <= z.max() - 1 / (alpha - 1) - margin] == 0).all()


@given(rows, alphas, st.integers(0, 5))
def test_impossible_logits_change_nothing(row, alpha, count):
    z = torch.tensor(row, dtype=torch.float64)
    longer = torch.cat([torch.full((count,), -INF).double(), z, z.min().expand(count) - 1e3])
    p = entmax(longer, alpha)
    assert (p[:count] == 0).all()
    if alpha > 1.1:  # else logits 1e3 lower may be in the support
        assert (p[count + len(row) :] == 0).all()
        kept = p[count : count + len(row)]
        assert (kept - entmax(z, alpha)).abs().max() <= rounding(alpha, z)
