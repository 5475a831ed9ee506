import pytest

from fairseq_sparse.ops import backends, cpu


@pytest.fixture
def compiled():
    """For tests of the kernels themselves: without a compiler there are none."""
    if cpu.build.library() is None:
        pytest.skip("needs a C compiler")


@pytest.fixture
def fast(compiled):
    """For tests of what is left to PyTorch where the compiler has no vectors of 8 floats."""
    if not backends._has_wide_vectors():
        pytest.skip("needs a processor with AVX")
