"""Which GPUs the Triton kernels are for. Importing this does not import Triton."""

from __future__ import annotations

import logging
import os
from functools import cache

import torch

logger = logging.getLogger(__name__)

_LEAST_CAPABILITY = (8, 0)  # Ampere: a V100 has 7.0, a T4 has 7.5


@cache
def has_kernels(device: torch.device) -> bool:
    """Return whether kernels can run on a device. Cached, so that a reason is logged once.

    They have been compiled for NVIDIA GPUs from Ampere on. Triton would also try them on older ones
    and, under ROCm, on AMD's, but the outcome is unknown.
    """
    if device.type != "cuda":
        return False
    if torch.version.hip is not None:
        found = "PyTorch is built for ROCm"
    else:
        capability = torch.cuda.get_device_capability(device)
        if capability >= _LEAST_CAPABILITY:
            return has_triton()
        found = "{} has compute capability {}.{}".format(device, *capability)
    logger.info(
        "%s, and the Triton kernels need an NVIDIA GPU of %d.%d or more: sparse ops run in plain "
        "PyTorch",
        found,
        *_LEAST_CAPABILITY,
    )
    return False


@cache
def has_triton() -> bool:
    """Return whether Triton is to be used. Cached, so that the reason is logged once.

    PyTorch from 2.6 on requires Triton 3.2 or later. With another, kernels that fail are not used.
    """
    if os.environ.get("FAIRSEQ_SPARSE_TRITON") == "0":
        logger.info("FAIRSEQ_SPARSE_TRITON=0: sparse ops run in plain PyTorch on the GPU")
        return False
    try:
        import triton  # noqa: F401
    except ImportError as error:
        logger.warning(
            "triton cannot be imported (%s): sparse ops run in plain PyTorch on the GPU, which is "
            "slower; to fix this: pip install triton",
            error,
        )
        return False
    return True
