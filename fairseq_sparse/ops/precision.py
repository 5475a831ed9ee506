"""The precision that the ops compute in, whatever autocast would choose."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Optional

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that the ops compute in: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def at_least_fp32(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype that the ops compute in."""
    return x if x.dtype == torch.float64 else x.float()


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the dtype in which autocast, if it is on, would multiply matrices."""
    dtype = _autocast_dtype(tensors[0].device.type)
    if dtype is None:
        return tensors
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context in which matrix products on the device of ``x`` keep their dtype."""
    device = x.device.type
    if _autocast_dtype(device) is None:
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    """Return the dtype of autocast on a device, None where it is off."""
    if device not in ("cpu", "cuda"):
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
