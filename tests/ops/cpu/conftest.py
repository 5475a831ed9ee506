import pytest

from fairseq_sparse.ops import cpu
from op_cases import attends_by_kernels


@pytest.fixture
def compiled():
    """Skip a test of the compiled kernels where there is no C compiler."""
    if cpu.build.library() is None:
        pytest.skip("needs a C compiler")


@pytest.fixture
def fast(compiled):
    """Skip a test where ops are left to PyTorch because the kernels lack vectors of 8 floats."""
    if not attends_by_kernels():
        pytest.skip("needs a processor with AVX")
