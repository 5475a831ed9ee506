"""The compiled products of sparse matrices, against those of dense ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.ops.cpu.products import SparseRows

pytestmark = pytest.mark.usefixtures("compiled")


def sparse_rows(lengths, size):
    """Return rows of these lengths; some columns occur twice in a row, and some values are 0."""
    start = torch.tensor([0, *lengths]).cumsum(0)
    values = torch.randn(int(start[-1]))
    values[::7] = 0
    return SparseRows(start, torch.randint(size, values.shape).int(), values, size)


def as_dense(matrix):
    """Return the matrix ``[rows, size]`` in fp64, added up entry by entry."""
    out = torch.zeros(len(matrix.start) - 1, matrix.size, dtype=torch.float64)
    for row in range(len(out)):
        for entry in range(int(matrix.start[row]), int(matrix.start[row + 1])):
            out[row, int(matrix.columns[entry])] += float(matrix.values[entry])
    return out


def assert_close(actual, exact, magnitude):
    """Compare relative to ``magnitude``, the sums of the terms' absolute values."""
    assert actual.dtype == torch.float32 and actual.shape == exact.shape
    assert ((actual.double() - exact).abs() <= 1e-6 * magnitude + 1e-30).all()


LENGTHS = {
    "each a few": [3, 0, 1, 4, 5, 0, 8, 2, 9],
    "one row": [6],
    "one entry": [0, 1, 0],
    "no entries": [0, 0, 0],
    "no rows": [],
    "more than the size": [40, 0, 37],
}
each_lengths = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)


@pytest.mark.parametrize("size", [1, 2, 11, 300])
@each_lengths
def test_transposed(lengths, size):
    matrix = sparse_rows(lengths, size)
    row_scale = torch.randn(len(lengths))
    transposed = matrix.transposed(row_scale)
    assert transposed.size == len(lengths)
    assert transposed.start.dtype == torch.int64 and transposed.columns.dtype == torch.int32
    assert len(transposed.start) == size + 1 and int(transposed.start[0]) == 0
    assert (transposed.start.diff() >= 0).all() and transposed.start[-1] == matrix.start[-1]
    exact = (row_scale.double()[:, None] * as_dense(matrix)).t()
    torch.testing.assert_close(as_dense(transposed), exact, rtol=1e-6, atol=1e-6)
    # Entries are in the order of the rows, so that sums are reproducible.
    for column in range(size):
        rows = transposed.columns[transposed.start[column] : transposed.start[column + 1]]
        assert (rows.diff() >= 0).all()


def test_concatenated():
    parts = [sparse_rows(lengths, 11) for lengths in LENGTHS.values()]
    exact = torch.cat([as_dense(part) for part in parts])
    whole = SparseRows.concatenated(parts)
    assert torch.equal(as_dense(whole), exact)
    assert SparseRows.concatenated(parts[:1]) is parts[0]
    assert torch.equal(
        as_dense(SparseRows.concatenated(parts[1:3])),
        torch.cat([as_dense(part) for part in parts[1:3]]),
    )
    dense, nothing = torch.randn(11, 20), torch.zeros(20)
    torch.testing.assert_close(
        whole.times(dense, nothing), torch.cat([part.times(dense, nothing) for part in parts])
    )


@given(
    lengths=st.lists(st.integers(0, 12), max_size=9),
    size=st.integers(1, 40) | st.just(300),
    width=st.integers(1, 70) | st.sampled_from([100, 257, 300]),
    number=st.sampled_from([0.0, -0.25]),
)
def test_any_shape(lengths, size, width, number):
    matrix = sparse_rows(lengths, size)
    scale = torch.randn(len(lengths))
    scale[::3] = 0
    exact, absolute = (
        as_dense(matrix._replace(values=values)) for values in (matrix.values, matrix.values.abs())
    )
    x, w, base = torch.randn(len(lengths), width), torch.randn(size, width), torch.randn(2 * width)
    base = base[::2]
    magnitude = base.abs().double() + absolute @ w.abs().double()
    assert_close(matrix.times(w, base), base.double() + exact @ w.double(), magnitude)
    rows = scale.double()[:, None]
    product = matrix.transposed(scale).times(x, torch.zeros(width)).double()
    expected = (exact * rows).t() @ x.double()
    torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-4)
    found, expected = matrix.dense(scale, number).double(), (exact + number) * rows
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_products(threads):
    # More rows than a thread takes at a time, and too much work to be left to one thread.
    matrix = sparse_rows([5] * 200, 150)
    dense, base, scale = torch.randn(150, 64), torch.randn(64), torch.randn(200)

    def results():
        return matrix.times(dense, base), matrix.dense(scale, 0.5), *matrix.transposed(scale)[:3]

    expected = results()
    try:
        torch.set_num_threads(threads)
        found = results()
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_nan_stays_in_its_rows():
    matrix = sparse_rows([2, 3, 1], 5)
    matrix.values[0] = float("nan")
    product = matrix.times(torch.ones(5, 7), torch.zeros(7))
    assert product[0].isnan().all() and product[1:].isfinite().all()
    scaled = matrix.dense(torch.tensor([1.0, float("nan"), 0.0]), 0.1)
    assert scaled[1].isnan().all() and (scaled[2] == 0).all()
