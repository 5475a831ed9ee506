"""GPU kernels in Triton, each behind the function of ``ops`` that it speeds up.

Triton is imported when the first CUDA tensor comes, never before. Where it is missing, too old, or
turned off by ``FAIRSEQ_SPARSE_TRITON=0`` in the environment, ``ops`` stays with plain PyTorch.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Optional

from torch import Tensor

from fairseq_sparse.ops.capture import is_captured

logger = logging.getLogger(__name__)

_OLDEST = (3, 0)


def usable(*tensors: Optional[Tensor]) -> bool:
    """Return whether an op on these tensors should go to its kernel in this package."""
    given = [x for x in tensors if x is not None]
    return all(x.is_cuda for x in given) and _has_triton() and not is_captured(*given)


@cache
def _has_triton() -> bool:
    """Cached, so that what is missing is said once."""
    if os.environ.get("FAIRSEQ_SPARSE_TRITON") == "0":
        logger.info("FAIRSEQ_SPARSE_TRITON=0: no Triton kernels, plain PyTorch on the GPU")
        return False
    needed = ".".join(map(str, _OLDEST))
    try:
        import triton
    except ImportError:
        found = "is not installed"
    else:
        if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= _OLDEST:
            return True
        found = f"{triton.__version__} is older than {needed}"
    logger.warning(
        "triton %s: sparse ops run in plain PyTorch on the GPU, slower; the remedy is "
        "pip install 'triton>=%s'",
        found,
        needed,
    )
    return False
