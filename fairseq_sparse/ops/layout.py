"""The layout in memory of the heads of attention."""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor


def empty_time_first(
    shape: Sequence[int], like: Tensor, dtype: Optional[torch.dtype] = None
) -> Tensor:
    """Return a new tensor ``[batch, heads, time, width]`` that lies in memory as ``[time, batch,
    heads, width]``, like the projections of a module.

    It is not a permuted view: if an autograd function returns one, autograd lets nobody change the
    result in place.
    """
    batch, heads, _, width = shape
    strides = (heads * width, width, batch * heads * width, 1)
    return like.new_empty_strided(tuple(shape), strides, dtype=dtype)
