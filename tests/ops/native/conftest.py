import pytest

from fairseq_sparse.ops import native


@pytest.fixture
def compiled():
    """For tests of the kernels themselves: without a compiler there are none."""
    if native.library() is None:
        pytest.skip("needs a C compiler")
